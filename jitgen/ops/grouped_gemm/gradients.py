# SPDX-License-Identifier: Apache-2.0
"""
The gradients of a grouped GEMM. That of its rows is a grouped GEMM with transposed weights, that of
its weights is `grouped_gemm_wgrad`, and that of a bias is the same with ones in place of a.

    y = a . b[g] transposed + bias[g]     da = dy . b[g]     db[g] = (dy of g) transposed . (a of g)
    dbias[g] = the sum of the rows of dy that are g's

They exist for operands of bfloat16 and float16, and on a CPU of float32, without scales. Operands
that kernels cannot read are copied: a dy that is not dense or has another type than a; and, for
contiguous rows, dy and a in the order of groups.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm_wgrad.call import grouped_gemm_wgrad


def of_rows(
    dy: Tensor,
    b: Tensor,
    groups: Mapping[str, Tensor],
    expected_m: int | None,
    numerics: str | None = None,
) -> Tensor:
    """
    Return the gradient of a, in the type of b: 0 in rows of no group.

    Args:
        dy: The gradient of the result.
        b: (G, N, K), the weights.
        groups: The argument that says which rows belong to which group, by its name.
        expected_m: How many rows a group is expected to have.
        numerics: The numerics of the product: see `jitgen.grouped_gemm`.
    """
    da = dy.new_zeros((*dy.shape[:-1], b.shape[-1]), dtype=b.dtype)
    dy, turned = _readable(dy, b.dtype), b.transpose(1, 2)
    return grouped_gemm(
        *(dy, turned),
        **groups,  # type: ignore[arg-type]
        out=da,
        expected_m=expected_m,
        numerics=numerics,
    )


def of_weights(
    dy: Tensor,
    a: Tensor,
    num_groups: int,
    groups: Mapping[str, Tensor],
    expected_m: int | None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """
    Return the gradient of b, (G, N, K): 0 for groups without rows.

    Args:
        dy: The gradient of the result.
        a: The operand of the product.
        num_groups: Number of groups G.
        groups: The argument that says which rows belong to which group, by its name.
        expected_m: How many rows a group is expected to have.
        out_dtype: Type of the gradient; None: that of a.
    """
    dy = _readable(dy, a.dtype)
    m_indices = groups.get(ARGUMENT[Layout.CONTIGUOUS])
    if m_indices is not None:
        order, offs = _sorted(m_indices, num_groups)
        dy, a, groups = dy[order], a[order], {ARGUMENT[Layout.RAGGED]: offs}
    return grouped_gemm_wgrad(
        dy,
        a,
        **groups,  # type: ignore[arg-type]
        out_dtype=out_dtype or a.dtype,
        expected_m=expected_m,
    )


BIAS_COLUMNS = 8
"""
Number of columns of ones, or of weights of rows, that replace a for the gradient of a bias: the
fewest that kernels accept, 16 bytes of bfloat16.
"""


def of_bias(
    dy: Tensor,
    dtype: torch.dtype,
    num_groups: int,
    groups: Mapping[str, Tensor],
    expected_m: int | None,
) -> Tensor:
    """
    Return the gradient of a bias, (G, N) float32: 0 for groups without rows.

    Rows are added up in float32 in an order that depends on nothing but their number.

    Args:
        dy: The gradient of the result.
        dtype: Type of the operands; dy is rounded to it, as for their gradients.
        num_groups: Number of groups G.
        groups: The argument that says which rows belong to which group, by its name.
        expected_m: How many rows a group is expected to have.
    """
    ones = dy.new_ones((*dy.shape[:-1], BIAS_COLUMNS), dtype=dtype)
    sums = of_weights(dy, ones, num_groups, groups, expected_m, torch.float32)
    return sums[..., 0].contiguous()


def _readable(dy: Tensor, dtype: torch.dtype) -> Tensor:
    """Return dy in the form that kernels read: dense, and of the type of the operands."""
    return dy.to(dtype).contiguous()


def _sorted(m_indices: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """
    Return the indices of the rows sorted by group, padding rows last, and the end of each group.
    """
    owners = torch.where(m_indices < 0, num_groups, m_indices)
    in_order, order = torch.sort(owners, stable=True)
    every = torch.arange(num_groups, dtype=owners.dtype, device=owners.device)
    return order, torch.searchsorted(in_order, every, right=True, out_int32=True)
