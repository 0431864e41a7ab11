# SPDX-License-Identifier: Apache-2.0
"""
The registers that sm_90a's rules say a thread of `activation_quantize` needs: with them kernels
spill a few instructions at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch
from jitgen.config.activation_quantize import (
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
    Tiling,
)
from jitgen.targets.activation_quantize_space import USUAL
from jitgen.targets.base import kinds_of
from jitgen.targets.legality import check, rules
from tests import needs
from tests.covering import covering

pytestmark = [needs.compiler, needs.linker]

OF = rules(Arch.SM_90A, "activation_quantize")
SHARES = [
    *[(256, 6), (256, 5), (128, 9), (256, 4), (128, 7), (128, 6)],
    *[(128, 5), (256, 2), (128, 3), (128, 2)],
]
"""Threads and CTAs of an SM, from the fewest registers of a thread, 40, to the most."""

MOST_SPILLS, MOST_STACK_BYTES = 12, 40
"""
What 36 kernels of 420 kinds spill, with `swiglu_step`, `swiglu_bias` and tanh. It costs nothing: on
an H200, with 256, 4,096 and 32,768 rows, two of them took as long as with one CTA of an SM less, or
3 % less time, and two that do not spill took up to 2 and 12 % less.
"""

KIND = ("layout", "scale_granularity", "activation", "interleaved", "power_of_two", "per_group")
KINDS = [
    kind
    for kind in kinds_of(USUAL)
    if kind.scale_granularity.has_own_scales or not kind.power_of_two
]
EXTREMES = [
    "masked_block128_swiglu_oai_interleaved_pow2_c6",
    "contiguous_none_swiglu_t256_c2",
    "masked_row_swiglu_oai_interleaved_pow2_r2_c5",
    "contiguous_block128_swiglu_oai_interleaved_pow2_r2_c5_ahead",
    "masked_row_swiglu_bias_interleaved_pergroup_r2_c5",
]
"""Where the rules leave nothing over, of the kinds that take most."""


def triples(kind: ActivationQuantizeConfig) -> Iterator[object]:
    """Yield the values of each three fields."""
    yield from combinations([(name, getattr(kind, name)) for name in KIND], 3)


def tightest(kind: ActivationQuantizeConfig) -> Iterator[ActivationQuantizeConfig]:
    """Yield of each tile the config that leaves a thread the fewest registers."""
    for rows in (1, 2, 4, 8):
        for held, loads_ahead in ((1, False), (1, True), (2, False), (4, False)):
            every = (
                replace(
                    kind,
                    tiling=Tiling(
                        rows=rows, held=held, loads_ahead=loads_ahead, threads=t, ctas_per_sm=c
                    ),
                )
                for t, c in SHARES
            )
            config = next((each for each in every if check(each, "sm_90a")), None)
            if config is not None:
                yield config


def spills(config: ActivationQuantizeConfig) -> str:
    """Return what is wrong with the registers of a kernel, if anything is."""
    made = compiler.compile_source(render(config, Arch.SM_90A))
    found = inspect.resources(made.files[made.library])
    allowed = OF.derive(config).registers
    is_much = found.spill_instructions > MOST_SPILLS or found.stack_bytes > MOST_STACK_BYTES
    if is_much or found.registers > allowed:
        return f"{config.to_name()}: {found}"
    return ""


@pytest.mark.parametrize("words", EXTREMES)
def test_the_extreme_ones(words: str) -> None:
    config = ActivationQuantizeConfig.parse_name(words)

    assert config is not None
    assert config in list(tightest(replace(config, tiling=Tiling())))
    assert not spills(config)


def test_spills_are_told_by_line() -> None:
    """With twice as many CTAs on an SM as the rules allow the same source spills."""
    config = ActivationQuantizeConfig.parse_name(EXTREMES[1])
    assert config is not None
    source = render(config, Arch.SM_90A)
    more = re.sub(r"^CTAS_PER_SM = \d+", "CTAS_PER_SM = 8", source.text, flags=re.MULTILINE)
    crowded = replace(source, text=more)

    found = inspect.spill_lines(crowded)

    assert found
    text = crowded.text.splitlines()
    assert all(text[line - 1].strip() for line in found)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", covering(KINDS, triples))
def test_kinds_of_every_three_fields(kind: ActivationQuantizeConfig) -> None:
    """The tightest of every tile, and all that may be chosen."""
    problem = ActivationQuantizeProblem(
        groups=1, m=8, n=2048, **{name: getattr(kind, name) for name in KIND}
    )
    wrong = {*map(spills, {*tightest(kind), *OF.candidates(problem)})} - {""}

    assert not wrong


@pytest.mark.parametrize(
    ("threads", "ctas", "registers"),
    [(256, 6, 40), (128, 7, 72), (64, 16, 64), (64, 9, 96), (32, 9, 168), (128, 1, 255)],
)
def test_an_sm_deals_its_warps_to_four_parts(threads: int, ctas: int, registers: int) -> None:
    """Each with a quarter of the registers: nine pairs of warps leave one part five of them."""
    tiling = Tiling(rows=1, threads=threads, ctas_per_sm=ctas)
    config = ActivationQuantizeConfig(layout="ragged", tiling=tiling)
    verdict = check(config, "sm_90a")
    if registers == 40:
        assert verdict.code == "E_REGS"
        assert "1536 threads leave each 40" in verdict.reason
    else:
        assert OF.derive(config).registers == registers
