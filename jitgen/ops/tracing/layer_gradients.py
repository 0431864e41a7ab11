# SPDX-License-Identifier: Apache-2.0
"""Autograd of the operations of a layer beside its products: nodes whose backward is in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from jitgen.ops.route import gradients as of_route
from jitgen.ops.route import validate as route
from jitgen.ops.tracing import nodes


class _Route(_SingleLevelFunction):
    """The choice of experts, and the gradient of logits through the weights of the chosen."""

    @staticmethod
    def forward(_names: tuple[str, ...], run: Callable[..., Any], *given: Any) -> Any:
        """Return the five results. Autograd is off inside."""
        return run(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep logits and the experts that were chosen."""
        names, _run, *given = inputs
        named = dict(zip(names, given, strict=True))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.names = names
        kept = ("scoring", "renormalize", "routed_scaling_factor", "softcap")
        ctx.options = {name: named[name] for name in kept}
        ctx.is_hashed = named["hash_table"] is not None
        ctx.save_for_backward(named["logits"], output[1])

    @staticmethod
    def backward(ctx: Any, dweights: Tensor | None, *_others: None) -> Any:
        """Return the gradient of logits, which has none itself."""
        found: dict[str, Tensor | None] = {}
        if dweights is not None:
            logits, topk_ids = ctx.saved_tensors
            with torch.no_grad():
                found["logits"] = of_route.of_logits(
                    dweights, logits, topk_ids, **ctx.options, is_hashed=ctx.is_hashed
                )
        return nodes.found(ctx, "route", found, dweights)


ROUTE = nodes.Gradients(require=route.require_differentiable, node=_Route)
