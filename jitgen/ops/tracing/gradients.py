# SPDX-License-Identifier: Apache-2.0
"""
Autograd of `grouped_gemm` and `grouped_gemm_wgrad`: one node in the graph, whose backward launches
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from jitgen.config.layouts import ARGUMENT
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm import validate as of_product
from jitgen.ops.grouped_gemm_wgrad import validate as of_weights
from jitgen.ops.tracing import nodes
from jitgen.ops.tracing.nodes import Gradients
from jitgen.runtime.session import current


class _Node(_SingleLevelFunction):
    """A product of two operands; subclasses add its gradients."""

    @staticmethod
    def forward(_names: tuple[str, ...], product: Callable[..., Tensor], *given: Any) -> Tensor:
        """Return the product. Autograd is off inside."""
        return product(*given)

    @staticmethod
    def keep(
        ctx: Any, inputs: tuple[Any, ...], operands: tuple[str, str]
    ) -> tuple[dict[str, Any], dict[str, bool]]:
        """
        Save the tensors that gradients need: the gradient of each operand is computed from the
        other operand.

        Returns:
            The arguments by their names, and which of them need a gradient.
        """
        names, _product, *given = inputs
        named = dict(zip(names, given, strict=True))
        needs = dict(zip(named, ctx.needs_input_grad[nodes.BEFORE :], strict=True))
        groups = {name: named[name] for name in ARGUMENT.values() if named.get(name) is not None}
        ctx.names, ctx.expected_m, ctx.dtype = list(named), named["expected_m"], named["a"].dtype
        ctx.groups, ctx.session = tuple(groups), current.get()
        first, second = operands
        read = (named[first] if needs[second] else None, named[second] if needs[first] else None)
        ctx.save_for_backward(*read, *groups.values())
        return named, needs

    @staticmethod
    def kept(ctx: Any) -> tuple[Tensor | None, Tensor | None, dict[str, Tensor]]:
        """Return the saved operands, and the tensor that gives groups their rows."""
        first, second, *tensors = ctx.saved_tensors
        return first, second, dict(zip(ctx.groups, tensors, strict=True))


class _Product(_Node):
    """The product, and its gradients with respect to a, b and a bias."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        """Keep the tensors that gradients need."""
        named, needs = _Node.keep(ctx, inputs, ("a", "b"))
        ctx.needs_bias, ctx.num_groups = needs["bias"], named["b"].shape[0]
        ctx.numerics = named["numerics"]

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b and the bias; these have no gradients themselves."""
        (dy,) = found
        a, b, groups = _Node.kept(ctx)
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            da = db = dbias = None
            if b is not None:
                da = gradients.of_rows(dy, b, groups, ctx.expected_m, ctx.numerics)
            of_groups = ctx.num_groups, groups, ctx.expected_m
            if a is not None:
                db = gradients.of_weights(dy, a, *of_groups)
            if ctx.needs_bias:
                dbias = gradients.of_bias(dy, ctx.dtype, *of_groups)
        return nodes.found(ctx, "grouped_gemm", {"a": da, "b": db, "bias": dbias}, dy, a, b)


class _ProductOverRows(_Node):
    """
    The product that is summed over the rows of groups, and its gradients with respect to dy and a.

    With D for the gradient of a group's result, (N, K), the gradient of a row of dy is the same row
    of a times D transposed, and that of a row of a is the same row of dy times D.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        """Keep the tensors that gradients need."""
        _Node.keep(ctx, inputs, ("a", "dy"))

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of dy and a; these have no gradients themselves."""
        (dout,) = found
        a, dy, groups = _Node.kept(ctx)
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            weights = dout.to(ctx.dtype).contiguous()  # (G, N, K), as kernels read them
            ddy = da = None
            if a is not None:
                ddy = gradients.of_rows(a, weights.transpose(1, 2), groups, ctx.expected_m)
            if dy is not None:
                da = gradients.of_rows(dy, weights, groups, ctx.expected_m)
        return nodes.found(ctx, "grouped_gemm_wgrad", {"dy": ddy, "a": da}, dout, a, dy)


GROUPED_GEMM = Gradients(require=of_product.require_differentiable, node=_Product)
GROUPED_GEMM_WGRAD = Gradients(require=of_weights.require_differentiable, node=_ProductOverRows)
