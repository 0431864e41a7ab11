# SPDX-License-Identifier: Apache-2.0
"""`jitgen.torch`: torch's grouped products, beside torch's own and beside float64."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

import jitgen
from jitgen import quantize
from jitgen.errors import InputError
from jitgen.torch import grouped_mm, scaled_grouped_mm
from jitgen.verify import device
from tests import needs
from tests.arguments import int32
from tests.grouped_forms import Kind, laid

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

G, M, N, K = 3, 24, 40, 64
EIGHT = torch.float8_e4m3fn
KERNELS_OWN = re.compile(r"\b(a_scale|b_scale|alpha|masked_m|dy)\b|, as [ab] |\b[ab]: ")
"""What the calls of kernels call their arguments."""
OFFS = int32(5, 5, 24)
ENDS_OF_N = int32(8, 24, 24)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


FORMS: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
    "2D x 3D": (normal(M, K), normal(G, N, K).mT, OFFS),
    "3D x 3D": (normal(G, M, K), normal(G, N, K).mT, None),
    "3D x 2D": (normal(G, 16, K), normal(M, K).t(), ENDS_OF_N),
    "2D x 2D": (normal(M, 16).t(), normal(M, N), OFFS),
    "2D x 2D, K contiguous": (normal(16, M), normal(M, N), OFFS),
    "square": (normal(M, K), normal(G, K, K).mT, OFFS),
}
form = pytest.mark.parametrize("form", FORMS)


def exact(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None) -> Tensor:
    """The product in float64, group by group."""
    a, b = mat_a.double(), mat_b.double()
    if offs is None:
        return a @ b
    ends = [0, *offs.tolist()]
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, start:end] @ b[start:end] for start, end in pairwise(ends)])
    if a.dim() == 2:
        parts = [a[s:e] @ w for s, e, w in zip(ends, ends[1:], b, strict=False)]
        return torch.cat(parts)
    return torch.cat([x @ b[:, s:e] for s, e, x in zip(ends, ends[1:], a, strict=False)], 1)


@form
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.nightly)]
)
def test_as_torch_does(form: str, dtype: torch.dtype) -> None:
    """Every form, with values that bfloat16 and sums of them hold: the same bits."""
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.round().to(dtype), mat_b.round().to(dtype)
    found = grouped_mm(mat_a, mat_b, offs=offs)

    assert found.dtype is dtype
    expected = torch._grouped_mm(mat_a, mat_b, offs=offs)
    assert torch.equal(found, expected)
    assert torch.equal(found.double(), exact(mat_a, mat_b, offs).to(dtype).double())


@form
def test_near_what_is_right(form: str) -> None:
    """And no farther from it than torch's own."""
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.bfloat16(), mat_b.bfloat16()
    right = exact(mat_a, mat_b, offs)
    mine, other = grouped_mm(mat_a, mat_b, offs), F.grouped_mm(mat_a, mat_b, offs=offs)

    assert (mine.double() - right).norm() <= 1.01 * (other.double() - right).norm()
    single = grouped_mm(mat_a, mat_b, offs, out_dtype=torch.float32)
    assert (single.double() - right).norm() < 1e-5 * right.norm()


@pytest.mark.parametrize("name", ["2D x 3D", "3D x 3D"])
@pytest.mark.parametrize("shape", [(N,), (G, N)], ids=str)
def test_a_bias(name: str, shape: tuple[int, ...]) -> None:
    """Of all groups or of each, in the model's type, which its gradient has as well."""
    mat_a, mat_b, offs = FORMS[name]
    mat_a, mat_b = mat_a.round().bfloat16(), mat_b.round().bfloat16()
    bias = normal(*shape).round().bfloat16().requires_grad_()
    found = grouped_mm(mat_a, mat_b, offs, bias=bias, out_dtype=torch.float32)
    rows = bias.detach().double().expand(G, N)
    counts = torch.full((G,), M) if offs is None else offs.diff(prepend=offs.new_zeros(1))
    added = rows.repeat_interleave(counts, 0).view(found.shape)
    found.sum().backward()  # type: ignore[no-untyped-call]
    of_groups = counts[:, None].expand(G, N)

    assert torch.equal(found.double(), exact(mat_a, mat_b, offs) + added)
    assert bias.grad is not None
    assert bias.grad.dtype is torch.bfloat16
    assert torch.equal(bias.grad, (of_groups if shape == (G, N) else of_groups.sum(0)).bfloat16())


