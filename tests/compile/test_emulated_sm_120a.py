# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` on an emulated RTX 5090: formats, layouts, tiles, and what padding may hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

import jitgen
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Pipeline, Schedule, Tile
from jitgen.formats.atoms import swizzled
from jitgen.formats.e2m1 import values_of
from jitgen.verify import device
from tests import needs
from tests.compile.kernels import often
from tests.compile.mutations_sm_120a import spoiled
from tests.problems import make_for, verify, verify_exact

pytestmark = [needs.compiler, needs.linker]

FORMATS = {
    "mixed": (DType.E4M3, DType.E2M1, ScaleGranularity.MX32),
    "mxfp8": (DType.E4M3, DType.E4M3, ScaleGranularity.MX32),
    "mxfp4": (DType.E2M1, DType.E2M1, ScaleGranularity.MX32),
    "nvfp4": (DType.E2M1, DType.E2M1, ScaleGranularity.NV16),
    "block128": (DType.E4M3, DType.E4M3, ScaleGranularity.BLOCK128),
    "bf16": (DType.BF16, DType.E2M1, ScaleGranularity.MX32),
}
ATOMS = [name for name in FORMATS if name != "block128"]


@pytest.fixture(autouse=True)
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    """An emulated GPU with few SMs, so that a CTA gets several tiles."""
    with device("sm_120a", num_sms=2):
        yield


def config(
    name: str,
    layout: Layout | str = "ragged",
    m: int = 16,
    n: int = 32,
    k: int = 128,
    *,
    out_dtype: DType = DType.BF16,
    stages: int | None = 2,
    schedule: Schedule | None = None,
) -> GroupedGemmConfig:
    a_dtype, b_dtype, scales = FORMATS[name]
    return GroupedGemmConfig(
        layout=layout,
        operands=Operands(
            a_dtype=a_dtype,
            b_dtype=b_dtype,
            scale_granularity=scales,
            a_scale_granularity=ScaleGranularity.NONE if name == "bf16" else None,
            out_dtype=out_dtype,
        ),
        tile=Tile(m=m, n=n, k=k),
        pipeline=Pipeline(num_ab_stage=stages),
        schedule=schedule or Schedule(),
    )


def rows_around(m: int) -> list[list[int]]:
    """
    Groups that are empty or small, a row off a tile, of two blocks of scales, and one that, where
    groups are padded to 128 rows, has padding between two rows of a tile.
    """
    return [[0, 1, m - 1, 0, m, m + 1, 0], [2 * m - 1, 0, 131], [3, 120], [0, 0]]


KINDS = [*product(FORMATS, Layout)]
OFTEN = {("mixed", Layout.RAGGED), ("bf16", Layout.MASKED)}
"""What models use most, for every push."""


@pytest.mark.parametrize(
    ("name", "layout"),
    often(KINDS, OFTEN, "-".join),
)
class TestEveryFormatAndLayout:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("n", "k"),
        [(40, 288), *(pytest.param(*nk, marks=pytest.mark.nightly) for nk in ((72, 32), (8, 640)))],
    )
    def test_exact(self, name: str, layout: Layout, n: int, k: int) -> None:
        """Small integers and power-of-two scales: every bit is right, and unowned rows stay."""
        forced = config(name, layout)
        for rows in rows_around(16)[: 1 if (n, k) != (40, 288) else None]:
            case = make_for(forced, rows, n, k, is_exact=True)

            verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))

    @pytest.mark.nightly
    def test_random(self, name: str, layout: Layout) -> None:
        forced = config(name, layout)
        case = make_for(forced, [3, 0, 37], 72, 416)

        verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", range(8, 129, 8))
