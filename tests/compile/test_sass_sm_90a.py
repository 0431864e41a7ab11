# SPDX-License-Identifier: Apache-2.0
"""
What ptxas makes of the kernels of sm_90a for prepacked weights: no spills, matrix instructions that
wait once a k-block, and no more instructions in a k-block than are written here.

Four math warpgroups share the issue slots of an SM, so that each instruction of a k-block counts.
"""

from __future__ import annotations

from functools import cache

import pytest

from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.prepacked import PrepackedFormat
from jitgen.targets.fp4_space import format_of
from jitgen.targets.sm_90a.fp4 import OPERANDS
from tests import needs
from tests.candidates import candidates
from tests.sass import k_loop

pytestmark = [
    needs.compiler,
    pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]"),
]

MENU = [
    config
    for layout in Layout
    for types in OPERANDS
    if types.out_dtype is DType.BF16 and format_of(types) is PrepackedFormat.MXFP4
    for config in candidates(Arch.SM_90A, layout, types)
]
OTHERS = [
    config
    for types in OPERANDS
    if types.out_dtype is DType.BF16 and format_of(types) is not PrepackedFormat.MXFP4
    if types.a_scale_granularity is not ScaleGranularity.BLOCK128
    if types.a_dtype is not DType.E4M3X2
    for config in candidates(Arch.SM_90A, Layout.RAGGED, types)
]
"""Kernels for other formats, of one kind of activations for each layout."""

INSTRUCTIONS = {
    BLayout.EXACT1: {8: 113, 16: 129, 32: 165, 64: 224},
    BLayout.FOLDED1: {8: 135, 16: 139, 32: 144, 64: 163, 128: 198},
    BLayout.WIDE1: {8: 192, 16: 192, 32: 192, 64: 192, 128: 192},
}
"""Of a warp for a k-block, by the rows of a in a tile."""

OF_OTHERS = {
    (PrepackedFormat.INT4_32, BLayout.EXACT1): 160,
    (PrepackedFormat.INT4_32, BLayout.WIDE1): 156,
    (PrepackedFormat.INT4_128, BLayout.EXACT1): 130,
    (PrepackedFormat.INT4_128, BLayout.WIDE1): 142,
    (PrepackedFormat.NVFP4, BLayout.EXACT1): 164,
    (PrepackedFormat.NVFP4, BLayout.WIDE1): 204,
    (PrepackedFormat.MXFP8, BLayout.EXACT1): 100,
    (PrepackedFormat.MXFP8, BLayout.WIDE1): 214,
}
"""The same of other formats, in the loop of the narrowest WGMMAs."""

OF_SCALES = {8: 7, 16: 13, 32: 25, 64: 50}
"""More with a scale for each row of a and 128 of K."""

OF_VOTES = 9
"""
More of contiguous kernels, of which ptxas does not see that warps stay together. So it waits for
each partial sum of two k-blocks, where kernels of other layouts wait once.
"""

MMAS = {DType.BF16: ("HGMMA", 8)}
"""Matrix instructions and how many a k-block has, where they are not four of FP8."""


@cache
def library(config: GroupedGemmConfig) -> bytes:
    made = compiler.compile_source(render(config, Arch.SM_90A), links=False)
    return made.files[made.library]


def rows(config: GroupedGemmConfig) -> int:
    return config.tile.m * (2 if config.operands.a_dtype is DType.E4M3X2 else 1)


def most(config: GroupedGemmConfig) -> int:
    """Return how many instructions a k-block may have."""
    types = config.operands
    count = INSTRUCTIONS[types.b_layout][rows(config)]
    if types.a_scale_granularity is ScaleGranularity.BLOCK128:
        count += OF_SCALES[rows(config)]
    return count + (OF_VOTES if config.layout is Layout.CONTIGUOUS else 0)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            config,
            id=config.name(Arch.SM_90A),
            marks=() if number == 0 else pytest.mark.nightly,
        )
        for number, config in enumerate(MENU)
    ],
)
def test_menu(config: GroupedGemmConfig) -> None:
    """One for every push: few tokens and four warpgroups, for which the kernels are made."""
    found = inspect.resources(library(config))
    name, count = MMAS.get(config.operands.a_dtype, ("QGMMA", 4))
    loop = k_loop(inspect.sass(library(config)), name)
    blocks = loop.count(name) / count

    assert found.stack_bytes == found.spill_instructions == 0
    assert not {"LDL", "STL"} & {*loop.names}
    assert blocks in (1, 2)
    # It arrives, and waits once. Of two k-blocks with partial sums the second may arrive for each.
    partials = 4 if config.operands.b_layout is BLayout.EXACT1 else 1
    more = (blocks - 1) * (partials - 1) * (4 if config.layout is Layout.CONTIGUOUS else 1)
    assert 0 <= loop.count("WARPGROUP") - 2 * blocks <= more
    assert len(loop) <= most(config) * blocks


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            config,
            id=config.name(Arch.SM_90A),
            marks=() if number == 0 else pytest.mark.nightly,
        )
        for number, config in enumerate(OTHERS)
    ],
)
def test_other_formats(config: GroupedGemmConfig) -> None:
    types = config.operands
    found = inspect.resources(library(config))
    form = format_of(types)
    name, count = MMAS.get(types.a_dtype, ("QGMMA", 8 if form is PrepackedFormat.NVFP4 else 4))
    loop = k_loop(inspect.sass(library(config)), name)

    assert found.stack_bytes == found.spill_instructions == 0
    assert not {"LDL", "STL"} & {*loop.names}
    assert len(loop) <= OF_OTHERS[form, types.b_layout] * loop.count(name) / count


def test_the_menu_has_every_kind() -> None:
    prepacked = {each for each in BLayout if each.is_prepacked}
    assert {config.operands.b_layout for config in MENU} == prepacked
    assert {config.layout for config in MENU} == {*Layout}
    assert len(MENU) > 100
