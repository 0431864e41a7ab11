# SPDX-License-Identifier: Apache-2.0
"""
Guards: whether torch's dispatcher treats the tensors of a call in the same way as those of an
earlier call.

A warm call bypasses the dispatcher, so it must not serve a tensor that the dispatcher would treat
differently: a lazily negated view, a wrapper of torch.func, a tensor that requires a gradient, or
any tensor in inference mode or under autocast, if the earlier call was outside of it. A guard
compares in one C++ call, for each tensor: its class, element type, device, number of dimensions,
whether it requires a gradient, and its dispatch keys combined with those of this thread.
torch.compile guards its graphs with the same class.

Two properties are not dispatch keys and are part of the keys of calls: whether gradients are on,
which decides whether `requires_grad` matters, and the level of forward-mode derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch

_TensorGuards: Any
try:
    from torch._C._dynamo.guards import TensorGuards as _TensorGuards
except ImportError:  # pragma: no cover  # torch promises nothing of it
    _TensorGuards = None

Guard = Callable[..., bool]
"""
Returns whether the dispatcher treats tensors in the same way as those from which the guard was
made, in the same order.
"""


def guard(
    tensors: Sequence[Tensor], sizes: Collection[int] = (), strides: Collection[int] = ()
) -> Guard:
    """
    Return a guard that accepts tensors like these.

    The guard returns False or raises TypeError if the number of tensors is different, and returns
    False if one tensor is given twice.

    Args:
        tensors: Tensors of a call; the dispatcher must treat later ones in the same way.
        sizes: Indices of the tensors whose sizes must be the same.
        strides: Indices of the tensors whose strides must be the same.
    """
    if _TensorGuards is None:  # pragma: no cover  # covered by a test that takes it away
        return InPython(tensors, sizes, strides).check
    every = [*enumerate(tensors)]
    made = _TensorGuards(
        *tensors,
        dynamic_dims_sizes=[[*x.shape] if i in sizes else [None] * x.dim() for i, x in every],
        dynamic_dims_strides=[
            [*x.stride()] if i in strides else [None] * x.dim() for i, x in every
        ],
    )
    return made.check  # type: ignore[no-any-return]


class InPython:
    """
    The guard in Python, some microseconds slower, for versions of torch without C++ guards.

    Args:
        tensors: As for `guard`.
        sizes: Likewise.
        strides: Likewise.
    """

    def __init__(
        self, tensors: Sequence[Tensor], sizes: Collection[int] = (), strides: Collection[int] = ()
    ) -> None:
        self._sizes, self._strides = frozenset(sizes), frozenset(strides)
        self._kinds = self._kinds_of(tensors)
        self._thread = _thread()

    def check(self, *tensors: Any) -> bool:
        """
        Return whether the dispatcher treats `tensors`, in the present state of this thread, as it
        treated those of the guard, and whether the required sizes and strides are the same.
        """
        are_tensors = all(isinstance(each, Tensor) for each in tensors)
        are_distinct = len({id(each) for each in tensors}) == len(tensors)
        if not (are_tensors and are_distinct and len(tensors) == len(self._kinds)):
            return False
        return self._thread == _thread() and self._kinds == self._kinds_of(tensors)

    def _kinds_of(self, tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
        return [
            (
                _kind(tensor),
                tuple(tensor.shape) if place in self._sizes else tensor.dim(),
                tensor.stride() if place in self._strides else None,
            )
            for place, tensor in enumerate(tensors)
        ]


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """Return the properties of a tensor that the dispatcher uses."""
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, keys


def _thread() -> tuple[Any, ...]:
    """Return the properties of this thread that the dispatcher uses."""
    return (
        torch.is_inference_mode_enabled(),
        torch._C._is_any_autocast_enabled(),
        torch._C._is_tracing(),
        torch._C._len_torch_dispatch_stack(),
        _functorch.peek_interpreter_stack() is None,
        torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU),
    )
