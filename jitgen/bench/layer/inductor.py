# SPDX-License-Identifier: Apache-2.0
"""
The same steps in torch, compiled by inductor, around ``torch._scaled_grouped_mm``.

torch's grouped product has a scale for each row and no other: other numerics, and less work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.glue import route
from jitgen.bench.layer.operands import Operands, Ready
from jitgen.bench.peers import Unavailable
from jitgen.formats.e4m3 import MAX
from jitgen.layer.weights import ExpertWeights

NAME = "torch-inductor"
NOTE = "torch._scaled_grouped_mm: row-wise scales, other numerics, less work"

Multiply = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Rows, (G, K, N) weights, both scales, ends of the groups."""


def prepare(operands: Operands) -> Ready:
    """
    Return the compiled layer.

    Raises:
        Unavailable: This torch has no such product.
    """
    if not hasattr(torch, "_scaled_grouped_mm"):
        raise Unavailable("this torch has no _scaled_grouped_mm")
    torch._dynamo.reset()
    compiled = torch.compile(layer, dynamic=False, fullgraph=True)
    weights = operands.by_row
    given = (operands.x, operands.topk_weights, operands.topk_ids, *matrices(weights))
    if (router := operands.router) is not None:
        compiled = torch.compile(partial(routed, **router.choice), dynamic=False, fullgraph=True)
        given = (operands.x, router.logits, router.bias, *matrices(weights))
    found: list[Tensor] = []

    def call() -> None:
        found[:] = [compiled(*given)]

    return Ready(call=call, result=lambda: found[0], weights=weights)


def multiply(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, offs: Tensor) -> Tensor:
    """Return torch's grouped product."""
    return torch._scaled_grouped_mm(
        a, b, a_scale, b_scale, offs=offs, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def layer(  # noqa: PLR0913  # tensors, and what varies
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    w13: Tensor,
    w2: Tensor,
    s13: Tensor,
    s2: Tensor,
    product: Multiply = multiply,
    *,
    is_share: bool = False,
) -> Tensor:
    """Return (T, H) bfloat16: sort, gather, quantise, multiply, gate, multiply, add up."""
    tokens, top_k = topk_ids.shape
    experts, order = topk_ids.reshape(-1).sort(stable=True)
    numbers = torch.arange(w13.shape[0], device=x.device, dtype=torch.int32)
    offs = torch.searchsorted(experts, numbers, right=True).to(torch.int32)
    a, a_scale = _quantised(x[order // top_k].float())
    h = product(a, w13.transpose(1, 2), a_scale, s13, offs)
    gate, up = h.float().chunk(2, dim=-1)
    q, q_scale = _quantised(torch.nn.functional.silu(gate) * up)
    y = product(q, w2.transpose(1, 2), q_scale, s2, offs)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=x.device)
    found = y[inverse].view(tokens, top_k, -1).float() * topk_weights.unsqueeze(-1)
    if is_share:  # rows behind the last group's were not written
        found = torch.where((topk_ids < w13.shape[0]).unsqueeze(-1), found, 0.0)
    return found.sum(1).to(torch.bfloat16)


def routed(  # noqa: PLR0913  # likewise
    x: Tensor,
    logits: Tensor,
    bias: Tensor,
    w13: Tensor,
    w2: Tensor,
    s13: Tensor,
    s2: Tensor,
    product: Multiply = multiply,
    *,
    local_experts: int,
    **choice: Any,
) -> Tensor:
    """Return the same from logits; pairs whose experts are elsewhere count nothing."""
    topk_weights, topk_ids, *_ = route.routed(logits, bias, **choice)
    is_share = local_experts < logits.shape[1]
    return layer(x, topk_weights, topk_ids, w13, w2, s13, s2, product, is_share=is_share)


def _quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().amax(-1).clamp_min(1e-12) / MAX
    return (values / scale.unsqueeze(-1)).clamp(-MAX, MAX).to(torch.float8_e4m3fn), scale


def matrices(weights: ExpertWeights) -> tuple[Any, Any, Any, Any]:
    """Return both matrices of every expert, and the scales of their rows."""
    return weights.w13, weights.w2, weights.w13_scale, weights.w2_scale