@pytest.mark.parametrize(
    ("mine", "other"),
    [(grouped_mm, F.grouped_mm), (scaled_grouped_mm, F.scaled_grouped_mm)],
)
def test_arguments_are_torchs(mine: Any, other: Any) -> None:
    names = [*inspect.signature(other).parameters]
    if mine is scaled_grouped_mm:
        from jitgen.torch.scaled import _by_recipes

        assert [*inspect.signature(_by_recipes).parameters] == names
        return
    assert [*inspect.signature(mine).parameters] == names


def test_the_private_signature_is_torchs() -> None:
    from jitgen.torch.scaled import _by_scales

    of_torch = [x.name for x in torch.ops.aten._scaled_grouped_mm.default._schema.arguments]
    renamed = [{"self": "mat_a", "mat2": "mat_b"}.get(name, name) for name in of_torch]
    assert [*inspect.signature(_by_scales).parameters] == renamed


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    (
        "2D x 2D with a bias",
        {"mat_a": torch.ones(16, M), "mat_b": torch.ones(M, 32), "bias": torch.ones(32)},
        r"bias: has no kernel for groups along K \(mat_a \(16, 24\) and mat_b \(24, 32\)\)",
    ),
    (
        "2D x 2D of another K",
        {"mat_a": torch.ones(16, M), "mat_b": torch.ones(M + 1, 32)},
        "mat_b: must have K = 24",
    ),
    ("no offs", {"offs": None}, r"offs: is required with a 2D operand \(got mat_a \(24, 64\)"),
    (
        "offs of nothing",
        {"mat_a": torch.ones(G, M, K)},
        r"offs: belongs to 2D operands \(got mat_a \(3, 24, 64\) and mat_b \(3, 64, 40\)",
    ),
    (
        "jitgen's order",
        {"mat_b": torch.ones(G, N, K)},
        r"mat_b: must have K = 64 .*weights \(G, N, K\) are what jitgen.grouped_gemm takes",
    ),
    (
        "another K",
        {"mat_b": torch.ones(G, 32, N)},
        r"mat_b: must have K = 64 in .* \(3, 32, 40\)\)$",
    ),
    ("4D", {"mat_a": torch.ones(1, G, M, K)}, "mat_a: must have 2 or 3 dimensions"),
    ("a list", {"mat_a": [1.0]}, r"mat_a: must be a torch tensor \(got list\)"),
    ("half", {"mat_a": torch.ones(M, K).half()}, "mat_b: must be float16, as mat_a is"),
    ("double", {"mat_a": torch.ones(M, K).double()}, "mat_a: must be bfloat16 or float16 or float"),
    (
        "quantised",
        {"mat_a": torch.ones(M, K).to(torch.float8_e4m3fn)},
        "mat_a: must be .* which has scales: jitgen.torch.scaled_grouped_mm takes them",
    ),
    ("sparse", {"mat_a": torch.ones(M, K).to_sparse()}, "mat_a: must be a dense tensor"),
    ("elsewhere", {"mat_b": torch.ones(G, K, N, device="meta")}, "mat_b: must be on cpu, as mat_a"),
    ("long offs", {"offs": OFFS.long()}, "offs: must be int32"),
    ("few offs", {"offs": OFFS[:2]}, r"offs: must have shape \(3,\)"),
    ("a list of offs", {"offs": [5, 5, 24]}, r"offs: must be a torch tensor \(got list\)"),
    (
        "other matrices",
        {"mat_a": torch.ones(2, M, K), "offs": None},
        r"mat_b: must have G = 2 matrices, as mat_a has \(got mat_a \(2, 24, 64\)",
    ),
    ("no K", {"mat_a": torch.ones(M, 0), "mat_b": torch.ones(G, 0, N)}, "mat_a: must have K of at"),
    ("no N", {"mat_b": torch.ones(G, K, 0)}, "mat_b: must have N of at least 1"),
    ("an integer type", {"out_dtype": torch.int8}, "out_dtype: must be .*, or None"),
    ("a word for a type", {"out_dtype": "float32"}, r"out_dtype: must be .* \(got 'float32'\)"),
    ("a bias of another N", {"bias": torch.ones(7)}, r"bias: must have shape \(40,\) or \(3, 40\)"),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in MISTAKES])
