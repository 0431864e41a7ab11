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

from jitgen.errors import InputError
from jitgen.model import KernelConfig
from jitgen.model.dtypes import SCALE_BLOCK


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
    a32 = _dequantised_a(a, a_scale)
    if out is None:
        out = a.new_zeros((*a.shape[:-1], b.shape[1]), dtype=out_dtype or torch.bfloat16)
    for group, rows in _rows(offs, m_indices, masked_m):
        b32 = _dequantised_b(b[group], None if b_scale is None else b_scale[group])
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


def _dequantised_a(a: Tensor, scale: Tensor | None) -> Tensor:
    if scale is None:
        return a.float()
    if scale.dim() == a.dim():
        scale = scale.repeat_interleave(SCALE_BLOCK, -1)[..., : a.shape[-1]]
    elif scale.dim() == a.dim() - 1 and scale.shape == a.shape[:-1]:
        scale = scale.unsqueeze(-1)
    return a.float() * scale


def _dequantised_b(b: Tensor, scale: Tensor | None) -> Tensor:
    """Return one group's weights; its scale has 0 dimensions (tensor), 1 (row) or 2 (block128)."""
    if scale is None:
        return b.float()
    if scale.dim() == 2:
        scale = scale.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
        scale = scale[: b.shape[0], : b.shape[1]]
    else:  # at least one dimension: a number would not make float32 wider
        scale = scale.unsqueeze(-1)
    return b.float() * scale
