# SPDX-License-Identifier: Apache-2.0
"""
What autograd does with `grouped_gemm` and `grouped_gemm_wgrad`: one node in its graph, whose
backward are kernels.

It is registered with the operations, so that eager calls, torch.compile and torch.func find it in
the same place. Eager calls come here only where a gradient is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.ops.calling import needs_gradient
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm import validate as of_product
from jitgen.ops.grouped_gemm_wgrad import validate as of_weights
from jitgen.runtime.session import current


def of_grouped_gemm(op: Any) -> Callable[..., Any]:
    """Return what autograd calls for `op`, one of `grouped_gemm`'s."""
    return _called(op, of_product.require_differentiable, differentiated)


def of_grouped_gemm_wgrad(op: Any) -> Callable[..., Any]:
    """Return what autograd calls for `op`, one of `grouped_gemm_wgrad`'s."""
    return _called(op, of_weights.require_differentiable, differentiated_wgrad)


def _called(
    op: Any,
    require_differentiable: Callable[[dict[str, Any]], None],
    node: Callable[[Callable[..., Tensor], dict[str, Any]], Tensor],
) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    behind = torch._C._after_autograd_keyset

    def call(keys: Any, *given: Any) -> Any:
        named = {**dict.fromkeys(names), **dict(zip(names, given, strict=False))}
        refuse_tangents(named)
        require_differentiable(named)
        if needs_gradient(given):
            return node(op, named)
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
    return _applied(_Product, product, named)


def differentiated_wgrad(product: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
    """Return the same of `grouped_gemm_wgrad`, which adds up over the rows of groups."""
    return _applied(_ProductOverRows, product, named)


def _applied(node: Any, product: Callable[..., Tensor], named: dict[str, Any]) -> Tensor:
    with enable_single_level_autograd_function():  # torch.func unwrapped the operands
        result: Tensor = node.apply(tuple(named), product, *named.values())
    return result


_BEFORE = 2
"""What a node takes before the arguments of its operation."""


class _Product(_SingleLevelFunction):
    """The product, and its gradients with respect to a, b and a bias."""

    @staticmethod
    def forward(_names: tuple[str, ...], product: Callable[..., Tensor], *given: Any) -> Tensor:
        """Return the product; no gradient of it is asked for here."""
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
        if torch.is_grad_enabled():  # a second derivative may be asked for
            da, db, dbias = (_once(each, "grouped_gemm", dy, a, b) for each in (da, db, dbias))
        of_names = {"a": da, "b": db, "bias": dbias}
        return *[None] * _BEFORE, *(of_names.get(name) for name in ctx.names)


class _ProductOverRows(_SingleLevelFunction):
    """
    The product that adds up over the rows of groups, and its gradients with respect to dy and a.

    Each row of dy has that of a times the gradient's matrix of its group, and the other way round.
    """

    @staticmethod
    def forward(_names: tuple[str, ...], product: Callable[..., Tensor], *given: Any) -> Tensor:
        """Return the product; no gradient of it is asked for here."""
        return product(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep what gradients need."""
        names, _product, *given = inputs
        named = dict(zip(names, given, strict=True))
        groups = {name: named[name] for name in ARGUMENT.values() if named.get(name) is not None}
        places = {name: place for place, name in enumerate(named, _BEFORE)}
        needs_dy, needs_a = (ctx.needs_input_grad[places[name]] for name in ("dy", "a"))
        ctx.names, ctx.expected_m, ctx.dtype = list(named), named["expected_m"], named["a"].dtype
        ctx.groups, ctx.session = tuple(groups), current.get()
        kept = named["a"] if needs_dy else None, named["dy"] if needs_a else None
        ctx.save_for_backward(*kept, *groups.values())

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of dy and a, which have none themselves."""
        (dout,) = found
        a, dy, *tensors = ctx.saved_tensors
        groups = dict(zip(ctx.groups, tensors, strict=True))
        with torch.no_grad(), ctx.session.active():  # another thread may be here
            weights = dout.to(ctx.dtype).contiguous()  # (G, N, K), as kernels read them
            ddy = da = None
            if a is not None:
                ddy = gradients.of_rows(a, weights.transpose(1, 2), groups, ctx.expected_m)
            if dy is not None:
                da = gradients.of_rows(dy, weights, groups, ctx.expected_m)
        if torch.is_grad_enabled():  # a second derivative may be asked for
            ddy, da = (_once(each, "grouped_gemm_wgrad", dout, a, dy) for each in (ddy, da))
        of_names = {"dy": ddy, "a": da}
        return *[None] * _BEFORE, *(of_names.get(name) for name in ctx.names)


def _once(gradient: Tensor | None, op: str, *on: Tensor | None) -> Tensor | None:
    """Return a gradient of `op` as one that depends on others in a way that is not known."""
    if gradient is None:
        return None
    with enable_single_level_autograd_function():
        return _Once.apply(gradient, op, *on)  # type: ignore[attr-defined, no-any-return]


class _Once(_SingleLevelFunction):
    """What a gradient is, and that it has none itself."""

    @staticmethod
    def forward(gradient: Tensor, _op: str, *_on: Tensor | None) -> Tensor:
        """Return the gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep whose gradient it is."""
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
