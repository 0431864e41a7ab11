# SPDX-License-Identifier: Apache-2.0
"""
Whether a call is traced, asked once a warm call has turned out not to be one.

Warm calls ask nothing here: the types of the tensors and the number of modes are in their key, and
only calls that nobody traces are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._C import DispatchKey, _functorch

_PLAIN = (Tensor, torch.nn.Parameter)


def is_traced(tensors: Iterable[object]) -> bool:
    """
    Return whether torch's dispatcher has to see a call with `tensors`.

    It does where a dispatch mode is on (fake tensors, make_fx), while torch.jit.trace records, and
    where a tensor stands for others: a fake one, a batch under vmap, a subclass that dispatches.
    """
    if torch._C._is_tracing():
        return True
    is_off = torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)
    if torch._C._len_torch_dispatch_stack() and not is_off:
        return True
    return any(_stands_for_others(value) for value in tensors if isinstance(value, Tensor))


def _stands_for_others(tensor: Tensor) -> bool:
    if type(tensor) in _PLAIN:
        return _functorch.is_functorch_wrapped_tensor(tensor)
    return torch._C._dispatch_keys(tensor).has(DispatchKey.Python)
