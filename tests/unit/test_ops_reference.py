# SPDX-License-Identifier: Apache-2.0
"""The reference, against the formula written out with one loop for each index."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from jitgen import quantize, reference
from jitgen.errors import InputError

GROUPS, ROWS, SIZE_N, SIZE_K = 3, 10, 130, 131


def operands(granularity: str, *, is_masked: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn((GROUPS, ROWS, SIZE_K) if is_masked else (ROWS, SIZE_K))
    w = torch.randn(GROUPS, SIZE_N, SIZE_K)
    of_a, of_b = {
        "tensor": (quantize.per_tensor, quantize.per_matrix),
        "row": (quantize.per_row, quantize.per_row),
        "block128": (quantize.per_token_group, quantize.per_block),
    }[granularity]
    (a, a_scale), (b, b_scale) = of_a(x), of_b(w)
    return a, b, a_scale, b_scale


def written_out(granularity: str, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """Return a (M, K) times one group's b (N, K), each value with its scale, in float64."""
    products = a.double()[:, None, :] * b.double()[None, :, :]
    result = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for m, n in itertools.product(range(a.shape[0]), (0, 127, 128, 129)):
        for k in range(SIZE_K):
            if granularity == "tensor":
                scale = a_scale[0] * b_scale
            elif granularity == "row":
                scale = a_scale[m] * b_scale[n]
            else:
                scale = a_scale[m, k // 128] * b_scale[n // 128, k // 128]
            result[m, n] += products[m, n, k] * scale
    return result


@pytest.mark.parametrize("granularity", ["tensor", "row", "block128"])
@pytest.mark.parametrize("layout", ["ragged", "contiguous", "masked"])
def test_formula(layout: str, granularity: str) -> None:
    a, b, a_scale, b_scale = operands(granularity, is_masked=layout == "masked")
    groups, owner = {
        "ragged": ({"offs": [4, 4, 9]}, [0, 0, 0, 0, 2, 2, 2, 2, 2, -1]),
        "contiguous": ({"m_indices": [0, 0, 0, -1, 2, 2, 2, 2, -1, 1]},) * 2,
        "masked": ({"masked_m": [3, 0, 10]}, None),
    }[layout]
    given = {name: torch.tensor(rows, dtype=torch.int32) for name, rows in groups.items()}
    out = torch.full((*a.shape[:-1], SIZE_N), 99.0)
    columns = [0, 127, 128, 129]

    assert reference.grouped_gemm(a, b, a_scale, b_scale, out=out, **given) is out
    for g in range(GROUPS):
        of_a = (a[g], a_scale if granularity == "tensor" else a_scale[g])
        matrix, scale = of_a if layout == "masked" else (a, a_scale)
        expected = written_out(granularity, matrix, b[g], scale, b_scale[g])
        if owner is None:
            rows, got = range(groups["masked_m"][g]), out[g]
            assert (got[groups["masked_m"][g] :] == 99).all()
        else:
            ids = owner["m_indices"] if isinstance(owner, dict) else owner
            rows, got = [m for m, of in enumerate(ids) if of == g], out
            assert (out[[m for m, of in enumerate(ids) if of < 0]] == 99).all()
        rows = list(rows)
        assert torch.allclose(
            got[rows][:, columns].double(), expected[rows][:, columns], rtol=1e-4, atol=1e-4
        )


def test_operands_without_scales() -> None:
    a, b = torch.randn(4, 8), torch.randn(2, 3, 8)
    out = reference.grouped_gemm(
        a, b, offs=torch.tensor([1, 4], dtype=torch.int32), out_dtype=torch.float32
    )

    assert torch.allclose(out, torch.cat([a[:1] @ b[0].T, a[1:] @ b[1].T]))


def test_new_output_is_of_the_operands_type_and_zero_outside_groups() -> None:
    a, b = torch.ones(4, 8), torch.ones(2, 3, 8)
    offs = torch.tensor([1, 2], dtype=torch.int32)
    out = reference.grouped_gemm(a, b, offs=offs)

    assert out.dtype is torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        assert reference.grouped_gemm(a.to(dtype), b.to(dtype), offs=offs).dtype is dtype
    assert (out[:2] == 8).all()
    assert (out[2:] == 0).all()


def test_one_layout_is_required() -> None:
    with pytest.raises(InputError, match="exactly one of offs, m_indices and masked_m"):
        reference.grouped_gemm(torch.ones(4, 8), torch.ones(2, 3, 8))
    with pytest.raises(InputError, match="alpha"):
        reference.grouped_gemm(torch.ones(4, 8), torch.ones(2, 3, 8), alpha=torch.ones(2))
