# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` on an emulated B200: as `test_emulated_grouped_gemm` on sm_90a, and pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.errors import InputError
from jitgen.verify import device
from tests import needs
from tests.problems import POISON, make, make_for, verify, verify_exact

pytestmark = [needs.compiler, needs.linker]

TILE = 128
ROWS = [
    [0, 1, TILE - 1, 0, TILE, TILE + 1, 0],  # empty groups first, last and between; around a tile
    [2 * TILE - 1, 0, 2 * TILE + 1, 33, 2 * TILE],  # around that of a pair; a part and a row
    [17],
    [0, 0, 3],
    [0, 0],
]
SIZES = [(136, 272), (200, 400), (8, 16)]
"""N and K with tails of every kind, each smaller or larger than a tile."""


@pytest.fixture(autouse=True)
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    """An emulated B200 with few SMs, so that a CTA gets several tiles."""
    with device("sm_100a", num_sms=4):
        yield


def config(
    layout: Layout | str,
    scales: ScaleGranularity | str = "block128",
    *,
    n: int = 64,
    is_pair: bool = False,
    cluster: Cluster | None = None,
    stages: int = 2,
    out_dtype: DType = DType.BF16,
) -> GroupedGemmConfig:
    return GroupedGemmConfig(
        layout=layout,
        operands=Operands(out_dtype=out_dtype, scale_granularity=scales),
        tile=Tile(m=TILE * (1 + is_pair), n=n, k=128),
        cluster=cluster or Cluster(m=1 + is_pair),
        pipeline=Pipeline(num_acc_stage=stages),
        schedule=Schedule(two_cta=is_pair),
    )


GRANULARITIES = (ScaleGranularity.TENSOR, ScaleGranularity.ROW, ScaleGranularity.BLOCK128)
KINDS = [*product(Layout, GRANULARITIES, (False, True))]
OFTEN = {(Layout.RAGGED, ScaleGranularity.BLOCK128, True)}
"""What models use most, by a pair: for every push."""


@pytest.mark.parametrize(
    ("layout", "scales", "is_pair"),
    [
        pytest.param(
            *kind,
            marks=() if kind in OFTEN else pytest.mark.nightly,
            id=f"{kind[0]}-{kind[1]}-{'pair' if kind[2] else 'alone'}",
        )
        for kind in KINDS
    ],
)
class TestEveryLayoutAndScale:
    @pytest.mark.parametrize(
        ("n", "k"), [SIZES[0], *(pytest.param(*nk, marks=pytest.mark.nightly) for nk in SIZES[1:])]
    )
    def test_exact(
        self, layout: Layout, scales: ScaleGranularity, is_pair: bool, n: int, k: int
    ) -> None:
        """Small integers and power-of-two scales: every bit is right, and unowned rows stay."""
        forced = config(layout, scales, is_pair=is_pair)
        for rows in ROWS if (n, k) == SIZES[0] else ROWS[:1]:
            case = make(layout, scales, rows, n, k, is_exact=True)

            verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))

    def test_random(self, layout: Layout, scales: ScaleGranularity, is_pair: bool) -> None:
        case = make(layout, scales, [3, 0, TILE + 5], 136, 656)
        forced = config(layout, scales, is_pair=is_pair)

        verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.parametrize(
    ("forced", "n"),
    [
        pytest.param(forced, n, id=forced.name("sm_100a"), marks=marks)
        for forced, n, marks in [
            (config("masked", "row", cluster=Cluster(n=2), out_dtype=DType.F32, n=32), 68, ()),
            (config("ragged", cluster=Cluster(m=2), n=192), 392, pytest.mark.nightly),
            (config("contiguous", cluster=Cluster(m=2)), 136, pytest.mark.nightly),
            (config("contiguous", cluster=Cluster(n=2), n=128), 264, pytest.mark.nightly),
            (config("masked", cluster=Cluster(m=2), stages=1), 136, pytest.mark.nightly),
            (config("ragged", n=256, is_pair=True), 264, pytest.mark.nightly),
            (config("contiguous", n=192, is_pair=True), 200, pytest.mark.nightly),
            (config("masked", n=32, is_pair=True, stages=4), 72, pytest.mark.nightly),
            (config("ragged", "tensor", out_dtype=DType.F16), 72, pytest.mark.nightly),
            (config("contiguous", is_pair=True, out_dtype=DType.F32), 68, pytest.mark.nightly),
            (config("ragged", "row", n=256, stages=1), 264, pytest.mark.nightly),
        ]
    ],
)
def test_other_tiles_clusters_and_types(forced: GroupedGemmConfig, n: int) -> None:
    """K and N end with 16 bytes more than whole instructions and tiles."""
    exact = make_for(forced, ROWS[0], n, 272, is_exact=True)
    case = make_for(forced, [3, 0, 2 * TILE + 5], n, 272)

    verify_exact(exact, jitgen.grouped_gemm(**exact.arguments, config=forced))
    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.parametrize(
    ("layout", "is_pair"),
    [
        pytest.param(*kind, marks=() if kind == (Layout.RAGGED, False) else pytest.mark.nightly)
        for kind in product(Layout, (False, True))
    ],
)
def test_weights_that_the_tma_unit_unpacks(layout: Layout, is_pair: bool) -> None:
    """MXFP4 weights with MXFP8 activations; other K than whole 128 are refused, and odd places."""
    plain = config(layout, "mx32", is_pair=is_pair)
    forced = replace(plain, operands=replace(plain.operands, b_dtype=DType.E2M1))
    case = make_for(forced, [3, 0, 9], 72, 256)
    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))

    b = case.arguments["b"]
    moved = torch.empty(b.numel() + 16, dtype=b.dtype)[16:].view(b.shape)
    with pytest.raises(InputError, match=r"b: must .* 32"):
        jitgen.grouped_gemm(**case.arguments | {"b": moved}, config=forced)
    case = make_for(forced, [3], 136, 416)
    with pytest.raises(InputError, match=r"K a multiple of 128 .* unpacks so many e2m1 values"):
        jitgen.grouped_gemm(**case.arguments, config=forced)


