# SPDX-License-Identifier: Apache-2.0
"""
Common parts of nodes in autograd's graph: how an operation becomes a node, and the refusal of
second derivatives.

Nodes are registered with the operations, so that eager calls, torch.compile and torch.func use the
same ones. Eager calls use them only if a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from jitgen.errors import InputError
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.tensors import needs_gradient
from jitgen.support.frozen import frozen


@frozen
class Gradients:
    """
    Autograd of an operation.

    Attributes:
        require: Takes its arguments by name; refuses a gradient that does not exist.
        node: The class of its node in autograd's graph.
    """

    require: Callable[[Mapping[str, Any]], None]
    node: Any

    def called(self, op: Any, names: tuple[str, ...]) -> Callable[..., Any]:
        """
        Return the function that autograd calls for the torch operation `op`, whose arguments are
        called `names`.
        """
        behind = torch._C._after_autograd_keyset
        left_out = [argument.default_value for argument in op._schema.arguments]
        defaults = dict(zip(names, left_out, strict=True))

        def call(keys: Any, *given: Any) -> Any:
            named = {**defaults, **dict(zip(names, given, strict=False))}
            refuse_tangents(named)
            self.require(named)
            if needs_gradient(given):
                return self.applied(op, named)
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keys & behind, *given)

        return call

    def applied(self, run: Callable[..., Any], named: dict[str, Any]) -> Any:
        """
        Compute results as a node of autograd's graph.

        Args:
            run: Takes the values of `named`, and is called without autograd; returns the tensors
                of the operation.
            named: Every argument by name, in the operation's order.
        """
        with enable_single_level_autograd_function():  # torch.func unwrapped the operands
            return self.node.apply(tuple(named), run, *named.values())


BEFORE = 2
"""Number of a node's arguments before those of its operation."""


def found(
    ctx: Any, op: str, gradients: dict[str, Tensor | None], *on: Tensor | None
) -> tuple[Tensor | None, ...]:
    """
    Return gradients in the order of a node's arguments.

    Args:
        ctx: Context of the node; its `names` are the arguments of the operation.
        op: Name of the operation.
        gradients: Gradients by the names of arguments.
        *on: Tensors on which the gradients depend, for the refusal of a second derivative.
    """
    if torch.is_grad_enabled():  # a second derivative may be asked for
        gradients = {name: _once(each, op, *on) for name, each in gradients.items()}
    return *[None] * BEFORE, *(gradients.get(name) for name in ctx.names)


def _once(gradient: Tensor | None, op: str, *on: Tensor | None) -> Tensor | None:
    """
    Return a gradient of `op` as a tensor that depends on the tensors `on`, and whose own derivative
    is refused.
    """
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
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        """Keep the name of the operation."""
        ctx.op = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_found: Tensor) -> Any:
        """
        Refuse the second derivative.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "create_graph",
            f"gradients of {ctx.op} have no gradient themselves: differentiate once, or write the "
            "product in torch where a second derivative is needed",
        )
