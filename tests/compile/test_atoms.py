# SPDX-License-Identifier: Apache-2.0
"""Scales in atoms, MXFP8, MXFP4 and NVFP4, on real cpu kernels, against float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from jitgen import quantize
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.errors import InputError
from jitgen.formats.e2m1 import unpack
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm.reference import sums
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.runtime.session import current
from tests.problems import verify, verify_exact

pytestmark = pytest.mark.usefixtures("shared_cache")

E4M3, E2M1 = DType.E4M3, DType.E2M1
MX32, NV16 = ScaleGranularity.MX32, ScaleGranularity.NV16
TYPES = {
    "mxfp8": (E4M3, E4M3, MX32),
    "mxfp4": (E2M1, E2M1, MX32),
    "mxfp4 weights": (E4M3, E2M1, MX32),
    "nvfp4": (E2M1, E2M1, NV16),
    "mxfp4 weights beside bf16": (DType.BF16, E2M1, MX32),
}
OUT = dict(zip(Layout, (DType.F32, DType.F16, DType.BF16), strict=True))
"""What kernels of each layout store: all types, and as many kernels as layouts and operands."""

ROWS = [
    [0, 5, 0, 129, 7, 8, 128, 0],  # empty groups first, last and between; a block, and one more
    [17],
    [0, 0, 3],
    [0, 0],
]
SIZES = ((136, 272), (64, 128), (1, 2), (200, 130), (17, 98))


def config_of(problem: GroupedGemmProblem) -> GroupedGemmConfig:
    return GroupedGemmConfig(
        layout=problem.layout, operands=problem.operands, tile=Tile(m=8, n=64, k=128)
    )


def problem_of(name: str, layout: Layout, rows: list[int], n: int, k: int) -> GroupedGemmProblem:
    a_dtype, b_dtype, scales = TYPES[name]
    return GroupedGemmProblem(
        layout=layout,
        groups=len(rows),
        m=sum(rows),
        n=n,
        k=k,
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        out_dtype=OUT[layout],
        scale_granularity=scales,
        a_scale_granularity=ScaleGranularity.NONE if a_dtype is DType.BF16 else None,
    )


def _marks(name: str, layout: Layout) -> Any:
    """Of kernels whose walk prepacked weights have, too, one layout is enough on every push."""
    is_often = TYPES[name][0] is not DType.BF16 or layout is Layout.RAGGED
    return pytest.param(name, layout, marks=() if is_often else pytest.mark.nightly)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "layout"), [_marks(name, layout) for name, layout in product(TYPES, Layout)]
)
def test_results_are_exact_where_they_can_be(name: str, layout: Layout) -> None:
    """Scales that no row of a group needs are NaN, and so are those of groups without rows."""
    for seed, (rows, (n, k)) in enumerate(product(ROWS, SIZES)):
        problem = problem_of(name, layout, rows, n, k)
        call = random_call(
            problem, rows, is_exact=True, has_spare=True, spoils_idle=True, seed=seed
        )
        solved = Solved.of(call, is_exact=True)
        result = grouped_gemm(**call.arguments, config=config_of(problem))

        assert result is call.out
        verify_exact(solved, result)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        name if types[0] is not DType.BF16 else pytest.param(name, marks=pytest.mark.nightly)
        for name, types in TYPES.items()
    ],
)
def test_results_are_near_where_they_are_rounded(name: str) -> None:
    """And every type of the output is stored."""
    rows = [3, 0, 140]
    for layout in Layout:
        problem = problem_of(name, layout, rows, 136, 1000)
        call = random_call(problem, rows, has_spare=True)
        grouped_gemm(**call.arguments, config=config_of(problem))
        verify(Solved.of(call, is_exact=False), call.out)


def test_scales_of_any_size_do_not_overflow_before_the_product_does() -> None:
    """2**127 times 2**-127 is 1, though a value times either is none that float32 has."""
    a, b = torch.full((2, 64), 448.0), torch.full((1, 3, 64), 448.0)
    high, low = (torch.full((2, 2), byte, dtype=torch.uint8) for byte in (254, 0))
    offs = torch.tensor([2], dtype=torch.int32)
    for of_a, of_b in ((high, low), (low, high)):
        out = grouped_gemm(
            a.to(torch.float8_e4m3fn),
            b.to(torch.float8_e4m3fn),
            atoms(of_a),
            atoms(of_b[:1].expand(3, 2))[None],
            offs=offs,
            out_dtype=torch.float32,
        )
        assert (out == 64 * 448**2).all()


def atoms(scale: Tensor) -> Tensor:
    from jitgen.formats.atoms import swizzled

    return swizzled(scale).view(torch.float8_e8m0fnu)


def test_the_largest_and_the_smallest_scale_beside_bf16() -> None:
    """6 times 2**127 is no float32, but times a small token it is one."""
    weights = torch.full((1, 2, 32), 0x77, dtype=torch.uint8)  # 64 times 6
    scale = torch.tensor([254, 0], dtype=torch.uint8)[None, :, None].expand(1, 2, 2)
    tokens = torch.full((1, 64), 2.0**-8, dtype=torch.bfloat16)
    offs = torch.tensor([1], dtype=torch.int32)
    given = {"b_scale": atoms(scale), "offs": offs, "out_dtype": torch.float32}
    out = grouped_gemm(tokens, weights, **given)

    assert out.tolist() == [[384 * 2.0 ** (127 - 8), 384 * 2.0 ** (-127 - 8)]]


@pytest.mark.parametrize("byte", [0x80, 0xFF])
def test_a_nan_of_a_scale_is_one_of_the_result(byte: int) -> None:
    """0xFF is UE8M0's NaN, and its neighbours in the row and in the block are not touched."""
    given = good("mxfp8")
    scale = given["a_scale"].view(torch.uint8)
    scale[0, 0, 16 * 2 + 1] = byte  # row 2, values 32 to 63
    out = grouped_gemm(**given)

    assert out[2].isnan().all() == (byte == 0xFF)
    assert not out[[0, 1, 3, 4, 5]].isnan().any()


