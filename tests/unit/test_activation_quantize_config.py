# SPDX-License-Identifier: Apache-2.0
"""`activation_quantize` before it is compiled: names, rules, choices, samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import jitgen
from jitgen.config import Arch, Config
from jitgen.config.activation_quantize import (
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
    Tiling,
)
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.activation_quantize.samples import Sizes, make
from jitgen.ops.solved import bits_of
from jitgen.targets.legality import check
from tests.refusals import assert_refused

BLOCKS = ActivationQuantizeConfig(layout="ragged")


def test_a_default_that_shows_is_no_name() -> None:
    """Each kernel has one name."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse("activation_quantize_ragged_block128_swiglu_r4_sm_90a")


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(BLOCKS, scale_granularity="none", power_of_two=True), "E_POWER_OF_TWO"),
        (replace(BLOCKS, tiling=Tiling(rows=3)), "E_ROWS"),
        (replace(BLOCKS, tiling=Tiling(threads=96)), "E_THREADS"),
        (replace(BLOCKS, tiling=Tiling(held=2)), "E_HELD"),
        (
            replace(BLOCKS, scale_granularity="row", tiling=Tiling(loads_ahead=True)),
            "E_LOADS_AHEAD",
        ),
        (replace(BLOCKS, tiling=Tiling(ctas_per_sm=17)), "E_CTAS"),
        (replace(BLOCKS, tiling=Tiling(rows=8)), "E_REGS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_sm_90a(config: ActivationQuantizeConfig, code: str) -> None:
    assert_refused(config, "sm_90a", code)


def test_a_cpu_has_one_tiling() -> None:
    verdict = check(replace(BLOCKS, tiling=Tiling(rows=2)), "cpu")

    assert verdict.code == "E_TILING"
    assert verdict.proposal == BLOCKS


@pytest.mark.parametrize(
    ("rows", "words"), [(4096, "once"), (128, "r2_c9"), (8, "r1_t64_c16"), (1, "r1_t64_c16")]
)
def test_what_an_h200_was_fastest_with(rows: int, words: str) -> None:
    """8 groups, I 2048: the tilings that won there."""
    problem = ActivationQuantizeProblem(layout="ragged", groups=8, m=8 * rows, n=2048)
    choice = jitgen.select(problem, "sm_90a")

    assert choice.config.to_name() == f"ragged_block128_swiglu_{words}"
    assert len(choice.candidates) <= 4


def test_sizes_that_no_vector_covers_are_refused() -> None:
    problem = ActivationQuantizeProblem(layout="ragged", groups=8, m=64, n=2044)

    with pytest.raises(UnsupportedConfig, match="a multiple of 8"):
        jitgen.select(problem, "sm_90a")
    assert jitgen.select(problem, "cpu").config == BLOCKS


@pytest.mark.parametrize("layout", ["ragged", "contiguous", "masked"])
def test_samples_tell_right_from_wrong(layout: str) -> None:
    """The answer itself is right; one step, a scale or a padding row is not."""
    config = replace(BLOCKS, layout=layout)
    (sizes,) = Sizes.of(config, Arch.SM_90A)

    def solved() -> Any:
        case = make(config, sizes, is_exact=True)
        for each in case.outputs:
            each.write(each.expected)
        return case

    assert solved().wrong() == 0
    for name in ("q", "scale"):
        for is_owned in (True, False):
            case = solved()
            output = case.output(name)
            bits_of(output.found)[(*(output.owned == is_owned).nonzero()[0], 1)] ^= 1
            assert case.wrong() > 0, (name, is_owned)


def test_problems_of_the_command_line() -> None:
    assert sum(Sizes.parse("3:100:64", BLOCKS).rows) == 100
    with pytest.raises(ConfigError, match="G:M:I"):
        Sizes.parse("3:100:63", BLOCKS)
