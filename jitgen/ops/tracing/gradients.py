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

from jitgen.errors import InputError
from jitgen.layouts import ARGUMENT
from jitgen.ops.calling import needs_gradient
from jitgen.ops.grouped_gemm import gradients
from jitgen.ops.grouped_gemm.validate import require_differentiable


def of_grouped_gemm(op: Any) -> Callable[..., Any]:
    """Return what autograd calls for `op`, one of `grouped_gemm`'s."""
    names = [argument.name for argument in op._schema.arguments]
    behind = torch._C._after_autograd_keyset

    def call(keys: Any, *given: Any) -> Any:
        named = dict(zip(names, given, strict=False))
        require_differentiable(named)
        if needs_gradient(given):
            groups = {name: named.get(name) for name in ARGUMENT.values()}
            return _Product.apply(  # type: ignore[no-untyped-call]
                named["a"], named["b"], groups, lambda: op.redispatch(keys & behind, *given)
            )
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & behind, *given)

    return call


class _Product(torch.autograd.Function):
    """The product, and its gradients with respect to a and b."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        groups: dict[str, Tensor | None],
        product: Callable[[], Tensor],
    ) -> Tensor:
        """Return the product; `product` computes it without autograd."""
        needs_a, needs_b = ctx.needs_input_grad[:2]
        found = {name: tensor for name, tensor in groups.items() if tensor is not None}
        ctx.groups = tuple(found)
        ctx.num_groups = b.shape[0]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, *found.values())
        with torch._C._AutoDispatchBelowAutograd():
            return product()

    @staticmethod
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a and b, which have none themselves."""
        (dy,) = found
        a, b, *tensors = ctx.saved_tensors
        groups = dict(zip(ctx.groups, tensors, strict=True))
        needs_a, needs_b = ctx.needs_input_grad[:2]
        with torch.no_grad():
            da = gradients.of_rows(dy, b, groups) if needs_a else None
            db = gradients.of_weights(dy, a, ctx.num_groups, groups) if needs_b else None
        if torch.is_grad_enabled():  # somebody may differentiate twice
            da, db = (_once(each, dy, a, b) for each in (da, db))
        return da, db, None, None


def _once(gradient: Tensor | None, *on: Tensor | None) -> Tensor | None:
    """Return a gradient as one that depends on others in a way that is not known."""
    if gradient is None:
        return None
    return _Once.apply(gradient, *on)  # type: ignore[no-any-return, no-untyped-call]


class _Once(torch.autograd.Function):
    """What a gradient is, and that it has none itself."""

    @staticmethod
    def forward(_ctx: Any, gradient: Tensor, *_on: Tensor | None) -> Tensor:
        """Return the gradient."""
        return gradient.view_as(gradient)

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