def test_mistakes_are_told(change: dict[str, Any], words: str) -> None:
    """By the names that the caller knows, of which a kernel's call had others."""
    given = {"mat_a": torch.ones(M, K), "mat_b": torch.ones(G, N, K).mT, "offs": OFFS} | change
    with pytest.raises(InputError, match=words) as caught:
        grouped_mm(**given)
    assert caught.value.argument in inspect.signature(grouped_mm).parameters
    assert not KERNELS_OWN.search(str(caught.value))


@pytest.mark.parametrize("form", FORMS)
def test_what_the_target_has_no_kernel_for_is_told_likewise(form: str) -> None:
    """Hopper multiplies no float32: the kernel's call says so of its a, which may be mat_b."""
    mat_a, mat_b, offs = FORMS[form]
    words = r"^mat_[ab]: must be bfloat16 or float16 .*on sm_90a"
    with device("sm_90a", num_sms=1), pytest.raises(InputError, match=words) as caught:
        grouped_mm(mat_a, mat_b, offs)
    assert not KERNELS_OWN.search(str(caught.value))


class TestScaled:
    @pytest.mark.parametrize("is_told", [False, True])
    def test_rows(self, *, is_told: bool) -> None:
        a, a_scale = quantize.per_row(normal(M, K))
        b, b_scale = quantize.per_row(normal(G, N, K))
        recipe = ScalingType.RowWise
        found = (
            scaled_grouped_mm(a, b.mT, a_scale, recipe, b_scale, recipe, offs=OFFS)
            if is_told
            else scaled_grouped_mm(a, b.mT, a_scale, b_scale, OFFS)
        )

        assert torch.equal(found, jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=OFFS))
        right = exact(
            a.double() * a_scale.double()[:, None],
            b.double().mT * b_scale.double()[:, None],
            OFFS,
        )
        assert (found.double() - right).norm() < 4e-3 * right.norm()

    def test_matrices(self) -> None:
        a, a_scale = quantize.per_row(normal(G, M, K))
        b, b_scale = quantize.per_row(normal(G, N, K))
        found = scaled_grouped_mm(a, b.mT, a_scale, b_scale, out_dtype=torch.float32)

        right = (a.double() * a_scale[..., None]) @ (b.double() * b_scale[..., None]).mT
        assert (found.double() - right).norm() < 1e-5 * right.norm()

    def test_columns(self) -> None:
        a, a_scale = quantize.per_row(normal(G, 16, K))
        b, b_scale = quantize.per_row(normal(M, K))
        found = scaled_grouped_mm(a, b.t(), a_scale, b_scale, offs=ENDS_OF_N)

        values = a.double() * a_scale[..., None], (b.double() * b_scale[:, None]).t()
        right = exact(*values, ENDS_OF_N)
        assert (found.double() - right).norm() < 4e-3 * right.norm()

    def test_tensors(self) -> None:
        a, a_scale = quantize.per_tensor(normal(M, K))
        b, b_scale = quantize.per_matrix(normal(G, N, K))
        recipe = ScalingType.TensorWise
        found = scaled_grouped_mm(a, b.mT, a_scale, recipe, b_scale, recipe, offs=OFFS)

        assert torch.equal(found, jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=OFFS))

    def test_blocks(self) -> None:
        a, a_scale = quantize.per_token_group(normal(M, 272))
        b, b_scale = quantize.per_block(normal(G, 136, 272))
        recipes = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        found = scaled_grouped_mm(a, b.mT, a_scale, recipes[0], b_scale.mT, recipes[1], offs=OFFS)

        assert torch.equal(found, jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=OFFS))

    @pytest.mark.parametrize("is_told", [False, True])
    def test_mx(self, *, is_told: bool) -> None:
        """With scales as torch has them: a's as a matrix, each matrix of b's in a row."""
        a, a_scale = quantize.mxfp8(normal(M, 96), offs=OFFS)
        b, b_scale = quantize.mxfp8(normal(G, N, 96))
        of_a, of_b = quantize.to_torch(a_scale), quantize.to_torch(b_scale).flatten(1)
        recipe, swizzle = ScalingType.BlockWise1x32, SwizzleType.SWIZZLE_32_4_4
        found = (
            scaled_grouped_mm(a, b.mT, of_a, recipe, of_b, recipe, swizzle, swizzle, offs=OFFS)
            if is_told
            else scaled_grouped_mm(a, b.mT, of_a, of_b, offs=OFFS)
        )

        assert torch.equal(found, jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=OFFS))

    def test_nv(self) -> None:
        a, a_scale, of_all_a = quantize.nvfp4(normal(M, 96), offs=OFFS)
        b, b_scale, of_all_b = quantize.nvfp4(normal(G, N, 96))
        pairs = torch.float4_e2m1fn_x2
        recipes = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
        swizzles = [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE]
        found = scaled_grouped_mm(
            a.view(pairs),
            b.view(pairs).mT,
            [quantize.to_torch(a_scale), of_all_a],
            recipes,
            [quantize.to_torch(b_scale).flatten(1), of_all_b],
            recipes,
            swizzles,
            swizzles,
            offs=OFFS,
            output_dtype=torch.float32,
        )

        expected = jitgen.grouped_gemm(
            a, b, a_scale, b_scale, offs=OFFS, alpha=of_all_a * of_all_b, out_dtype=torch.float32
        )
        assert torch.equal(found, expected)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                {"scale_recipe_a": ScalingType.TensorWise},
                "scale_recipe_a: must be one of RowWise w",
            ),
            (
                {"swizzle_a": SwizzleType.SWIZZLE_32_4_4},
                "swizzle_a: must be NO_SWIZZLE for RowWise",
            ),
            ({"contraction_dim": [0, 0]}, r"contraction_dim: must be left out or \[1, 1\]"),
            ({"scale_a": [torch.ones(M)] * 2}, "scale_a: must be a tensor for each recipe, 1"),
            ({"scale_a": torch.ones(M, 1)}, r"scale_a: must have shape \(24,\), .* scale_b's dim"),
            ({"scale_b": torch.ones(G, N).half()}, "scale_b: must be float32 or"),
            ({"scale_a": torch.ones(M, device="meta")}, "scale_a: must be on cpu, as mat_a is"),
            ({"scale_a": [1.0]}, r"scale_a: must be a Tensor, or several \(got float\)"),
            ({"scale_recipe_a": "RowWise"}, "scale_recipe_a: must be a ScalingType, or several"),
            ({"scale_recipe_a": []}, "scale_recipe_a: must be one of .*got none with RowWise"),
            ({"output_dtype": torch.int8}, "output_dtype: must be bfloat16"),
            ({"contraction_dim": [1]}, "contraction_dim: must be left out"),
            ({"mat_b": torch.ones(G, K, N).to(EIGHT)}, "mat_b: must have K contiguous where it is"),
            ({"mat_a": torch.ones(M, K).to(torch.float8_e5m2)}, "mat_a: must be .*float8_e5m2"),
            (
                {"scale_b": torch.ones(G, N).requires_grad_()},
                "scale_b: must not require a gradient, because quantised operands have none: train",
            ),
            (
                {
                    "mat_b": torch.ones(N, K).to(EIGHT).mT,
                    "scale_recipe_a": ScalingType.TensorWise,
                    "scale_recipe_b": ScalingType.TensorWise,
                },
                "scale_recipe_a: must be RowWise with RowWise where groups are along K",
            ),
            (
                {"mat_b": torch.ones(N, K).to(EIGHT).mT},
                r"scale_a: must be float32, \(72,\), 24 for each of 3 groups",
            ),
            (
                {
                    "scale_recipe_a": ScalingType.BlockWise1x32,
                    "scale_recipe_b": ScalingType.BlockWise1x32,
                    "swizzle_a": SwizzleType.SWIZZLE_32_4_4,
                    "swizzle_b": SwizzleType.SWIZZLE_32_4_4,
                    "scale_a": torch.ones(384, 5),
                },
                r"scale_a: must be contiguous, \(R, 4\), in blocks of 128 rows x 4",
            ),
        ],
    )
    def test_mistakes_are_told(self, change: dict[str, Any], words: str) -> None:
        given = {
            "mat_a": torch.ones(M, K).to(EIGHT),
            "mat_b": torch.ones(G, N, K).to(EIGHT).mT,
            "scale_a": torch.ones(M),
            "scale_recipe_a": ScalingType.RowWise,
            "scale_b": torch.ones(G, N),
            "scale_recipe_b": ScalingType.RowWise,
            "offs": OFFS,
        }
        with pytest.raises(InputError, match=words) as caught:
            scaled_grouped_mm(**given | change)  # type: ignore[call-overload]
        assert caught.value.argument in inspect.signature(F.scaled_grouped_mm).parameters
        assert not KERNELS_OWN.search(str(caught.value))

    def test_scales_that_are_none(self) -> None:
        """Not a TypeError about an argument of the other function."""
        a, b = torch.ones(M, K).to(EIGHT), torch.ones(G, N, K).to(EIGHT).mT
        with pytest.raises(InputError, match=r"scale_a: must be a torch tensor \(got NoneType\)"):
            scaled_grouped_mm(a, b, None, None, OFFS)  # type: ignore[call-overload]

    @pytest.mark.parametrize("is_strided", [False, True])
    @pytest.mark.parametrize("form", ["2d_3d", "3d_3d", "3d_2d", "2d_2d"])
    def test_every_form(self, form: str, is_strided: bool) -> None:
        """As torch tests them: rows with scales, operands among others, an empty group."""
        sizes = {"G": 4, "M": 16, "N": 32, "K": 64}
        kind = Kind(form, True, False, is_strided, torch.float32, tuple(sizes.items()))
        problem = replace(kind, has_rest=form != "3d_3d").make(is_exact=False)
        a, b = (
            laid(values.to(EIGHT), is_last, is_strided)
            for values, is_last in ((problem.mat_a, True), (problem.mat_b, False))
        )
        if form == "2d_2d":
            rows, columns = ((sizes["G"], size) for size in (16, 32))
        else:
            rows, columns = a.shape[:-1], (*b.shape[:-2], b.shape[-1])
        of_a, of_b = (torch.rand(*shape) + 0.5 for shape in (rows, columns))
        flat = form == "2d_2d"
        found = scaled_grouped_mm(
            *(a, b, of_a.flatten() if flat else of_a, of_b.flatten() if flat else of_b),
            problem.offs,
            out_dtype=torch.float32,
        )
        eighth = replace(problem, mat_a=a.float(), mat_b=b.float())
        parts = zip(eighth.parts, eighth.result(found), eighth.expected(), strict=True)
        for g, ((in_a, in_b, _), mine, right) in enumerate(parts):
            row = of_a[g] if flat else of_a[in_a]
            column = of_b[g] if flat else of_b[in_b[1]] if form == "3d_2d" else of_b[in_b]
            scaled = right * row.double()[:, None] * column.double()
            assert (mine.double() - scaled).norm() <= 1e-6 * scaled.norm()

    def test_a_scaled_result_is_refused(self) -> None:
        a, a_scale = quantize.per_row(normal(M, K))
        b, b_scale = quantize.per_row(normal(G, N, K))
        with pytest.raises(InputError, match="scale_result: must be None"):
            scaled_grouped_mm(a, b.mT, a_scale, b_scale, OFFS, scale_result=torch.ones(1))


