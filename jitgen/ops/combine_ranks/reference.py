# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `combine_ranks`, in torch: float32 sums in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def combine_experts(
    rows: Tensor,
    has_row: Tensor,
    topk_weights: Tensor,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
) -> Tensor:
    """
    Return the weighted sum of each token's rows: (T, H) bfloat16.

    Args:
        rows: (T, top_k, H) bfloat16.
        has_row: (T, top_k) bool, whether the place has a row.
        topk_weights: (T, top_k) float32.
        shared: (T, H) bfloat16, added at the end.
        shared_weights: (T,) float32, what its rows are multiplied with; None: 1.
    """
    weights = topk_weights.where(has_row, 0.0)
    total = torch.zeros(rows.shape[0], rows.shape[2], device=rows.device)
    for place in range(rows.shape[1]):
        total += weights[:, place, None] * rows[:, place].float()
    if shared is not None:
        each = 1.0 if shared_weights is None else shared_weights[:, None]
        total += each * shared.float()
    return total.bfloat16()


def combine_ranks(
    parts: Sequence[Tensor], shared: Tensor | None = None, shared_weights: Tensor | None = None
) -> Tensor:
    """
    Return the sum over ranks of their partial results for the tokens of one rank: (T, H) bfloat16.

    Args:
        parts: The partial results of each rank, (T, H) bfloat16.
        shared: (T, H) bfloat16, added at the end.
        shared_weights: (T,) float32, what its rows are multiplied with; None: 1.
    """
    total = torch.zeros(parts[0].shape, device=parts[0].device)
    for part in parts:
        total += part.float()
    if shared is not None:
        weights = 1.0 if shared_weights is None else shared_weights[:, None]
        total += weights * shared.float()
    return total.bfloat16()