def test_every_height(name: str, m: int) -> None:
    """Tiles that meet two atoms of scales, and those whose parts two warps share."""
    forced = config(name, m=m)
    case = make_for(forced, [m + 1, 0, 130, m - 1], 40, 160, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "forced",
    [
        config("mixed", m=8, n=64, k=512),
        config("mixed", "masked", m=64, n=128, k=256),
        config("mixed", "contiguous", m=128, n=64, k=128, out_dtype=DType.F16),
        config("mixed", m=40, n=32, k=128, schedule=Schedule(safe_selectors=True)),
        config("mxfp4", m=24, n=128, k=256, out_dtype=DType.F32),
        config("mxfp4", "masked", m=128, n=128, k=256),
        config("mxfp8", m=96, n=64, k=128),
        config("nvfp4", "masked", m=56, n=128, k=128, schedule=Schedule(use_pdl=False)),
        config("nvfp4", "contiguous", m=8, n=128, k=512, schedule=Schedule(stream_b=True)),
        config("block128", m=112, n=128, k=128, out_dtype=DType.F32),
        config("bf16", m=8, n=64, k=512, schedule=Schedule(stream_b=True)),
        config("bf16", "masked", m=64, n=128, k=128, out_dtype=DType.F16),
        config("bf16", "contiguous", m=128, n=128, k=128, schedule=Schedule(raster=1)),
        config("bf16", m=40, n=64, k=256, out_dtype=DType.F32, stages=None),
        config("block128", "contiguous", m=128, n=128, k=128, schedule=Schedule(raster=1)),
    ],
    ids=lambda forced: forced.name("sm_120a"),
)
def test_other_tiles_and_types(forced: GroupedGemmConfig) -> None:
    m, n, k = forced.tile.m, forced.tile.n, forced.tile.k
    exact = make_for(forced, rows_around(m)[0], n + 8, 2 * k + 32, is_exact=True)
    case = make_for(forced, [3, 0, 2 * m + 5], n + 8, 2 * k + 32)

    verify_exact(exact, jitgen.grouped_gemm(**exact.arguments, config=forced))
    verify(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.parametrize(
    ("arch", "tile"),
    [("sm_120a", (16, 32)), pytest.param("sm_100a", (128, 64), marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("scale", ["a_scale", "b_scale"])
def test_atoms_may_lie_apart(arch: str, tile: tuple[int, int], scale: str) -> None:
    """Along K, too: each second one of a larger tensor."""
    forced = config("mxfp8", "ragged", *tile, stages=None)
    case = make_for(forced, [5, 0, 19], 40, 288, is_exact=True)
    given = case.arguments
    apart = given[scale].repeat_interleave(2, dim=-2)[..., ::2, :]
    apart.view(torch.uint8).copy_(given[scale].view(torch.uint8))
    assert apart.stride(-2) == 1024

    with device(arch, num_sms=2):
        out = jitgen.grouped_gemm(**given | {scale: apart}, config=forced)

    verify_exact(case, out)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("k", [32, 160, 224, 288])
def test_scales_beyond_k_do_not_matter(name: str, layout: Layout, k: int) -> None:
    """They share a word with those that count, and a NaN times zero is one."""
    forced = config(name, layout)
    case = make_for(forced, [5, 0, 19], 40, k, is_exact=True)
    case = spoiled(case, k)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
def test_more_groups_than_the_table_has_entries(name: str, layout: Layout) -> None:
    """Then several groups share an entry: two, with rows in either; and the last entry has one."""
    rows = [0] * 1023
    rows[0], rows[1], rows[6], rows[9] = 3, 1, 18, 2
    rows[510], rows[1021], rows[1022] = 1, 4, 2
    forced = config(name, layout)
    case = make_for(forced, rows, 8, 32, is_exact=True)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", Layout)
def test_what_the_selector_chooses(name: str, layout: Layout) -> None:
    for out_dtype in (DType.BF16, DType.F32):
        case = make_for(config(name, layout, out_dtype=out_dtype), [40, 0, 130, 7], 136, 288)

        verify(case, jitgen.grouped_gemm(**case.arguments))


def test_every_weight_is_decoded_with_every_scale() -> None:
    """All 16 codes times all powers of two, for small tokens and large ones: exact, and NaN."""
    codes = torch.arange(16, dtype=torch.uint8)
    weights = torch.zeros(1, 256, 16, dtype=torch.uint8)  # of 32 values, the first 16
    weights[..., :8] = codes[::2] | codes[1::2] << 4
    scale = torch.arange(256, dtype=torch.uint8)[None, :, None]  # of columns
    tokens = torch.zeros(32, 32, dtype=torch.bfloat16)
    tokens[torch.arange(32), torch.arange(32) % 16] = torch.tensor([2.0**-4, 2.0**60])[
        torch.arange(32) // 16
    ].bfloat16()
    out = jitgen.grouped_gemm(
        tokens,
        weights,
        b_scale=swizzled(scale).view(torch.float8_e8m0fnu),
        offs=torch.tensor([32], dtype=torch.int32),
        config=config("bf16", out_dtype=DType.F32),
        out_dtype=torch.float32,
    )
    powers = torch.exp2(torch.arange(256, dtype=torch.float64) - 127)
    powers[255] = torch.nan
    values = values_of(weights[0, 0], torch.float64)[:16]
    wanted = values[:, None] * tokens.double().sum(1).view(2, 16)[..., None] * powers

    torch.testing.assert_close(out, wanted.reshape(32, 256).float(), rtol=0, atol=0, equal_nan=True)
