# SPDX-License-Identifier: Apache-2.0
"""`jitgen.torch.scaled_grouped_mm`: torch's two functions of that name, of every kind of scales."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

import jitgen
from jitgen import quantize
from jitgen.errors import InputError
from jitgen.torch import scaled, scaled_grouped_mm
from tests import needs
from tests.compile.test_drop_ins import (
    EIGHT,
    ENDS_OF_N,
    KERNELS_OWN,
    OFFS,
    G,
    K,
    M,
    N,
    exact,
    normal,
)
from tests.grouped_forms import Kind, laid

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]


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
        ("swizzles", "words"),
        [
            (
                [SwizzleType.SWIZZLE_32_4_4] * 2,
                "must be NO_SWIZZLE for TensorWise .got SWIZZLE_32_4_4",
            ),
            (
                [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE, SwizzleType.NO_SWIZZLE],
                "must be one for each recipe, 2 .got 3",
            ),
        ],
    )
    def test_every_swizzle_is_checked(self, swizzles: list[Any], words: str) -> None:
        """Only the first one was."""
        recipes = (ScalingType.BlockWise1x16, ScalingType.TensorWise)

        scaled._require_swizzle("a", recipes, (SwizzleType.SWIZZLE_32_4_4,))
        with pytest.raises(InputError, match=f"swizzle_a: {words}"):
            scaled._require_swizzle("a", recipes, tuple(swizzles))

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


@needs.newer_dynamo
def test_torch_compile_reads_recipes() -> None:
    torch._dynamo.reset()
    a, a_scale = quantize.per_row(normal(M, K))
    b, b_scale = quantize.per_row(normal(G, N, K))
    recipe = ScalingType.RowWise

    def layer(a: Tensor, a_scale: Tensor) -> Tensor:
        return scaled_grouped_mm(a, b.mT, a_scale, recipe, b_scale, recipe, offs=OFFS)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, a_scale), layer(a, a_scale))
