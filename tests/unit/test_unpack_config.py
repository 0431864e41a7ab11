# SPDX-License-Identifier: Apache-2.0
"""`unpack_weights` before it is compiled: names, rules, choices, samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jitgen
from jitgen.config import Arch, BLayout, Config
from jitgen.config.unpack_weights import Tiling, UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.unpack_weights.samples import Sizes, make
from tests.refusals import assert_refused
from tests.strategies import unpack_sweep

EXACT = UnpackWeightsConfig(b_layout=BLayout.EXACT1)
PROBLEM = UnpackWeightsProblem(groups=32, m=32 * 4096, k=7168)


def test_both_layouts_have_kernels() -> None:
    configs = unpack_sweep(Arch.SM_90A)

    assert {config.b_layout for config in configs} == {BLayout.EXACT1, BLayout.FOLDED1}


@pytest.mark.parametrize("words", ["exact1_k16", "exact2", "exact1_pdl_k4", ""])
def test_what_is_no_name(words: str) -> None:
    """Each kernel has one name, in which a default does not show."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(f"unpack_weights_{words}_sm_90a")


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(EXACT, b_layout=BLayout.WIDE1), "E_B_LAYOUT"),
        (replace(EXACT, tiling=Tiling(columns=5)), "E_COLUMNS"),
        (replace(EXACT, tiling=Tiling(ctas_per_sm=9)), "E_CTAS_PER_SM"),
        (replace(EXACT, tiling=Tiling(ctas_per_sm=8)), "E_REGS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_sm_90a(config: UnpackWeightsConfig, code: str) -> None:
    assert_refused(config, "sm_90a", code)


def test_the_choice_takes_longer_for_more() -> None:
    """Of 0.94 GB that are written and 0.5 that are read, a third of a millisecond or so."""
    choice = jitgen.select(PROBLEM, "sm_90a")
    half = jitgen.select(replace(PROBLEM, groups=16, m=PROBLEM.m // 2), "sm_90a")

    assert 300 < choice.candidates[0].cost < 600
    assert half.candidates[0].cost < choice.candidates[0].cost < 2 * half.candidates[0].cost
    assert PROBLEM.result_bytes == 32 * 4096 * (7168 + 4)


def test_wide_weights_have_no_kernel() -> None:
    with pytest.raises(UnsupportedConfig, match="weights prepacked as wide1 -> e4m3"):
        jitgen.select(replace(PROBLEM, b_layout=BLayout.WIDE1), "sm_90a")


def test_other_sizes_have_none() -> None:
    with pytest.raises(UnsupportedConfig, match="K a multiple of 16 on sm_90a"):
        jitgen.select(replace(PROBLEM, k=40), "sm_90a")


def test_samples() -> None:
    """They tell a wrong value and a wrong scale."""
    sizes = Sizes.parse("2:72:416", EXACT)
    case = make(EXACT, sizes, is_exact=True)
    assert case.wrong() == sum(each.found.numel() for each in case.outputs)
    for each in case.outputs:
        each.write(each.expected)
    assert case.wrong() == 0
    case.output("b_scale").found[1, 3] *= 2

    assert case.wrong() == 1


@pytest.mark.parametrize("text", ["2:72", "2:70:416", "2:72:40", "0:72:416"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="is not G:N:K"):
        Sizes.parse(text, EXACT)