def good(name: str, rows: int = 6) -> dict[str, Tensor]:
    """Arguments that nothing is wrong with, of 2 ragged groups, K = 64 and N = 24."""
    torch.manual_seed(0)
    x, w = torch.randn(rows, 64), torch.randn(2, 24, 64)
    offs = torch.tensor([rows // 2, rows], dtype=torch.int32)
    of = {"mxfp8": quantize.mxfp8, "mxfp4": quantize.mxfp4, "nvfp4": quantize.nvfp4}
    (a, a_scale, *of_a), (b, b_scale, *of_b) = of[name](x, offs=offs), of[name](w)
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "offs": offs}
    if of_a:
        given["alpha"] = of_a[0] * of_b[0]
    return given


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_what_quantize_makes_is_what_kernels_read(name: str) -> None:
    """Warm and with other row counts, too; pairs of e2m1 may have their own type."""
    for rows in (6, 140, 141, 6):
        given = good(name, rows)
        expected = sums(given, torch.float64)
        for _ in range(2):
            out = grouped_gemm(**given, out_dtype=torch.float32)
            assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-4)
        if name != "mxfp8":
            pairs = {n: given[n].view(torch.float4_e2m1fn_x2) for n in ("a", "b")}
            again = grouped_gemm(**given | pairs, out_dtype=torch.float32)
            assert torch.equal(again, out)


def test_strided_atoms_are_copied() -> None:
    given = good("nvfp4")
    expected = grouped_gemm(**given)
    wide = torch.zeros(*given["a_scale"].shape[:-1], 520, dtype=torch.uint8)
    wide[..., :512] = given["a_scale"].view(torch.uint8)
    strided = wide[..., :512].view(torch.float8_e4m3fn)
    more = torch.cat([given["a_scale"].view(torch.uint8)] * 2).view(torch.float8_e4m3fn)
    for scale in (strided, more):
        for _ in range(2):
            assert torch.equal(grouped_gemm(**given | {"a_scale": scale}), expected)


