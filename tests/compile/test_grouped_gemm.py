# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` on real cpu kernels, against the float32 reference."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize, reference
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.runtime.session import current
from tests.arguments import MISTAKES, good
from tests.problems import make

pytestmark = pytest.mark.usefixtures("shared_cache")

TILE = Tile(m=8, n=64, k=128)
POISON = 96.0
"""What outputs hold before: exact in every type, and no result is likely to be it."""


def quantized(
    x: Tensor, w: Tensor, granularity: str, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_a, of_b = {
        "tensor": (quantize.per_tensor, quantize.per_matrix),
        "row": (quantize.per_row, quantize.per_row),
        "block128": (quantize.per_token_group, quantize.per_block),
    }[granularity]
    a, a_scale = of_a(x, power_of_two=power_of_two)
    b, b_scale = of_b(w, power_of_two=power_of_two)
    return a, b, a_scale, b_scale


def layout_of(layout: str, rows: list[int]) -> tuple[tuple[int, ...], dict[str, Tensor]]:
    """Return the leading shape of a, and the groups; a few rows belong to none."""
    if layout == "ragged":
        ends = torch.tensor(rows).cumsum(0).int()
        return (sum(rows) + 3,), {"offs": ends}
    if layout == "masked":
        return (len(rows), max(rows) + 2), {"masked_m": torch.tensor(rows).int()}
    ids = []
    for group, count in enumerate(rows):
        ids += [group] * count + [-1] * (-count % TILE.m)
    return (len(ids) + TILE.m,), {"m_indices": torch.tensor([*ids, *[-1] * TILE.m]).int()}


def config(layout: str, granularity: str) -> GroupedGemmConfig:
    scales = ScaleGranularity(granularity)
    return GroupedGemmConfig(
        layout=Layout(layout), operands=Operands(scale_granularity=scales), tile=TILE
    )


ROWS = [
    [0, 5, 0, 1, 7, 8, 9, 0],  # empty groups first, last and between; a tile, one less, one more
    [17],
    [0, 0, 3],
    [0, 0],
]


@pytest.mark.parametrize("granularity", FLOAT_SCALES)
@pytest.mark.parametrize("layout", Layout)
def test_results_are_exact_where_they_can_be(layout: str, granularity: str) -> None:
    """Small integers and power-of-two scales: every sum is exact, so every bit must be right."""
    torch.manual_seed(0)
    for rows in ROWS:
        for size_n, size_k in ((136, 272), (64, 128), (1, 1), (200, 130)):
            front, groups = layout_of(layout, rows)
            x = torch.randint(-4, 5, (*front, size_k)).float()
            w = torch.randint(-4, 5, (len(rows), size_n, size_k)).float()
            operands = quantized(x, w, granularity, power_of_two=True)
            expected = torch.full((*front, size_n), POISON, dtype=torch.bfloat16)
            out = expected.clone()
            reference.grouped_gemm(*operands, out=expected, **groups)
            forced = config(layout, granularity)
            result = grouped_gemm(*operands, out=out, config=forced, **groups)

            assert result is out
            assert torch.equal(out, expected)


@pytest.mark.parametrize("granularity", FLOAT_SCALES)
def test_results_are_near_where_they_are_rounded(granularity: str) -> None:
    """
    Both sides add K products in float32 and round once to bfloat16.

    So they differ by at most one step of bfloat16, 2**-7 of a value, plus K roundings of 2**-24 of
    the sum of magnitudes, for which 16 * sqrt(K) is generous.
    """
    torch.manual_seed(0)
    rows, size_n, size_k = [3, 0, 20], 136, 1000
    front, groups = layout_of("ragged", rows)
    x, w = torch.randn(*front, size_k), torch.randn(len(rows), size_n, size_k)
    operands = quantized(x, w, granularity)
    expected = reference.grouped_gemm(*operands, out_dtype=torch.float32, **groups)[:23]
    out = grouped_gemm(*operands, config=config("ragged", granularity), **groups)[:23]

    bound = 2.0**-7 * expected.abs() + 16 * size_k**0.5 * 2.0**-24 * size_k**0.5
    assert ((out.float() - expected).abs() <= bound).all()


def test_many_groups() -> None:
    torch.manual_seed(0)
    rows = [(7 * g) % 5 for g in range(256)]
    front, groups = layout_of("ragged", rows)
    operands = quantized(
        torch.randint(-2, 3, (*front, 128)).float(),
        torch.randint(-2, 3, (256, 32, 128)).float(),
        "block128",
        power_of_two=True,
    )
    total = sum(rows)

    out = grouped_gemm(*operands, config=config("ragged", "block128"), **groups)
    assert torch.equal(out[:total], reference.grouped_gemm(*operands, **groups)[:total])


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("bf16", "f16"), ("f32", "f32"), ("f16", "f16"), ("f16", "bf16")]
)
def test_operands_without_scales(dtype: str, out_dtype: str) -> None:
    of = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    a = torch.randint(-4, 5, (9, 70)).to(of[dtype])
    b = torch.randint(-4, 5, (2, 24, 70)).to(of[dtype])
    for _ in range(2):
        out = grouped_gemm(a, b, offs=torch.tensor([4, 9]).int(), out_dtype=of[out_dtype])

        assert out.dtype is of[out_dtype]
        assert torch.equal(out, torch.cat([a[:4] @ b[0].mT, a[4:] @ b[1].mT]).to(out.dtype))
    (kernel,) = current.get().loader.loaded()
    assert kernel.config.operands.a_dtype is DType(dtype)


