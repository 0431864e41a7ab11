# SPDX-License-Identifier: Apache-2.0
"""
The four forms of a grouped product in torch, as grouped GEMMs of jitgen.

One form is one function in `_FORMS`, by the dimensions of its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm_wgrad.call import grouped_gemm_wgrad


class Scales(NamedTuple):
    """
    What the operands are multiplied with, as `jitgen.grouped_gemm` takes it.

    Attributes:
        of_a: Scales of mat_a.
        of_b: Scales of mat_b.
        alpha: A factor of each group.
    """

    of_a: Tensor | None = None
    of_b: Tensor | None = None
    alpha: Tensor | None = None


def product(
    mat_a: Tensor,
    mat_b: Tensor,
    scales: Scales,
    offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """
    Return the products of groups in any form that has a kernel; `out_dtype` None: mat_a's.

    Raises:
        InputError: It has none, or an argument is wrong.
    """
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if not isinstance(matrix, Tensor):
            raise InputError(name, f"must be a torch tensor (got {type(matrix).__name__})")
        if matrix.dim() not in {2, 3}:
            raise InputError(name, f"must have 2 or 3 dimensions (got shape {tuple(matrix.shape)})")
    if (offs is None) != (mat_a.dim() == mat_b.dim() == 3):
        what = "belongs to 2D operands" if offs is not None else "is required with a 2D operand"
        raise InputError("offs", f"{what} (got {_shapes(mat_a, mat_b)})")
    form = _FORMS[mat_a.dim(), mat_b.dim()]
    return form(mat_a, mat_b, scales, offs, bias, out_dtype or mat_a.dtype)


_Form = Callable[
    [Tensor, Tensor, Scales, Tensor | None, Tensor | None, torch.dtype],
    Tensor,
]


def _ragged(
    mat_a: Tensor,
    mat_b: Tensor,
    scales: Scales,
    offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Rows of mat_a in groups: activations times weights."""
    _require_k(mat_a, mat_b)
    return grouped_gemm(
        mat_a,
        mat_b.transpose(1, 2),
        scales.of_a,
        scales.of_b,
        offs=offs,
        alpha=scales.alpha,
        bias=_bias(bias, mat_b),
        out_dtype=out_dtype,
    )


def _batched(
    mat_a: Tensor,
    mat_b: Tensor,
    scales: Scales,
    _offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """One matrix for each group: masked rows, of which all count."""
    _require_k(mat_a, mat_b)
    groups, rows = mat_a.shape[:2]
    every = torch.full((groups,), rows, dtype=torch.int32, device=mat_a.device)
    return grouped_gemm(
        mat_a,
        mat_b.transpose(1, 2),
        scales.of_a,
        scales.of_b,
        masked_m=every,
        alpha=scales.alpha,
        bias=_bias(bias, mat_b),
        out_dtype=out_dtype,
    )


def _columns(
    mat_a: Tensor,
    mat_b: Tensor,
    scales: Scales,
    offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Columns of mat_b in groups: the transpose of rows in groups."""
    _require_k(mat_a, mat_b)
    if bias is not None:
        raise InputError("bias", f"has no kernel for {_shapes(mat_a, mat_b)}: add it afterwards")
    return grouped_gemm(
        mat_b.t(),
        mat_a,
        scales.of_b,
        scales.of_a,
        offs=offs,
        alpha=scales.alpha,
        out_dtype=out_dtype,
    ).t()


def _along_k(
    mat_a: Tensor,
    mat_b: Tensor,
    scales: Scales,
    offs: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Groups along K: the gradient of weights, which reads mat_a by columns."""
    _require_k(mat_a, mat_b)
    if scales.of_a is not None or bias is not None:
        name, what = ("bias", "a bias") if bias is not None else ("mat_a", "quantised operands")
        raise InputError(
            name, f"groups along K ({_shapes(mat_a, mat_b)}) have no kernel for {what}"
        )
    columns = mat_a.t()
    columns = columns if columns.stride(1) == 1 else columns.contiguous()
    return grouped_gemm_wgrad(columns, mat_b, offs=offs, out_dtype=out_dtype)


_FORMS: dict[tuple[int, int], _Form] = {
    (2, 3): _ragged,
    (3, 3): _batched,
    (3, 2): _columns,
    (2, 2): _along_k,
}
"""Every form, by the dimensions of mat_a and mat_b."""


def _require_k(mat_a: Tensor, mat_b: Tensor) -> None:
    """Require mat_b to have K in front of N, as torch has it."""
    size_k = mat_a.shape[-1]
    if mat_b.shape[-2] == size_k:
        return
    advice = ""
    if mat_b.dim() == 3 and mat_b.shape[-1] == size_k:
        advice = "; weights (G, N, K) are what jitgen.grouped_gemm takes"
    raise InputError(
        "mat_b",
        f"must have K = {size_k} in its dimension before the last, as mat_a has in its last (got "
        f"{_shapes(mat_a, mat_b)}){advice}",
    )


def _bias(bias: Tensor | None, mat_b: Tensor) -> Tensor | None:
    """Return a bias for each group, (G, N) float32."""
    if bias is None:
        return None
    shape = (mat_b.shape[0], mat_b.shape[2])
    if tuple(bias.shape) not in {shape, shape[1:]}:
        raise InputError(
            "bias", f"must have shape {shape[1:]} or {shape} (got {tuple(bias.shape)})"
        )
    return bias.float().expand(shape)


def _shapes(mat_a: Tensor, mat_b: Tensor) -> str:
    return f"mat_a {tuple(mat_a.shape)} and mat_b {tuple(mat_b.shape)}"
