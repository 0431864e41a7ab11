# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `add_lora`, in torch: float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor


def add_lora(  # noqa: PLR0913  # the arguments of the real one
    y: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    adapter_ids: Tensor,
    topk_ids: Tensor,
    permutation: Tensor,
    *,
    first_expert: int = 0,
    by_row: bool = False,
) -> Tensor:
    """
    Compute the result of a kernel row by row, slowly and plainly.

    Args:
        y: (M, N) bfloat16.
        x: (T, K) bfloat16, or (M, K) with `by_row`.
        a: (L, G, parts * rank, K) bfloat16.
        b: (L, G, N, rank) bfloat16.
        scales: (L,) float32.
        adapter_ids: (T,) int32: the adapter of each token, -1 for none.
        topk_ids: (T, top_k) int32: the experts of each token, numbered over the whole layer.
        permutation: (M,) int32: the pair of each row, -1 for rows without a pair.
        first_expert: The number of a's first expert.
        by_row: Whether x has a row for each row of y.

    Returns:
        (M, N) bfloat16; rows of no pair are as in y.
    """
    adapters, experts, inner, _ = a.shape
    rank = b.shape[3]
    parts = inner // rank
    out = y.clone()
    for row, pair in enumerate(permutation.tolist()):
        if not 0 <= pair < topk_ids.numel():
            continue
        token, place = divmod(pair, topk_ids.shape[1])
        adapter = int(adapter_ids[token])
        expert = int(topk_ids[token, place]) - first_expert
        if not (0 <= adapter < adapters and 0 <= expert < experts):
            continue
        values = a[adapter, expert].float() @ x[row if by_row else token].float()
        values = (values * scales[adapter]).view(parts, 1, rank)
        columns = b[adapter, expert].float().view(parts, -1, rank)
        added = (columns * values).sum(-1).flatten()
        out[row] = (y[row].float() + added).to(torch.bfloat16)
    return out
