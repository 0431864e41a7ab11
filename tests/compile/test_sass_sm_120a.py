# SPDX-License-Identifier: Apache-2.0
"""
What ptxas makes of the menu of sm_120a: no spills, and no more instructions in the loop over
k-blocks than are written here.
"""

from __future__ import annotations

from functools import cache

import pytest

from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.targets.legality import check
from tests import needs
from tests.candidates import candidates
from tests.sass import k_loop

pytestmark = [
    needs.compiler,
    pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]"),
]

SM_120A = Arch("sm_120a")
MIXED = Operands(b_dtype=DType.E2M1, scale_granularity=ScaleGranularity.MX32)
MXFP8 = Operands(scale_granularity=ScaleGranularity.MX32)
MXFP4 = Operands(a_dtype=DType.E2M1, b_dtype=DType.E2M1, scale_granularity=ScaleGranularity.MX32)
NVFP4 = Operands(a_dtype=DType.E2M1, b_dtype=DType.E2M1, scale_granularity=ScaleGranularity.NV16)
BF16 = Operands(
    a_dtype=DType.BF16,
    b_dtype=DType.E2M1,
    scale_granularity=ScaleGranularity.MX32,
    a_scale_granularity=ScaleGranularity.NONE,
)
KINDS = {
    "mixed": MIXED,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "block128": Operands(),
    "bf16": BF16,
}
MENU = [
    (kind, config)
    for kind, operands in KINDS.items()
    for layout in Layout
    for config in candidates(SM_120A, layout, operands)
]
OFTEN = (
    "mixed",
    GroupedGemmConfig(
        layout=Layout.RAGGED,
        operands=MIXED,
        tile=Tile(m=8, n=128, k=256),
        schedule=Schedule(raster=1, stream_b=True),
    ),
)
"""What few rows take, for every push."""

LOOPS = {
    "mixed": {
        (8, 512): 269,
        (8, 256): 152,
        (16, 256): 187,
        (32, 256): 274,
        (64, 128): 245,
        (128, 128): 360,
    },
    "mxfp8": {
        (8, 256): 71,
        (8, 128): 54,
        (16, 128): 62,
        (32, 128): 89,
        (64, 128): 131,
        (128, 128): 244,
    },
    "mxfp4": {
        (8, 512): 79,
        (8, 256): 58,
        (16, 256): 71,
        (32, 256): 93,
        (64, 256): 138,
        (128, 128): 149,
    },
    "nvfp4": {
        (8, 512): 103,
        (8, 256): 69,
        (16, 256): 81,
        (32, 256): 100,
        (64, 256): 137,
        (128, 128): 145,
    },
    "block128": {(8, 128): 53, (16, 128): 65, (32, 128): 100, (64, 128): 146, (128, 128): 260},
    "bf16": {
        (8, 256): 506,
        (16, 256): 536,
        (32, 128): 331,
        (64, 128): 614,
        (128, 128): 765,
    },
}
"""
Instructions of a math warp for a k-block, by rows and depth of the tile. Contiguous rows take three
or four more than others, and the widest of bf16 a few dozen.
"""

LOAD = 75
"""Of the load warp: four copies, of which an operand of more than 128 bytes a row is several."""

MULTIPLY = {"mixed": 32, "mxfp8": 32, "mxfp4": 64, "nvfp4": 64, "block128": 32, "bf16": 16}
"""Values along K of one matrix instruction, of 16 weights and 8 tokens."""


@cache
def library(config: GroupedGemmConfig) -> bytes:
    made = compiler.compile_source(render(config, SM_120A), links=False)
    return made.files[made.library]


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        pytest.param(
            *each,
            id=each[1].name(SM_120A),
            marks=() if each == OFTEN else pytest.mark.nightly,
        )
        for each in MENU
    ],
)
def test_menu(kind: str, config: GroupedGemmConfig) -> None:
    """As few instructions as they were; fewer are welcome. And nothing is kept in memory."""
    tile, text = config.tile, inspect.sass(library(config))
    derived = check(config, SM_120A).derived
    name = {16: "HMMA", 32: "QMMA", 64: "OMMA"}[MULTIPLY[kind]]
    loop = k_loop(text, name)
    parts = tile.m // 8 // derived.warps_m * (tile.n // 16 // derived.warps_n)

    assert inspect.resources(library(config)).stack_bytes == 0
    assert loop.count(name) == parts * tile.k // MULTIPLY[kind]
    assert loop.count("LDL") == loop.count("STL") == 0
    assert len(loop) <= LOOPS[kind][tile.m, tile.k]
    assert len(k_loop(text, "UTMALDG")) <= LOAD


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [32, 64, 128])
def test_spills_of_every_tile(kind: str, n: int) -> None:
    """None, whatever the rows; of the deepest stages that fit."""
    for m in range(8, 129, 8):
        for k in (512, 256, 128):
            config = GroupedGemmConfig(
                layout=Layout.RAGGED, operands=KINDS[kind], tile=Tile(m=m, n=n, k=k)
            )
            if check(config, SM_120A):
                assert inspect.resources(library(config)).stack_bytes == 0, config.name(SM_120A)
                break
