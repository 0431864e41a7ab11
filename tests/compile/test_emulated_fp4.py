# SPDX-License-Identifier: Apache-2.0
"""
Kernels of sm_90a for prepacked weights in the emulator, with problems that `jitgen verify` does not
take by itself: of every layout, kind of activation and edge.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, product

import pytest

from jitgen.config import Config, Layout
from jitgen.ops.grouped_gemm.cases import Sizes
from jitgen.verify import verify
from tests import needs
from tests.covering import covering

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

_CHANCE = random.Random(7)
TILE = 8
MANY_GROUPS = tuple(_CHANCE.choice([0] * 60 + [1, 9]) for _ in range(700))
"""More than the table of tiles has entries: one stands for two groups."""

PROBLEMS = {
    "edges": Sizes(rows=(0, 1, TILE - 1, 0, TILE, TILE + 1, 0), n=200, k=416, num_sms=3),
    "many groups": Sizes(rows=MANY_GROUPS, n=8, k=32, num_sms=2),
    "more tiles than a strip has": Sizes(rows=(0, 11 * TILE + 3, 2), n=264, k=160, num_sms=3),
    "nothing but an end": Sizes(rows=(0, 0, 3), n=8, k=32, num_sms=4),
    "one group": Sizes(rows=(TILE + 1,), n=8, k=32, num_sms=2),
    "no rows": Sizes(rows=(0, 0), n=136, k=128, num_sms=2),
}
KINDS = {
    "exact": "e4m3_e2m1_mx32_bf16_asrow_bexact1",
    "blocks": "e4m3_e2m1_mx32_bf16_asblock128_bfolded1",
    "pairs": "e4m3x2_e2m1_mx32_f16_asrow_bfolded1",
    "wide": "bf16_e2m1_mx32_f32_asnone_bwide1",
    "int4": "e4m3_int4_group32_bf16_asrow_bexact1",
    "int4 pairs": "e4m3x2_int4_group32_f16_asrow_bexact1",
    "int4 wide": "bf16_int4_group32_bf16_asnone_bwide1",
    "int4 of 128": "e4m3_int4_group128_bf16_asblock128_bexact1",
    "int4 of 128, wide": "bf16_int4_group128_f32_asnone_bwide1",
    "nvfp4": "e4m3_e2m1_nv16_bf16_asblock128_bexact1",
    "nvfp4 pairs": "e4m3x2_e2m1_nv16_bf16_asrow_bexact1",
    "nvfp4 wide": "bf16_e2m1_nv16_f16_asnone_bwide1",
    "mxfp8": "e4m3_e4m3_mx32_bf16_asblock128_bexact1",
    "mxfp8 wide": "bf16_e4m3_mx32_bf16_asnone_bwide1",
}
OFTEN = (
    ("nothing but an end", "exact", Layout.RAGGED),
    ("nothing but an end", "int4", Layout.MASKED),
    ("edges", "int4 of 128, wide", Layout.RAGGED),
    ("nothing but an end", "nvfp4", Layout.CONTIGUOUS),
)
"""For every push."""

PAIRS = covering([*product(PROBLEMS, KINDS, Layout)], lambda each: combinations(each, 2))
"""At night: every kind has every problem and every layout, and every layout has every problem."""


@pytest.mark.parametrize(
    ("problem", "kind", "layout"),
    [
        pytest.param(*each, id="-".join(each), marks=() if each in OFTEN else pytest.mark.nightly)
        for each in dict.fromkeys([*OFTEN, *PAIRS])
    ],
)
def test_right(problem: str, kind: str, layout: Layout) -> None:
    """To the bit for integers, within rounding for random numbers; nothing else is written."""
    suffix = "_bias" if "wide" in kind else ""
    name = f"grouped_gemm_{layout}_{KINDS[kind]}_t{TILE}x128x128_c1x1_acc1{suffix}_sm_90a"

    sizes = PROBLEMS[problem]
    if "group128" in name:
        sizes = replace(sizes, k=-(-sizes.k // 128) * 128)

    found = verify(*Config.parse(name), sizes, modes="eager")

    assert found.is_right, found.to_json()


TALL = {
    "folded": ("ragged", "e4m3_e2m1_mx32_bf16_asrow_bfolded1", "t192x128x128_c1x2"),
    "folded, masked": ("masked", "e4m3_e2m1_mx32_bf16_asrow_bfolded1", "t256x128x128_c1x1"),
    "int4": ("ragged", "e4m3_int4_group128_f32_asrow_bexact1", "t256x128x128_c1x2"),
    "int4, masked": ("masked", "e4m3_int4_group128_bf16_asrow_bexact1", "t192x128x128_c1x1"),
}


@pytest.mark.parametrize(
    "kind", ["folded", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in [*TALL][1:])]
)
def test_tall_tiles_are_right(kind: str) -> None:
    """
    Groups end in each quarter of a tile. Clusters have several tiles each, and the last of them
    begins beyond N; the number of k-blocks is odd.
    """
    layout, types, tile = TALL[kind]
    name = f"grouped_gemm_{layout}_{types}_{tile}_acc1_sm_90a"
    quarter = Config.parse(name)[0].tile.m // 4
    rows = (0, 5, quarter + 1, 2 * quarter + 1, 3 * quarter + 1, 4 * quarter + 1)

    found = verify(
        *Config.parse(name), Sizes(rows=rows, n=136, k=256 + 128, num_sms=4), modes="eager"
    )

    assert found.is_right, found.to_json()
