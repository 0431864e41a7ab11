# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `grouped_gemm`, in float32 torch.

    out[m, n] = sum over k of  a[m, k] * a_scale[m, k]  *  b[g, n, k] * b_scale[g, n, k]

where g is the group of row m and each scale is repeated over the values that share it; with nv16
scales the sum is multiplied by alpha[g], and bias[g, n] is added where there is one. Prepacked
weights are decoded with their scales, and the two parts of a are added. Kernels add in another
order and round once, at the end, to the type of `out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import InputError
from jitgen.formats import block128, format_of_b, row
from jitgen.formats.e2m1 import values_of
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import Rows
from jitgen.ops.tensors import result_of


def grouped_gemm(  # noqa: PLR0913  # the arguments of the real one
    a: Tensor,
    b: Tensor | PrepackedWeights,
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    alpha: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,  # noqa: ARG001  # as in the real one
    min_latency: bool | None = None,  # noqa: ARG001
    numerics: str | None = None,  # noqa: ARG001
    config: GroupedGemmConfig | None = None,  # noqa: ARG001  # likewise
) -> Tensor:
    """
    Compute the result of `jitgen.grouped_gemm` for the same arguments, slowly and plainly.

    This waits for the device, and checks less than `jitgen.grouped_gemm` does. Rows of no group are
    0, or untouched where `out` is given. `expected_m`, `min_latency`, `numerics` and `config`
    change nothing.
    """
    groups = {"offs": offs, "m_indices": m_indices, "masked_m": masked_m}
    scales = {"a_scale": a_scale, "b_scale": b_scale, "alpha": alpha, "bias": bias}
    given = {"a": a, "b": b, **scales, **groups}
    if out is None:
        out = torch.zeros(_shape(given), dtype=out_dtype or result_of(a.dtype), device=a.device)
    for rows, product in _products(given, torch.float32, is_absolute=False):
        out[rows] = product.to(out.dtype)
    return out


def sums(
    given: Mapping[str, Any], dtype: torch.dtype = torch.float32, *, is_absolute: bool = False
) -> Tensor:
    """
    Return the results before they are rounded to the output type.

    Args:
        given: Arguments of `grouped_gemm` by their names.
        dtype: Type of the arithmetic: float32 or float64.
        is_absolute: Use the absolute values of a and b; bounds of rounding errors are relative to
            these sums.

    Returns:
        (M, N) or (G, M, N) of `dtype`, 0 in rows of no group.
    """
    found = torch.zeros(_shape(given), dtype=dtype, device=given["a"].device)
    for rows, product in _products(given, dtype, is_absolute=is_absolute):
        found[rows] = product
    return found


def _products(
    given: Mapping[str, Any], dtype: torch.dtype, *, is_absolute: bool
) -> Iterator[tuple[Any, Tensor]]:
    """Yield the index of each group's rows, and their results."""
    if isinstance(given["b"], PrepackedWeights):
        yield from _of_prepacked(given, dtype, is_absolute=is_absolute)
        return
    a_scale, b_scale, alpha = (given.get(name) for name in ("a_scale", "b_scale", "alpha"))
    offs, b, bias = given.get("offs"), given["b"], given.get("bias")
    form = None if b_scale is None else format_of_b(b_scale)
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
        product = product if alpha is None else product * alpha[group]
        yield rows, _biased(product, bias, group, is_absolute=is_absolute)


def _of_prepacked(
    given: Mapping[str, Any], dtype: torch.dtype, *, is_absolute: bool
) -> Iterator[tuple[Any, Tensor]]:
    """
    Yield index and result of each group's rows for prepacked weights, which contain their scales.
    """
    a, b = given["a"].to(dtype), given["b"].weights(dtype)
    if is_absolute:
        a, b = a.abs(), b.abs()
    a_scale = given.get("a_scale")
    if a_scale is not None:
        form = block128.FORMAT if a_scale.dim() == a.dim() else row.FORMAT
        a = a * form.repeated_a(a_scale, Rows(tuple(a.shape[:-1])), a.shape[-1])
    if _has_parts(given):
        a = a.sum(-2)
    for group, rows in _rows(given.get("offs"), given.get("m_indices"), given.get("masked_m")):
        if len(a[rows]):
            product = a[rows] @ b[group].T
            yield rows, _biased(product, given.get("bias"), group, is_absolute=is_absolute)


def _biased(product: Tensor, bias: Tensor | None, group: int, *, is_absolute: bool) -> Tensor:
    """Return a group's product with its bias."""
    if bias is None:
        return product
    return product + (bias[group].abs() if is_absolute else bias[group])


def _has_parts(given: Mapping[str, Any]) -> bool:
    """
    Say whether a has two rows for each token, and so one dimension more than the layout needs.
    """
    return bool(given["a"].dim() > (2 if given.get("masked_m") is None else 3))


def _shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the result."""
    a, b = given["a"], given["b"]
    if isinstance(b, PrepackedWeights):
        return (*a.shape[: -2 if _has_parts(given) else -1], b.n)
    return (*a.shape[:-1], b.shape[1])


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
