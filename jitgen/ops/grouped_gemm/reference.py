# SPDX-License-Identifier: Apache-2.0
"""
What the kernels compute, in float32 torch.

    out[m, n] = sum over k of  a[m, k] * a_scale[m, k]  *  b[g, n, k] * b_scale[g, n, k]

where g is the group of row m and each scale is repeated over the values that share it. Kernels add
in another order and round once, at the end, to the type of `out`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from jitgen import formats
from jitgen.errors import InputError
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
    config: KernelConfig | None = None,  # noqa: ARG001  # likewise
) -> Tensor:
    """
    Return what `jitgen.grouped_gemm` returns for the same arguments, computed slowly and plainly.

    Waits for the device, and checks less than the kernels do. Rows of no group are 0, or untouched
    where `out` is given. `expected_m` and `config` change nothing.
    """
    if alpha is not None:
        raise InputError("alpha", "belongs to nv16 scales, which have no kernel yet: leave it out")
    form = None if b_scale is None else formats.of_b(b_scale)
    if form is None and (a_scale is not None or b_scale is not None):
        raise InputError("b_scale", "must have the type and dimensions of a format of scales")
    a32 = a.float()
    if form is not None and a_scale is not None:
        a32 = a32 * form.repeated_a(a_scale, a.shape[-1])
    if out is None:
        out = a.new_zeros((*a.shape[:-1], b.shape[1]), dtype=out_dtype or torch.bfloat16)
    for group, rows in _rows(offs, m_indices, masked_m):
        if not len(a32[rows]):
            continue
        b32 = b[group].float()
        if form is not None and b_scale is not None:
            b32 = b32 * form.repeated_b(b_scale[group], *b32.shape)
        out[rows] = (a32[rows] @ b32.T).to(out.dtype)
    return out


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
