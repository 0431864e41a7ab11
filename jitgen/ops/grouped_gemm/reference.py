# SPDX-License-Identifier: Apache-2.0
"""
What the kernels compute, in float32 torch.

    out[m, n] = sum over k of  a[m, k] * a_scale[m, k]  *  b[g, n, k] * b_scale[g, n, k]

where g is the group of row m and each scale is repeated over the values that share it; with nv16
scales the sum is multiplied by alpha[g]. Kernels add in another order and round once, at the end,
to the type of `out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from jitgen import formats
from jitgen.errors import InputError
from jitgen.formats.e2m1 import values_of
from jitgen.formats.protocol import Rows
from jitgen.ops.grouped_gemm.config import KernelConfig


def grouped_gemm(  # noqa: PLR0913  # the arguments of the real one
    a: Tensor,
    b: Tensor,
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    alpha: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,  # noqa: ARG001  # as in the real one
    min_latency: bool | None = None,  # noqa: ARG001
    config: KernelConfig | None = None,  # noqa: ARG001  # likewise
) -> Tensor:
    """
    Return what `jitgen.grouped_gemm` returns for the same arguments, computed slowly and plainly.

    Waits for the device, and checks less than the kernels do. Rows of no group are 0, or untouched
    where `out` is given. `expected_m`, `min_latency` and `config` change nothing.
    """
    if out is None:
        shape = (*a.shape[:-1], b.shape[1])
        out = torch.zeros(shape, dtype=out_dtype or torch.bfloat16, device=a.device)
    groups = {"offs": offs, "m_indices": m_indices, "masked_m": masked_m}
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "alpha": alpha, **groups}
    for rows, product in _products(given, torch.float32, is_absolute=False):
        out[rows] = product.to(out.dtype)
    return out


def sums(
    given: Mapping[str, Any], dtype: torch.dtype = torch.float32, *, is_absolute: bool = False
) -> Tensor:
    """
    Return what a result is rounded from.

    Args:
        given: Arguments of `grouped_gemm` by their names.
        dtype: Type of the arithmetic: float32 or float64.
        is_absolute: Take the absolute values of a and b: rounding errors are relative to such sums.

    Returns:
        (M, N) or (G, M, N) of `dtype`, 0 in rows of no group.
    """
    a, b = given["a"], given["b"]
    found = torch.zeros((*a.shape[:-1], b.shape[1]), dtype=dtype, device=a.device)
    for rows, product in _products(given, dtype, is_absolute=is_absolute):
        found[rows] = product
    return found


def _products(
    given: Mapping[str, Any], dtype: torch.dtype, *, is_absolute: bool
) -> Iterator[tuple[Any, Tensor]]:
    """Yield the index of each group's rows, and their results."""
    a_scale, b_scale, alpha = (given.get(name) for name in ("a_scale", "b_scale", "alpha"))
    offs, b = given.get("offs"), given["b"]
    form = None if b_scale is None else formats.of_b(b_scale)
    if form is None and (a_scale is not None or b_scale is not None):
        raise InputError("b_scale", "must have the type and dimensions of a format of scales")
    if (alpha is None) == (form is not None and form.has_alpha):
        raise InputError("alpha", "belongs to nv16 scales: give it with them, and only with them")

    def values(x: Tensor) -> Tensor:
        return values_of(x, dtype).abs() if is_absolute else values_of(x, dtype)

    a = values(given["a"])
    if form is not None and a_scale is not None:
        lead = Rows(tuple(a.shape[:-1]), 0 if offs is None else len(offs), offs)
        a = a * form.repeated_a(a_scale, lead, a.shape[-1])
    for group, rows in _rows(offs, given.get("m_indices"), given.get("masked_m")):
        if not len(a[rows]):
            continue
        weights = values(b[group])
        if form is not None and b_scale is not None:
            weights = weights * form.repeated_b(b_scale[group], *weights.shape)
        product = a[rows] @ weights.T
        yield rows, product if alpha is None else product * alpha[group]


def _rows(
    offs: Tensor | None, m_indices: Tensor | None, masked_m: Tensor | None
) -> Iterator[tuple[int, Any]]:
    """Yield each group and the index of its rows in a and out."""
    if sum(given is not None for given in (offs, m_indices, masked_m)) != 1:
        raise InputError("offs", "give exactly one of offs, m_indices and masked_m")
    if offs is not None:
        start = 0
        for group, end in enumerate(offs.tolist()):
            yield group, slice(start, end)
            start = end
    elif m_indices is not None:
        for group in sorted(set(m_indices.tolist())):
            if group >= 0:
                yield group, (m_indices == group).nonzero().flatten()
    elif masked_m is not None:
        for group, valid in enumerate(masked_m.tolist()):
            yield group, (group, slice(0, valid))
