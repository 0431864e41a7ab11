# SPDX-License-Identifier: Apache-2.0
"""
Autograd of `grouped_gemm` and `grouped_gemm_wgrad`: one node in the graph, whose backward launches
kernels.

It is registered with the operations, so that eager calls, torch.compile and torch.func find it in
the same place. Eager calls come here only if a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm import validate as of_product
from jitgen.ops.grouped_gemm_wgrad import validate as of_weights
from jitgen.ops.tensors import needs_gradient
from jitgen.runtime.session import current
from jitgen.support.frozen import frozen


@frozen
class Gradients:
    """
    Autograd of an operation.

    Attributes:
        require: Takes its arguments by their names; refuses a gradient that there is not.
        node: Its node in autograd's graph.
    """

    require: Callable[[Mapping[str, Any]], None]
    node: Any

    def called(self, op: Any) -> Callable[..., Any]:
        """Return the function that autograd calls for `op`, the torch operation of this one."""
        names = [argument.name for argument in op._schema.arguments]
        behind = torch._C._after_autograd_keyset

        def call(keys: Any, *given: Any) -> Any:
            named = {**dict.fromkeys(names), **dict(zip(names, given, strict=False))}
            refuse_tangents(named)
            self.require(named)
            if needs_gradient(given):
                return self.applied(op, named)
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keys & behind, *given)

        return call

    def applied(self, product: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
        """
        Compute a product as a node of autograd's graph, and return its result.

        Args:
            product: Takes the values of `named`, and is called without autograd.
            named: Every argument by name, in the operation's order.
        """
        with enable_single_level_autograd_function():  # torch.func unwrapped the operands
            result: Tensor = self.node.apply(tuple(named), product, *named.values())
        return result


_BEFORE = 2
"""Number of a node's arguments before those of its operation."""


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
        Keep the tensors that gradients need: the gradient of each operand is computed from the
        other operand.

        Returns:
            The arguments by their names, and which of them need a gradient.
        """
        names, _product, *given = inputs
        named = dict(zip(names, given, strict=True))
        needs = dict(zip(named, ctx.needs_input_grad[_BEFORE:], strict=True))
        groups = {name: named[name] for name in ARGUMENT.values() if named.get(name) is not None}
        ctx.names, ctx.expected_m, ctx.dtype = list(named), named["expected_m"], named["a"].dtype
        ctx.groups, ctx.session = tuple(groups), current.get()
        first, second = operands
        read = (named[first] if needs[second] else None, named[second] if needs[first] else None)
        ctx.save_for_backward(*read, *groups.values())
        return named, needs

    @staticmethod
    def kept(ctx: Any) -> tuple[Tensor | None, Tensor | None, dict[str, Tensor]]:
        """Return the operands that are needed, and the tensor that gives groups their rows."""
        first, second, *tensors = ctx.saved_tensors
        return first, second, dict(zip(ctx.groups, tensors, strict=True))

    @staticmethod
    def found(
        ctx: Any, op: str, found: dict[str, Tensor | None], *on: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return gradients in the order of the arguments; they depend on the tensors `on`."""
        if torch.is_grad_enabled():  # a second derivative may be asked for
            found = {name: _once(each, op, *on) for name, each in found.items()}
        return *[None] * _BEFORE, *(found.get(name) for name in ctx.names)


class _Product(_Node):
    """The product, and its gradients with respect to a, b and a bias."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the tensors that gradients need."""
        named, needs = _Node.keep(ctx, inputs, ("a", "b"))
        ctx.needs_bias, ctx.num_groups = needs["bias"], named["b"].shape[0]
        ctx.numerics = named["numerics"]

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b and the bias, which have none themselves."""
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
        return _Node.found(ctx, "grouped_gemm", {"a": da, "b": db, "bias": dbias}, dy, a, b)


class _ProductOverRows(_Node):
    """
    The product that adds up over the rows of groups, and its gradients with respect to dy and a.

    Each row of dy has that of a times the gradient's matrix of its group, and the other way round.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the tensors that gradients need."""
        _Node.keep(ctx, inputs, ("a", "dy"))

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of dy and a, which have none themselves."""
        (dout,) = found
        a, dy, groups = _Node.kept(ctx)
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            weights = dout.to(ctx.dtype).contiguous()  # (G, N, K), as kernels read them
            ddy = da = None
            if a is not None:
                ddy = gradients.of_rows(a, weights.transpose(1, 2), groups, ctx.expected_m)
            if dy is not None:
                da = gradients.of_rows(dy, weights, groups, ctx.expected_m)
        return _Node.found(ctx, "grouped_gemm_wgrad", {"dy": ddy, "a": da}, dout, a, dy)


GROUPED_GEMM = Gradients(require=of_product.require_differentiable, node=_Product)
GROUPED_GEMM_WGRAD = Gradients(require=of_weights.require_differentiable, node=_ProductOverRows)


def _once(gradient: Tensor | None, op: str, *on: Tensor | None) -> Tensor | None:
    """Return a gradient of `op` as a tensor that depends on the others in an unknown way."""
    if gradient is None:
        return None
    with enable_single_level_autograd_function():
        return _Once.apply(gradient, op, *on)  # type: ignore[attr-defined, no-any-return]


class _Once(_SingleLevelFunction):
    """A gradient that has no gradient itself."""

    @staticmethod
    def forward(gradient: Tensor, _op: str, *_on: Tensor | None) -> Tensor:
        """Return the gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the name of the operation."""
        ctx.op = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_found: Tensor) -> Any:
        """
        Refuse.

        Raises:
            InputError: In any case.
        """
        raise InputError(
            "create_graph",
            f"gradients of {ctx.op} have no gradient themselves: differentiate once, or write the "
            "product in torch where a second derivative is needed",
        )