E8M0 = torch.float8_e8m0fnu
MISTAKES = {
    "no alpha": ("nvfp4", {"alpha": None}, r"alpha: is required with nv16 scales: \(G,\) float32"),
    "alpha beside mx32": (
        "mxfp4",
        {"alpha": torch.ones(2)},
        r"alpha: belongs to nv16 scales: leave it out with mx32 scales",
    ),
    "alpha's shape": ("nvfp4", {"alpha": torch.ones(1)}, r"alpha: must have shape \(2,\), which"),
    "alpha's type": ("nvfp4", {"alpha": torch.ones(2).half()}, r"alpha: must be float32 \(got"),
    "no scales": ("mxfp4", {"a_scale": None, "b_scale": None}, r"is required for uint8 operands"),
    "scales of a beside bf16": (
        "mxfp8",
        {"a": torch.zeros(6, 64).bfloat16(), "b": torch.zeros(2, 24, 32, dtype=torch.uint8)},
        r"a_scale: belongs to quantised a: leave it out with bfloat16, .* or quantise a: jitgen.q",
    ),
    "no scales beside bf16": (
        "mxfp4",
        {"a": torch.zeros(6, 64).bfloat16(), "a_scale": None, "b_scale": None},
        r"b_scale: is required for e2m1 beside bf16 \(got None\)",
    ),
    "other scales beside bf16": (
        "nvfp4",
        {"a": torch.zeros(6, 64).bfloat16(), "a_scale": None},
        r"b_scale: must be mx32 scales where a is bf16 and b e2m1 \(got nv16 ones\)",
    ),
    "K": ("mxfp4", {"a": torch.zeros(6, 30, dtype=torch.uint8)}, r"a: must have shape \(6, 32\)"),
    "few blocks": (
        "mxfp4",
        {"a_scale": torch.zeros(1, 1, 512, dtype=torch.uint8).view(E8M0)},
        r"a_scale: must have shape \(2, 1, 512\), for mx32 scales",
    ),
    "other scales of a": (
        "mxfp4",
        {"a_scale": torch.zeros(2, 1, 512).to(torch.float8_e4m3fn)},
        r"a_scale: must be float8_e8m0fnu \(got torch.float8_e4m3fn\)",
    ),
    "plain scales": (
        "mxfp4",
        {"b_scale": torch.zeros(2, 24, 2, dtype=torch.uint8).view(E8M0)},
        r"b_scale: must have 4 dimensions \(a scale for each 32 values of a row, in atoms\) \(got",
    ),
    "nv16 of e4m3": (
        "mxfp8",
        {"b_scale": torch.zeros(2, 1, 1, 512).to(torch.float8_e4m3fn), "alpha": torch.ones(2)},
        r"b_scale: has the .* nv16 scales, which are for operands of e2m1 \(got e4m3\)",
    ),
    "float32 of e2m1": (
        "mxfp4",
        {"a_scale": torch.ones(6), "b_scale": torch.ones(2, 24)},
        r"b_scale: has the .* row scales, which are for operands of .* or f16 or f32 \(got e2m1",
    ),
    "e4m3 weights": (
        "mxfp4",
        {"b": torch.zeros(2, 24, 64).to(torch.float8_e4m3fn)},
        r"b: must be float4_e2m1fn_x2 or uint8 \(got",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_cold_and_warm(mistake: str) -> None:
    name, changes, message = MISTAKES[mistake]
    grouped_gemm(**good(name))
    with pytest.raises(InputError, match=message) as caught:
        grouped_gemm(**good(name) | changes)
    assert caught.value.__context__ is None


def test_another_k_of_packed_weights_is_refused_warm() -> None:
    """The entry sees two sizes there, as a has one value in an element and b two."""
    problem = problem_of("mxfp4 weights", Layout.RAGGED, [4], 16, 96)
    given = random_call(problem, [4]).arguments
    grouped_gemm(**given)
    wrong = {"a": given["a"].view(3, 128), "out": given["out"][:3]}
    with pytest.raises(InputError, match=r"a: must have shape \(3, 96\), as b has .* two values"):
        grouped_gemm(**given | wrong)


def test_warm_calls_are_remembered() -> None:
    given = good("nvfp4")
    for _ in range(3):
        grouped_gemm(**given)
    assert len(current.get().memo) == 1


def test_a_packed_value_is_the_low_half_first() -> None:
    """One row of codes 1, 2, ... times the unit matrix's first rows."""
    codes = torch.tensor([[0x21, 0x43, 0x65, 0x07]], dtype=torch.uint8)
    a = torch.nn.functional.pad(codes, (0, 12))
    unit = torch.eye(8, 32)
    b, b_scale = quantize.mxfp4(unit[None])
    one = torch.full((1, 1), 127, dtype=torch.uint8)
    out = grouped_gemm(
        a, b, atoms(one), b_scale, offs=torch.tensor([1]).int(), out_dtype=torch.float32
    )
    assert out.tolist() == [[0.5, 1, 1.5, 2, 3, 4, 6, 0]]
    assert torch.equal(unpack(a)[:, :8], out)


def test_a_problem_says_its_types_once() -> None:
    problem = problem_of("mxfp4 weights", Layout.RAGGED, [4], 16, 96)

    assert replace(problem, b_dtype=E4M3) == replace(problem, b_dtype=None)
    assert GroupedGemmProblem.from_json(problem.to_json()) == problem
    assert "b_dtype" not in replace(problem, b_dtype=None).to_json()
    assert problem.slug == "ragged_e4m3_e2m1_mx32_f32_g1_m4_n16_k96"


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_tracers_see_one_operation(name: str) -> None:
    """With alpha, and with sizes that are symbols: K of packed values is twice what a has."""
    given = good(name)
    expected = grouped_gemm(**given)
    traced = make_fx(lambda kwargs: grouped_gemm(**kwargs), tracing_mode="symbolic")(given)

    assert torch.equal(traced(given), expected)
    calls = [n for n in traced.graph.nodes if n.target is torch.ops.jitgen.grouped_gemm.default]
    assert len(calls) == 1
