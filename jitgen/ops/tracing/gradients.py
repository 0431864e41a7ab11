# SPDX-License-Identifier: Apache-2.0
"""
What autograd does with `grouped_gemm`: one node in its graph, whose backward are kernels.

It is registered with the operation, so that eager calls, torch.compile and torch.func find it in
the same place. Eager calls come here only where a gradient is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from jitgen.errors import InputError
from jitgen.layouts import ARGUMENT
from jitgen.ops.calling import needs_gradient
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm.validate import require_differentiable
from jitgen.runtime.session import current


def of_grouped_gemm(op: Any) -> Callable[..., Any]:
    """Return what autograd calls for `op`, one of `grouped_gemm`'s."""
    names = _names(op)
    behind = torch._C._after_autograd_keyset

    def call(keys: Any, *given: Any) -> Any:
        named = {**dict.fromkeys(names), **dict(zip(names, given, strict=False))}
        refuse_tangents(named)
        require_differentiable(named)
        if needs_gradient(given):
            return differentiated(op, named)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & behind, *given)

    return call


def differentiated(product: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
    """
    Return a product as a node of autograd's graph.

    Args:
        product: Takes the values of `named`, and is called without autograd.
        named: Every argument by its name, in the order of the operation's.
    """
    with enable_single_level_autograd_function():  # torch.func unwrapped the operands
        result: Tensor = _Product.apply(  # type: ignore[attr-defined]
            tuple(named), product, *named.values()
        )
    return result


def _names(op: Any) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


_BEFORE = 2
"""What `_Product` takes before the arguments of the operation."""


class _Product(_SingleLevelFunction):
    """The product, and its gradients with respect to a, b and a bias."""

    @staticmethod
    def forward(_names: tuple[str, ...], product: Callable[..., Tensor], *given: Any) -> Tensor:
        """Return the product; nobody asks for a gradient of it here."""
        return product(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep what gradients need."""
        names, _product, *given = inputs
        named = dict(zip(names, given, strict=True))
        a, b = named["a"], named["b"]
        groups = {name: named[name] for name in ARGUMENT.values() if named[name] is not None}
        places = {name: place for place, name in enumerate(named, _BEFORE)}
        needs_a, needs_b, ctx.needs_bias = (
            ctx.needs_input_grad[places[name]] for name in ("a", "b", "bias")
        )
        ctx.names, ctx.num_groups, ctx.expected_m = list(named), b.shape[0], named["expected_m"]
        ctx.dtype = a.dtype
        ctx.groups, ctx.session = tuple(groups), current.get()
        ctx.numerics = named["numerics"]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, *groups.values())

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b and the bias, which have none themselves."""
        (dy,) = found
        a, b, *tensors = ctx.saved_tensors
        groups = dict(zip(ctx.groups, tensors, strict=True))
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            da = db = dbias = None
            if b is not None:
                da = gradients.of_rows(dy, b, groups, ctx.expected_m, ctx.numerics)
            of_groups = ctx.num_groups, groups, ctx.expected_m
            if a is not None:
                db = gradients.of_weights(dy, a, *of_groups)
            if ctx.needs_bias:
                dbias = gradients.of_bias(dy, ctx.dtype, *of_groups)
        if torch.is_grad_enabled():  # somebody may differentiate twice
            da, db, dbias = (_once(each, dy, a, b) for each in (da, db, dbias))
        of_names = {"a": da, "b": db, "bias": dbias}
        return *[None] * _BEFORE, *(of_names.get(name) for name in ctx.names)


def _once(gradient: Tensor | None, *on: Tensor | None) -> Tensor | None:
    """Return a gradient as one that depends on others in a way that is not known."""
    if gradient is None:
        return None
    with enable_single_level_autograd_function():
        return _Once.apply(gradient, *on)  # type: ignore[attr-defined, no-any-return]


class _Once(_SingleLevelFunction):
    """What a gradient is, and that it has none itself."""

    @staticmethod
    def forward(gradient: Tensor, *_on: Tensor | None) -> Tensor:
        """Return the gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(_ctx: Any, *_found: Tensor) -> Any:
        """
        Refuse.

        Raises:
            InputError: In any case.
        """
        raise InputError(
            "create_graph",
            "gradients of grouped_gemm have no gradient themselves: differentiate once, or write "
            "the product in torch where a second derivative is needed",
        )