@form
def test_torch_compile_sees_one_operation(form: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    mat_a, mat_b, offs = FORMS[form]
    mat_a, mat_b = mat_a.bfloat16(), mat_b.bfloat16()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(jitgen.torch.grouped_mm, fullgraph=True, backend=counter)

    assert torch.equal(compiled(mat_a, mat_b, offs), grouped_mm(mat_a, mat_b, offs))
    op = "grouped_gemm_wgrad" if form.startswith("2D x 2D") else "grouped_gemm"
    assert f"jitgen.{op}.default" in str(counter.graphs[0].graph)


def test_torch_compile_reads_recipes() -> None:
    torch._dynamo.reset()
    a, a_scale = quantize.per_row(normal(M, K))
    b, b_scale = quantize.per_row(normal(G, N, K))
    recipe = ScalingType.RowWise

    def layer(a: Tensor, a_scale: Tensor) -> Tensor:
        return scaled_grouped_mm(a, b.mT, a_scale, recipe, b_scale, recipe, offs=OFFS)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, a_scale), layer(a, a_scale))


@pytest.mark.nightly
def test_importing_the_package_registers_every_operation() -> None:
    """Programs that load an exported graph import nothing else of jitgen's."""
    registered = "torch._C._dispatch_get_registrations_for_dispatch_key('CPU')"
    program = f"import torch, jitgen.torch; print(*{registered})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found = {name for name in done.stdout.split() if name.startswith("jitgen::")}

    names = {name.removeprefix("jitgen::").partition(".")[0] for name in found}
    modules = Path(jitgen.ops.tracing.__file__).parent.glob("*.py")
    wanted = {path.stem for path in modules} - {"__init__", "compiled", "gradients", "library"}
    assert names == {{"prepared_gemm": "grouped_gemm_prepared"}.get(x, x) for x in wanted}
