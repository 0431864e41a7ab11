# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` on an emulated GPU: every layout, scale and edge, as on cpu and on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Tile
from jitgen.errors import InputError
from jitgen.verify import device
from tests import needs
from tests.compile.kernels import often
from tests.problems import POISON, make, make_for, verify, verify_exact

pytestmark = [needs.compiler, needs.linker]

TILE = 64
ROWS = [
    [0, 1, TILE - 1, 0, TILE, TILE + 1, 0],  # empty groups first, last and between; around a tile
    [17],
    [0, 0, 3],
    [0, 0],
]
SIZES = [(136, 272), (200, 400), (8, 16)]
"""N and K with tails of every kind, each smaller or larger than a tile."""


@pytest.fixture(autouse=True)
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    """An emulated H100 with few SMs, so that a CTA gets several tiles."""
    with device("sm_90a", num_sms=4):
        yield


def config(layout: Layout, scales: ScaleGranularity) -> GroupedGemmConfig:
    return GroupedGemmConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=TILE, n=64, k=128),
        cluster=Cluster(n=2),
    )


PAIRS = [*product(Layout, FLOAT_SCALES)]
OTHER_LAYOUTS = (Layout.CONTIGUOUS, Layout.MASKED)
OFTEN = {*PAIRS[::4], (Layout.RAGGED, ScaleGranularity.BLOCK128)}
"""Every layout and every kind of scale, and what models use most: for every push."""


