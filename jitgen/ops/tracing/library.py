# SPDX-License-Identifier: Apache-2.0
"""
Operations of ours in torch's dispatcher: ``torch.ops.jitgen.*``.

A `Library` and not `custom_op`, which costs a call four times as much. What is the same for all
operations is registered here: on a CPU and on a GPU they run, none has a rule for vmap, few have a
gradient, and each says so before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitgen.errors import InputError
from jitgen.ops.calling import refuse_gradients
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.support.frozen import frozen

NAMESPACE = "jitgen"

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_DEVICES = ("CPU", "CUDA")


@frozen
class Operation:
    """
    One operation, as torch asks for it.

    Attributes:
        schema: Name, arguments and results in torch's language; what it writes to is marked.
        run: Takes what the schema names, does the work and returns the results. The tensors are
            real ones.
        fake: Takes the same, checks it and returns results of the right shape and type without
            values. Sizes may be symbols.
        autograd: Takes what calls the operation, and returns what autograd calls in its place; None
            where there is no gradient.
    """

    schema: str
    run: Callable[..., Any]
    fake: Callable[..., Any]
    autograd: Callable[[Any], Callable[..., Any]] | None = None

    @property
    def name(self) -> str:
        """What stands before the arguments, with the overload."""
        return self.schema[: self.schema.index("(")]


def register(operation: Operation) -> Any:
    """Make `operation` one of torch's, once in a process; return what calls it."""
    name, _, overload = operation.name.partition(".")
    _library.define(operation.schema, tags=_TAGS)
    op = getattr(getattr(getattr(torch.ops, NAMESPACE), name), overload or "default")
    for device in _DEVICES:
        _library.impl(operation.name, operation.run, device)
    autograd = (operation.autograd or _without_gradients)(op)
    _library.impl(operation.name, autograd, "Autograd", with_keyset=True)
    full_name = f"{NAMESPACE}::{operation.name}"
    torch.library.register_fake(full_name, operation.fake, lib=_library)
    torch.library.register_vmap(full_name, _refuse_batches(op), lib=_library)
    return op


def _names(op: Any) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def _without_gradients(op: Any) -> Callable[..., Any]:
    """Return what autograd calls: it refuses what needs a gradient, and steps aside."""
    names, behind = _names(op), torch._C._after_autograd_keyset
    name = op._schema.name.partition("::")[2]

    def call(keys: Any, *given: Any, **named: Any) -> Any:
        every = {**dict(zip(names, given, strict=False)), **named}
        refuse_tangents(every)
        refuse_gradients(every, name)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & behind, *given, **named)

    return call


def _refuse_batches(op: Any) -> Callable[..., Any]:
    """Return what vmap calls."""
    names = _names(op)

    def refuse(_info: Any, in_dims: tuple[Any, ...], *_given: Any, **_named: Any) -> Any:
        batched = next(
            (name for name, side in zip(names, in_dims, strict=False) if side is not None), names[0]
        )
        raise InputError(
            batched,
            "must not be batched by torch.vmap, for which no kernel has a dimension: call it "
            "outside of vmap, with more rows or groups",
        )

    return refuse
