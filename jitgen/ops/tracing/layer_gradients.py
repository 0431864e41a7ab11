# SPDX-License-Identifier: Apache-2.0
"""
Autograd of the operations of a layer beside its products: nodes of autograd's graph.

They serve calls of single operations; a whole layer is one node (`jitgen.layer.gradients`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from jitgen.config.activation_quantize import NUMBERS
from jitgen.config.layouts import ARGUMENT
from jitgen.ops.activation_backward.call import activation_backward
from jitgen.ops.activation_backward.dispatch import new_results
from jitgen.ops.activation_quantize import validate as activation
from jitgen.ops.combine import gradients as of_combine
from jitgen.ops.combine import validate as sums
from jitgen.ops.combine.call import combine
from jitgen.ops.permute_quantize import validate as gather
from jitgen.ops.route import gradients as of_route
from jitgen.ops.route import validate as route
from jitgen.ops.tracing import nodes
from jitgen.runtime.session import current


class _Node(_SingleLevelFunction):
    """
    Base of the nodes: a forward pass without autograd, which saves what the backward pass needs.
    """

    @staticmethod
    def forward(_names: tuple[str, ...], run: Callable[..., Any], *given: Any) -> Any:
        """Return the results. Autograd is off inside."""
        return run(*given)

    @staticmethod
    def keep(
        ctx: Any, inputs: tuple[Any, ...], output: Any, options: tuple[str, ...]
    ) -> tuple[dict[str, Any], dict[str, bool]]:
        """
        Save the arguments called `options`, and the session. Of several results, only the first has
        a gradient.

        Returns:
            The arguments by their names, and which of them need a gradient.
        """
        names, _run, *given = inputs
        named = dict(zip(names, given, strict=True))
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.names, ctx.session = names, current.get()
        ctx.options = {name: named[name] for name in options}
        return named, dict(zip(names, ctx.needs_input_grad[nodes.BEFORE :], strict=True))


class _Gather(_Node):
    """
    Node of autograd's graph: rows of tokens in the order of their experts. The backward pass adds
    up the rows of each token.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the indices that say which rows belong to which token."""
        named, _ = _Node.keep(ctx, inputs, output, ())
        ctx.save_for_backward(named["inverse"])

    @staticmethod
    def backward(ctx: Any, dq: Tensor | None, *_others: None) -> Any:
        """Return the gradient of x, which has no gradient itself."""
        found: dict[str, Tensor | None] = {}
        if dq is not None:
            (inverse,) = ctx.saved_tensors
            with torch.no_grad(), ctx.session.active():  # another thread may be here
                ones = dq.new_ones(inverse.shape, dtype=torch.float32)
                found["x"] = combine(dq.contiguous(), inverse, ones)
        return nodes.found(ctx, "permute_quantize", found, dq)


class _Activation(_Node):
    """Node of autograd's graph: the activation of the rows of every group."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and the parameters of the activation."""
        words = ("activation", "interleaved", *NUMBERS, "expected_m")
        named, _ = _Node.keep(ctx, inputs, output, words)
        (ctx.groups,) = (name for name in ARGUMENT.values() if named[name] is not None)
        ctx.save_for_backward(named["x"], named[ctx.groups])

    @staticmethod
    def backward(ctx: Any, dq: Tensor | None, *_others: None) -> Any:
        """Return the gradient of x, 0 in rows of no group; it has no gradient itself."""
        found: dict[str, Tensor | None] = {}
        if dq is not None:
            x, groups = ctx.saved_tensors
            with torch.no_grad(), ctx.session.active():  # another thread may be here
                dq, (_, y, totals) = dq.contiguous(), new_results(dq, x)
                found["x"] = dx = x.new_zeros(x.shape)
                ones = dq.new_ones(dq.shape[:-1], dtype=torch.float32)
                given = {ctx.groups: groups, **ctx.options}
                activation_backward(dq, x, ones, **given, out=(dx, y, totals))
        return nodes.found(ctx, "activation_quantize", found, dq)


class _Combine(_Node):
    """
    Node of autograd's graph: the weighted sum of each token's rows. In the backward pass each row
    gets the gradient of its token.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the tensors that gradients need."""
        named, needs = _Node.keep(ctx, inputs, output, ())
        ctx.needs, ctx.shape = needs, named["y"].shape
        read = {
            "y": needs["topk_weights"],
            "topk_weights": needs["y"],
            "inverse": True,
            "shared": needs["shared_weights"],
            "shared_weights": needs["shared"],
        }
        ctx.kept = tuple(read)
        ctx.save_for_backward(*(named[name] if is_read else None for name, is_read in read.items()))

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None) -> Any:
        """Return the requested gradients, which have no gradients themselves."""
        found: dict[str, Tensor | None] = {}
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        if dout is not None:
            with torch.no_grad():
                if ctx.needs["y"]:
                    weights, inverse = kept["topk_weights"], kept["inverse"]
                    found["y"] = of_combine.of_rows(dout, inverse, weights, ctx.shape)
                if ctx.needs["topk_weights"]:
                    found["topk_weights"] = of_combine.of_weights(dout, kept["inverse"], kept["y"])
                if ctx.needs["shared"]:
                    found["shared"] = of_combine.of_shared(dout, kept["shared_weights"])
                if ctx.needs["shared_weights"]:
                    found["shared_weights"] = of_combine.of_shared_weights(dout, kept["shared"])
        return nodes.found(ctx, "combine", found, dout)


class _Route(_Node):
    """
    Node of autograd's graph: the choice of experts, whose backward pass returns the gradient of
    logits through the weights of the chosen experts.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the logits and the chosen experts."""
        words = ("scoring", "renormalize", "routed_scaling_factor", "softcap")
        named, _ = _Node.keep(ctx, inputs, output, words)
        ctx.is_hashed = named["hash_table"] is not None
        ctx.save_for_backward(named["logits"], output[1])

    @staticmethod
    def backward(ctx: Any, dweights: Tensor | None, *_others: None) -> Any:
        """Return the gradient of logits, which has no gradient itself."""
        found: dict[str, Tensor | None] = {}
        if dweights is not None:
            logits, topk_ids = ctx.saved_tensors
            with torch.no_grad():
                found["logits"] = of_route.of_logits(
                    dweights, logits, topk_ids, **ctx.options, is_hashed=ctx.is_hashed
                )
        return nodes.found(ctx, "route", found, dweights)


GATHER = nodes.Gradients(require=gather.require_differentiable, node=_Gather)
ACTIVATION = nodes.Gradients(require=activation.require_differentiable, node=_Activation)
COMBINE = nodes.Gradients(require=sums.require_differentiable, node=_Combine)
ROUTE = nodes.Gradients(require=route.require_differentiable, node=_Route)
