# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `grouped_gemm_wgrad`, in plain torch.

    out[g, n, k] = sum over the rows m of group g of dy[m, n] * a[m, k]

Kernels add in another order and round once, at the end, to the type of `out`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.errors import InputError
from jitgen.ops.tensors import result_of


def grouped_gemm_wgrad(  # the arguments of the real one
    dy: Tensor,
    a: Tensor,
    *,
    offs: Tensor | None = None,
    masked_m: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_m: int | None = None,  # noqa: ARG001  # as in the real one
    config: GroupedGemmWgradConfig | None = None,  # noqa: ARG001  # likewise
) -> Tensor:
    """
    Compute the result of `jitgen.grouped_gemm_wgrad` for the same arguments, slowly and plainly.

    Waits for the device. `expected_m` and `config` change nothing.

    Raises:
        InputError: There is not exactly one of `offs` and `masked_m`.
    """
    found = sums(dy, a, offs, masked_m)
    if out is None:
        return found.to(out_dtype or result_of(a.dtype))
    return out.copy_(found)


def sums(
    dy: Tensor,
    a: Tensor,
    offs: Tensor | None,
    masked_m: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """
    Return the sums, (G, N, K), computed in `dtype`, before they are rounded to the type of the
    result.
    """
    if offs is not None and masked_m is None:
        ends = offs.tolist()
        rows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        pairs = [(dy[each], a[each]) for each in rows]
    elif masked_m is not None and offs is None:
        pairs = [(dy[g, :count], a[g, :count]) for g, count in enumerate(masked_m.tolist())]
    else:
        raise InputError("offs", "give exactly one of offs and masked_m")
    return torch.stack([left.to(dtype).T @ right.to(dtype) for left, right in pairs])
