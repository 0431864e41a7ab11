# SPDX-License-Identifier: Apache-2.0
"""
The operations around the GEMMs in plain torch: what a chain runs where no kernel does it.

Nothing waits for the device, shapes depend on nothing that lies there, and sums have one order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.formats.block128 import per_token_group
from jitgen.formats.row import per_row


def sort_pairs(
    topk_ids: Tensor, *, experts: int, first_expert: int = 0, local_experts: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Sort pairs of token and slot by their expert.

    Args:
        topk_ids: (T, k) int32, experts of each token; others than those of this rank are skipped.
        experts: Experts of the whole layer.
        first_expert: The first one of this rank.
        local_experts: How many there are here, G; None: all.

    Returns:
        offs: (G,) int32, the row behind the last of each group.
        permutation: (T * k,) int32, the pair in each sorted row, -1 behind the last group.
        inverse: (T, k) int32, the sorted row of each pair, -1 where it was skipped.
    """
    groups = experts if local_experts is None else local_experts
    pairs = topk_ids.numel()
    local = topk_ids.reshape(-1).long() - first_expert
    is_here = (local >= 0) & (local < groups)
    local = torch.where(is_here, local, groups)
    order = torch.argsort(local, stable=True)
    counts = torch.zeros(groups + 1, dtype=torch.int64, device=local.device)
    counts.scatter_add_(0, local, torch.ones_like(local))
    offs = counts[:groups].cumsum(0).to(torch.int32)
    places = torch.arange(pairs, device=local.device)
    inverse = torch.empty_like(places).scatter_(0, order, places)
    permutation = torch.where(places < offs[-1], order, -1)
    inverse = torch.where(is_here, inverse, -1)
    return offs, permutation.to(torch.int32), inverse.view(topk_ids.shape).to(torch.int32)


def permute_quantize(
    x: Tensor,
    permutation: Tensor,
    *,
    top_k: int,
    offs: Tensor,  # noqa: ARG001  # kernels read it
    scale_granularity: str,
) -> tuple[Tensor, Tensor | None]:
    """
    Gather the token of every sorted row and quantise it.

    Args:
        x: (T, H) bfloat16.
        permutation: As `sort_pairs` gives it.
        top_k: k.
        offs: As `sort_pairs` gives it; rows behind the last group have any value.
        scale_granularity: ``none``, ``block128`` or ``row``.

    Returns:
        a: (T * k, H), bfloat16 or float8_e4m3fn.
        a_scale: As `jitgen.quantize` gives it; None for ``none``.
    """
    rows = x[permutation.clamp_min(0).long() // top_k]
    if scale_granularity == "none":
        return rows, None
    return per_token_group(rows) if scale_granularity == "block128" else per_row(rows)


def combine(
    y: Tensor,
    inverse: Tensor,
    topk_weights: Tensor,
    *,
    shared: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """
    Add up the rows of each token, weighted, slot by slot in float32, and round once.

    Args:
        y: (T * k, H) bfloat16.
        inverse: As `sort_pairs` gives it.
        topk_weights: (T, k) float32.
        shared: (T, H) bfloat16, added at the end.
        out: (T, H) bfloat16: where the result goes.

    Returns:
        `out`, or a new tensor.
    """
    tokens, top_k = inverse.shape
    total = torch.zeros(tokens, y.shape[-1], dtype=torch.float32, device=y.device)
    for slot in range(top_k):
        rows = inverse[:, slot]
        found = y[rows.clamp_min(0).long()].float() * topk_weights[:, slot, None]
        total = total + torch.where((rows >= 0)[:, None], found, 0.0)
    if shared is not None:
        total = total + shared.float()
    result = total.to(torch.bfloat16)
    return result if out is None else out.copy_(result)