@pytest.mark.nightly
@pytest.mark.parametrize("is_pair", [False, True])
def test_more_than_one_chunk_of_weight_scales(is_pair: bool) -> None:
    """More than 32 blocks of K."""
    forced = config("ragged", is_pair=is_pair)
    case = make("ragged", "block128", [3, 0, 9], 72, 4096 + 400)

    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", Layout)
def test_what_the_selector_chooses(layout: Layout) -> None:
    """Also for results of other types."""
    for out_dtype in (DType.BF16, DType.F16, DType.F32):
        case = make(layout, "block128", [40, 0, 300, 7], 264, 272, out_dtype=out_dtype)

        verify(case, jitgen.grouped_gemm(**case.arguments))


@pytest.mark.nightly
def test_scales_in_the_other_order() -> None:
    case = make("ragged", "block128", [20, 0, 7], 72, 272)
    forced = config("ragged", is_pair=True)
    other = {**case.arguments, "a_scale": case.arguments["a_scale"].contiguous()}
    for arguments in (case.arguments, other, case.arguments):
        arguments["out"].fill_(POISON)

        verify(case, jitgen.grouped_gemm(**arguments, config=forced))


@pytest.mark.parametrize(
    "start", [3, *(pytest.param(start, marks=pytest.mark.nightly) for start in (0, 1, 2))]
)
def test_a_tile_starts_at_any_row(start: int) -> None:
    """Boxes of activation scales start at a multiple of four rows, tiles do not."""
    case = make("ragged", "block128", [start, TILE + 2, 5], 72, 272, is_exact=True)
    forced = config("ragged", is_pair=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
@pytest.mark.parametrize("is_pair", [False, True])
def test_more_groups_than_the_table_has_entries(layout: Layout, is_pair: bool) -> None:
    """Then several groups share an entry: two, with rows in either; and the last entry has one."""
    rows = [0] * 1023
    rows[0], rows[1], rows[6], rows[9] = 3, 1, TILE + 2, 2
    rows[510], rows[1021], rows[1022] = 1, 4, 2
    case = make(layout, "tensor", rows, 16, 16, is_exact=True)
    forced = config(layout, "tensor", is_pair=is_pair)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))
