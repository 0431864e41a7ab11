# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `combine`, in torch: float32 sums in the order of places."""

from __future__ import annotations

import torch
from torch import Tensor


def combine(
    y: Tensor,
    inverse: Tensor,
    topk_weights: Tensor,
    *,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
) -> Tensor:
    """
    Return the weighted sum of each token's rows, computed slowly and plainly.

    A GPU multiplies and adds with one rounding, this function with two. So sums differ in their
    last bits, and a result differs by one step of bfloat16 if its sum lies about halfway between
    two bfloat16 values.

    Args:
        y: (M, N) bfloat16 rows, or (G, M, N), whose rows are numbered one matrix after the other.
        inverse: (T, top_k) int32: the row of each of a token's places, -1 for none.
        topk_weights: (T, top_k) float32.
        shared: (T, N) bfloat16, added at the end.
        shared_weights: (T,) float32, what its rows are multiplied with; None: 1.

    Returns:
        (T, N) bfloat16.
    """
    rows = y.reshape(-1, y.shape[-1])
    total = torch.zeros(len(inverse), rows.shape[1], device=y.device)
    for place in range(inverse.shape[1]):
        row = inverse[:, place].long()
        has = (row >= 0) & (row < len(rows))
        if not len(rows):
            break
        product = topk_weights[:, place, None] * rows[row.where(has, 0)].float()
        total = torch.where(has[:, None], total + product, total)
    if shared is not None:
        weights = 1.0 if shared_weights is None else shared_weights[:, None]
        total = total + shared.float() * weights
    return total.bfloat16()
