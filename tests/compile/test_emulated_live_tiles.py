# SPDX-License-Identifier: Apache-2.0
"""
Contiguous kernels with tiles of fewer than 128 rows on an emulated GPU: only tiles with rows are
dealt. Kernels for MXFP4 weights load and multiply no more of one than reaches to its last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.config import Arch, BLayout
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.emulator import Run
from jitgen.ops.grouped_gemm.samples import Solved
from jitgen.targets.legality import require
from jitgen.verify import device, emulate
from jitgen.verify.artifacts import compiled
from tests import needs
from tests.compile.kernels import often
from tests.problems import make_for, verify_exact

pytestmark = [needs.compiler, needs.linker]

NUM_SMS = 4
ALONE = GroupedGemmConfig(
    layout="contiguous",
    operands=Operands(scale_granularity="row"),
    tile=Tile(m=64, n=32, k=128),
    schedule=Schedule(raster=1),
)
PAIR = replace(ALONE, cluster=Cluster(n=2), schedule=Schedule())
SPLIT = replace(ALONE, schedule=Schedule(split_k=2))
FULL = GroupedGemmConfig(
    layout="contiguous",
    operands=Operands(a_dtype="bf16", b_dtype="bf16", out_dtype="f32", scale_granularity="row"),
    tile=Tile(m=64, n=256, k=64),
)
"""Its stages leave room for a short list."""


def prepacked(tokens: int, **changes: object) -> GroupedGemmConfig:
    """Return a kernel for MXFP4 weights with tiles of so many rows."""
    config = GroupedGemmConfig(
        layout="contiguous",
        operands=Operands(
            b_dtype="e2m1",
            scale_granularity="mx32",
            a_scale_granularity="row",
            b_layout="exact1",
        ),
        tile=Tile(m=tokens, n=128, k=128),
    )
    return replace(config, **changes)


SHORT = prepacked(8)
KINDS = [
    pytest.param(ALONE, id="64"),
    pytest.param(SHORT, id="8"),
    *(pytest.param(prepacked(m), id=f"{m}", marks=pytest.mark.nightly) for m in (16, 32)),
]


@pytest.fixture(autouse=True)
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    """An emulated H100 with few SMs, so that a CTA gets several tiles."""
    with device("sm_90a", num_sms=NUM_SMS):
        yield


def thinned(
    config: GroupedGemmConfig, groups: int, rows: slice | list[int], n: int = 40, k: int = 0
) -> Solved:
    """Return a problem with a block of 128 rows for each group, of which these are left."""
    k = k or (32 if config.operands.b_layout.is_prepacked else 16)
    case = make_for(config, [128] * groups, n, k, is_exact=True)
    left = torch.full((128,), False)
    left[rows] = True
    owners = case.call.groups
    owners = torch.where(left.repeat(len(owners) // 128), owners, -1)
    return Solved.of(replace(case.call, groups=owners), is_exact=True)


def run(config: GroupedGemmConfig, case: Solved) -> torch.Tensor:
    return jitgen.grouped_gemm(**case.arguments, config=config)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize(
    "rows",
    [
        slice(0, 0),
        slice(0, 1),
        slice(63, 64),
        slice(63, 65),
        slice(127, 128),
        slice(40, 90, 3),
        slice(0, 128),
    ],
    ids=lambda rows: f"{rows.start}-{rows.stop}",
)
def test_rows_anywhere_in_a_block(config: GroupedGemmConfig, rows: slice) -> None:
    """In one part of it, in several or in none, and no part needs to begin with one."""
    case = thinned(config, 9, rows)

    verify_exact(case, run(config, case))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config",
    [PAIR, SPLIT, prepacked(16, schedule=Schedule(split_k=2))],
    ids=["pair", "split K", "16, split K"],
)
def test_clusters_agree(config: GroupedGemmConfig) -> None:
    """All CTAs of a cluster list the same tiles: else they wait for each other for ever."""
    case = thinned(config, 9, slice(60, 64), n=72)

    verify_exact(case, run(config, case))


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("groups", [[128], [0, 0, 3, 0], [0, 0], [1] * 12], ids=str)
def test_groups_without_rows_and_blocks_without_a_group(
    config: GroupedGemmConfig, groups: list[int]
) -> None:
    case = make_for(config, groups, 40, 160, is_exact=True)

    verify_exact(case, run(config, case))


@pytest.mark.parametrize("config", KINDS)
def test_a_group_that_does_not_exist_is_padding(config: GroupedGemmConfig) -> None:
    """As in tiles of 128 rows, whatever a careless caller marks padding with."""
    case = thinned(config, 3, slice(64))
    strange = torch.where(case.call.groups < 0, 3, case.call.groups)
    out = run(config, Solved.of(case.call, is_exact=True))
    again = jitgen.grouped_gemm(
        **{**case.arguments, "m_indices": strange, "out": torch.full_like(out, float("nan"))},
        config=config,
    )

    assert torch.equal(again.nan_to_num(), out.nan_to_num())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [slice(0), slice(63, 64), slice(64, 65), slice(128)], ids=str)
def test_more_tiles_than_the_list_has_entries(rows: slice) -> None:
    """Those beyond it are dealt as they come, padding among them."""
    entries = require(FULL, Arch.SM_90A).derived.max_entries  # type: ignore[attr-defined]
    case = thinned(FULL, entries // 2 + 3, rows, n=8)

    assert 0 < entries < len(case.call.groups) // 64 - 4
    verify_exact(case, run(FULL, case))


def emulated(config: GroupedGemmConfig, case: Solved) -> Run:
    """Return what was executed; the result is right."""
    artifact = compiled(render(config, Arch.SM_90A))
    report = emulate(artifact, *case.tensors, NUM_SMS, modes="eager", num_sms=NUM_SMS)

    assert report.is_clean
    assert case.wrong() == 0
    return report.runs[0]


def dealt(config: GroupedGemmConfig, case: Solved) -> int:
    """Return how much was done to find tiles: as much for each that is dealt."""
    return emulated(config, case).warp_instructions["raster"]


def test_tiles_of_padding_are_not_dealt() -> None:
    """Six tiles are as much work, however many others there are."""
    few = make_for(ALONE, [64, 0, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 129], 32, 16)
    some = thinned(ALONE, 6, slice(64), n=32)
    all_of_them = thinned(ALONE, 3, slice(128), n=32)

    assert dealt(ALONE, some) == dealt(ALONE, all_of_them)
    assert dealt(ALONE, few) == dealt(ALONE, some)


@pytest.mark.parametrize("tokens", [8, pytest.param(16, marks=pytest.mark.nightly), 32])
def test_short_tiles_of_padding_are_not_dealt(tokens: int) -> None:
    """Those of one whole block are as much work as one tile of each of several blocks."""
    config, count = prepacked(tokens), 128 // tokens
    some = thinned(config, count, slice(tokens - 1, tokens))
    others = thinned(config, count, slice(128 - tokens, 128 - tokens + 1))
    whole = thinned(config, 1, slice(128))

    assert dealt(config, some) == dealt(config, others) == dealt(config, whole)


def beside(
    a_dtype: str, a_scales: str, b_layout: str, m: int, n: int, **changes: object
) -> GroupedGemmConfig:
    """Return a kernel for MXFP4 weights of these types with tiles of m x n."""
    types = replace(
        SHORT.operands, a_dtype=a_dtype, a_scale_granularity=a_scales, b_layout=b_layout
    )
    return prepacked(m, operands=types, tile=Tile(m=m, n=n, k=128), **changes)


TALL = {
    "exact": prepacked(32),
    "pairs": beside("e4m3x2", "row", "exact1", 16, 256),
    "folded": beside("e4m3", "row", "folded1", 128, 192),
    "blocks, split K": beside("e4m3", "block128", "folded1", 32, 128, schedule=Schedule(split_k=2)),
    "wide": beside("bf16", "none", "wide1", 64, 128),
}
"""Kernels with three widths of WGMMAs."""
PLACES = {
    "0": (1, slice(0, 1)),
    "0-7": (1, slice(0, 8)),
    "3, 7": (1, [3, 7]),
    "0-8": (2, slice(0, 9)),
    "1, 15": (2, [1, 15]),
    "0, 16": (4, [0, 16]),
    "31": (4, [31]),
}
"""Rows of a tile, in 32nds of it, and how many quarters reach to the last one."""
OFTEN = {("exact", "0-7"), ("exact", "1, 15"), ("wide", "3, 7")}
"""For every push."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "place"),
    often(product(TALL, PLACES), OFTEN, "-".join),
)
def test_no_more_is_loaded_and_multiplied_than_reaches_to_the_last_row(
    kind: str, place: str
) -> None:
    """
    A quarter, a half or all of a tile, whatever padding is among its rows; behind the last one it
    used to be loaded and multiplied, too.
    """
    config, (quarters, places) = TALL[kind], PLACES[place]
    rows = (torch.arange(32)[places] * config.tile.m // 32).unique().tolist()
    last = thinned(config, 3, [config.tile.m - 1], k=416)
    found, whole = emulated(config, thinned(config, 3, rows, k=416)), emulated(config, last)
    missing = (4 - quarters) * config.tile.m // 4 * config.operands.a_dtype.bits // 8
    loads = 3 * 4 * 128  # of three tiles and four k-blocks, each 128 deep

    assert found.counts["matrix_instructions"] == whole.counts["matrix_instructions"]
    assert found.counts["bulk_load_bytes"] == whole.counts["bulk_load_bytes"] - loads * missing
    if config.operands.b_layout is not BLayout.WIDE1:  # which has no sums to promote
        part = found.warp_instructions["promote"] / whole.warp_instructions["promote"]
        assert part == pytest.approx(quarters / 4, rel=0.05)