@pytest.mark.parametrize(
    ("layout", "scales"),
    often(PAIRS, OFTEN, "-".join),
)
class TestEveryLayoutAndScale:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize(("n", "k"), SIZES)
    def test_exact(self, layout: Layout, scales: ScaleGranularity, n: int, k: int) -> None:
        """Small integers and power-of-two scales: every bit is right, and unowned rows stay."""
        for rows in ROWS if (n, k) == SIZES[0] else ROWS[:1]:
            case = make(layout, scales, rows, n, k, is_exact=True)

            verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=config(layout, scales)))

    @pytest.mark.sampled(2)
    def test_random(self, layout: Layout, scales: ScaleGranularity) -> None:
        case = make(layout, scales, [3, 0, TILE + 5], 136, 656)

        verify(case, jitgen.grouped_gemm(**case.arguments, config=config(layout, scales)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("layout", "dtype", "scales", "out_dtype"),
    [
        (Layout.RAGGED, DType.E4M3, "block128", DType.F32),
        (Layout.MASKED, DType.E4M3, "row", DType.F32),
        (Layout.CONTIGUOUS, DType.BF16, "tensor", DType.BF16),
        (Layout.RAGGED, DType.F16, "tensor", DType.F16),
        *(
            pytest.param(*others, marks=pytest.mark.nightly)
            for others in (
                (Layout.CONTIGUOUS, DType.E4M3, "block128", DType.F16),
                (Layout.RAGGED, DType.BF16, "row", DType.F32),
                (Layout.MASKED, DType.BF16, "tensor", DType.F16),
                (Layout.MASKED, DType.F16, "row", DType.F32),
            )
        ),
    ],
)
def test_other_types(layout: Layout, dtype: DType, scales: str, out_dtype: DType) -> None:
    """K and N end with 16 bytes more than whole MMAs and tiles."""
    forced = GroupedGemmConfig(
        layout=layout,
        operands=Operands(
            a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, scale_granularity=scales
        ),
        tile=Tile(m=TILE, n=48, k=1024 // dtype.bits),
        cluster=Cluster(n=2),
    )
    n, k = 96 + 128 // out_dtype.bits, 256 + 128 // dtype.bits
    exact = make_for(forced, ROWS[0], n, k, is_exact=True)
    case = make_for(forced, [3, 0, TILE + 5], n, k)

    verify_exact(exact, jitgen.grouped_gemm(**exact.arguments, config=forced))
    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


def test_bf16_without_scales() -> None:
    """They count as one, in a kernel that the test above compiles."""
    forced = GroupedGemmConfig(
        layout="contiguous",
        operands=Operands(a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor"),
        tile=Tile(m=TILE, n=48, k=64),
        cluster=Cluster(n=2),
    )
    case = make_for(forced, [3, 0, 60], 72, 136)
    ones = {name: torch.ones_like(case.arguments[name]) for name in ("a_scale", "b_scale")}
    scaled = jitgen.grouped_gemm(**{**case.arguments, **ones}, config=forced).clone()
    without = {**case.arguments, "a_scale": None, "b_scale": None}
    plain = jitgen.grouped_gemm(**without, config=forced)

    assert torch.equal(plain[case.is_owned], scaled[case.is_owned])


@pytest.mark.parametrize(
    "out_dtype", [pytest.param(DType.F16, marks=pytest.mark.nightly), DType.F32]
)
def test_the_selector_knows_other_results(out_dtype: DType) -> None:
    case = make("ragged", "block128", [40, 0, 7], 136, 272, out_dtype=out_dtype)

    verify(case, jitgen.grouped_gemm(**case.arguments))


def test_more_than_one_chunk_of_weight_scales() -> None:
    """More than 64 blocks of K."""
    forced = config(Layout.RAGGED, ScaleGranularity.BLOCK128)
    case = make("ragged", "block128", [3, 0, 9], 72, 8192 + 400)

    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.parametrize(
    "layout", [Layout.RAGGED, *(pytest.param(x, marks=pytest.mark.nightly) for x in OTHER_LAYOUTS)]
)
def test_what_the_selector_chooses(layout: Layout) -> None:
    case = make(layout, "block128", [40, 0, 200, 7], 264, 272)

    verify(case, jitgen.grouped_gemm(**case.arguments))


def test_scales_in_the_other_order() -> None:
    case = make("ragged", "block128", [20, 0, 7], 72, 272)
    forced = config(Layout.RAGGED, ScaleGranularity.BLOCK128)
    other = {**case.arguments, "a_scale": case.arguments["a_scale"].contiguous()}
    for arguments in (case.arguments, other, case.arguments):
        arguments["out"].fill_(POISON)

        verify(case, jitgen.grouped_gemm(**arguments, config=forced))


def test_many_groups() -> None:
    rows = [(7 * group) % 5 for group in range(200)]
    case = make("ragged", "block128", rows, 64, 128, is_exact=True)
    forced = config(Layout.RAGGED, ScaleGranularity.BLOCK128)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.parametrize(
    "layout", [Layout.RAGGED, pytest.param(Layout.MASKED, marks=pytest.mark.nightly)]
)
def test_more_groups_than_the_table_has_entries(layout: Layout) -> None:
    """Then several groups share an entry: two, with rows in either; and the last entry has one."""
    rows = [0] * 1023
    rows[0], rows[1], rows[6], rows[9], rows[510], rows[1021], rows[1022] = (
        3,
        1,
        TILE + 2,
        2,
        1,
        4,
        2,
    )
    case = make(layout, "tensor", rows, 16, 16, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=config(layout, "tensor")))


def test_rows_that_lie_apart() -> None:
    case = make("ragged", "block128", [20, 0, 7], 72, 272)
    a = case.arguments["a"]
    wide = torch.zeros(len(a), 304).to(a.dtype)
    wide[:, :272] = a
    out = torch.full((len(a), 80), POISON, dtype=torch.bfloat16)
    jitgen.grouped_gemm(**{**case.arguments, "a": wide[:, :272], "out": out[:, :72]})

    verify(case, out[:, :72])
    assert out[:, 72:].isnan().all()


def test_it_takes_what_the_gpu_takes() -> None:
    case = make("ragged", "block128", [5], 72, 40)

    with pytest.raises(InputError, match="multiple of 16"):
        jitgen.grouped_gemm(**case.arguments)