def test_every_float16_is_read_as_it_is() -> None:
    """Subnormal ones, infinities and NaN among them."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)[:, None]
    one, offs = torch.ones(1, 1, 1).half(), torch.tensor([1 << 16]).int()
    found = grouped_gemm(every, one, offs=offs, out_dtype=torch.float32)

    assert torch.equal(found.isnan(), every.isnan())
    assert torch.equal(found.nan_to_num(0.0, 1e9, -1e9), every.float().nan_to_num(0.0, 1e9, -1e9))


def test_strided_operands() -> None:
    """Rows may lie apart, and the scales may have either order."""
    front, groups = layout_of("ragged", [5, 6])
    operands = quantized(torch.randn(*front, 272), torch.randn(2, 136, 272), "block128")
    a, b, a_scale, b_scale = operands
    expected = grouped_gemm(*operands, **groups)[:11]
    wide_a = torch.zeros(front[0], 300).to(a.dtype)
    wide_a[:, :272] = a
    wide_out = torch.full((front[0], 200), POISON, dtype=torch.bfloat16)
    for scale in (a_scale, a_scale.contiguous(), a_scale.contiguous(), a_scale.T.contiguous().T):
        grouped_gemm(wide_a[:, :272], b, scale, b_scale, out=wide_out[:, :136], **groups)

        assert torch.equal(wide_out[:11, :136], expected)
        assert (wide_out[:, 136:] == POISON).all()
        wide_out[:, :136] = POISON


def test_parameters_are_operands_too() -> None:
    front, groups = layout_of("ragged", [3, 2])
    a, b = torch.randn(*front, 32), torch.nn.Parameter(torch.randn(2, 16, 32))
    with torch.no_grad():
        out = grouped_gemm(a, b, out_dtype=torch.float32, **groups)

    assert torch.allclose(out[:3], a[:3] @ b[0].T, atol=1e-5)


def test_mistakes_are_told_from_the_warm_path_too() -> None:
    """The memo knows the shapes of good calls, and what it does not check the entry refuses."""
    for layout in ("ragged", "masked", "contiguous"):
        grouped_gemm(**good(layout))
    assert len(current.get().memo) == 3
    for name, given, message in MISTAKES:
        with pytest.raises(InputError, match=message) as caught:
            grouped_gemm(**given)
        assert caught.value.__context__ is None, name


def test_warm_calls_validate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [good(layout) for layout in ("ragged", "masked", "contiguous")]
    outs = [grouped_gemm(**arguments) for arguments in given]

    def run(*_: Any) -> Tensor:
        raise AssertionError("a warm call was validated")

    for arguments, out in zip(given, outs, strict=True):
        grouped_gemm(**arguments, out=out)
    monkeypatch.setitem(grouped_gemm.__globals__, "run", run)
    for arguments, out in zip(given, outs, strict=True):
        assert grouped_gemm(**arguments, out=out) is out
        assert grouped_gemm(**arguments).shape == out.shape


@pytest.mark.parametrize("problems", [50, pytest.param(200, marks=pytest.mark.nightly)])
def test_one_kernel_serves_every_shape(problems: int) -> None:
    """So many problems of other sizes that choose one config: one entry in the store."""
    chance = random.Random(0)
    seen = set()
    while len(seen) < problems:
        # A single group has all rows, and so a choice of its own.
        groups, size_n, size_k = chance.randint(2, 9), chance.randint(1, 40), chance.randint(1, 40)
        rows = [chance.randint(1, 5) for _ in range(groups)]
        front, given = layout_of("ragged", rows)
        seen.add((front, size_n, size_k, groups))
        x = torch.randint(-2, 3, (*front, size_k)).float()
        w = torch.ones(groups, size_n, size_k)
        out = grouped_gemm(*quantized(x, w, "block128", power_of_two=True), expected_m=4, **given)
        sums = x.sum(-1, keepdim=True).to(out.dtype).expand_as(out)
        assert torch.equal(out[: sum(rows)], sums[: sum(rows)])

    (kernel,) = current.get().loader.loaded()
    chosen = {entry.name for entry in current.get().store.entries()}
    assert kernel.name in chosen
    problem = jitgen.GroupedGemmProblem(layout=Layout.RAGGED, groups=3, m=12, n=8, k=8)
    assert kernel.config == jitgen.select(problem, Arch.CPU).config


def test_threads() -> None:
    """Many threads call for the first time at once."""
    front, groups = layout_of("ragged", [5, 6])
    operands = quantized(torch.randn(*front, 128), torch.randn(2, 64, 128), "block128")
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda _: grouped_gemm(*operands, **groups), range(32)))

    assert all(torch.equal(out[:11], outs[0][:11]) for out in outs)
    assert len(current.get().loader.loaded()) == 1


def test_calls_of_equal_shapes_may_differ_in_types_and_strides() -> None:
    """The warm path's key holds neither: each call is right, whichever was remembered before it."""

    def assert_near(out: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(out[:14].float(), expected[:14], rtol=2**-8, atol=1e-3)

    case = make("ragged", "block128", [5, 0, 9], 136, 272)
    given = {**case.arguments, "out": None}
    other_order = given["a_scale"].contiguous()
    for out_dtype in (None, torch.float32, torch.float16, None):
        for a_scale in (given["a_scale"], other_order, given["a_scale"]):
            out = jitgen.grouped_gemm(**{**given, "a_scale": a_scale}, out_dtype=out_dtype)

            assert out.dtype is (out_dtype or torch.bfloat16)
            assert_near(out, case.expected)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        out = torch.empty(19, 136, dtype=dtype)
        jitgen.grouped_gemm(**{**given, "out": out})

        torch.testing.assert_close(
            out[:14].float(), case.expected[:14], rtol=2**-8, atol=1e-2 * 2**-8
        )
    assert jitgen.grouped_gemm(**given).dtype is torch.bfloat16
