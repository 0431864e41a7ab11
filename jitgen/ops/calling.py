# SPDX-License-Identifier: Apache-2.0
"""
What every call of an operation shares: which errors may leave it, whether somebody traces it, and
the rules about its tensors.

Each rule raises the one InputError that names the argument, says what is required, and then what
came. Warm calls do not ask whether they are traced: the types of the tensors and the number of
modes are in their key, and only calls that nobody traces are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from torch._C import DispatchKey, _functorch

from jitgen.config import Arch, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError, ResourceError
from jitgen.support.boundary import boundary


class _OutOfMemory(ResourceError, torch.OutOfMemoryError):
    """The device has no memory left for an output: an error of jitgen's, and of torch's."""


@contextmanager
def calling(op: str) -> Iterator[None]:
    """Let only errors of jitgen's leave a call of `op`; out of memory is torch's as well."""
    try:
        with boundary(op):
            yield
    except ResourceError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise _OutOfMemory(str(error)) from error.__cause__
        raise


def is_traced(tensors: Iterable[object]) -> bool:
    """
    Return whether torch's dispatcher has to see a call with `tensors`.

    It does where a dispatch mode is on (fake tensors, make_fx), while torch.jit.trace records, in a
    transform of torch.func, which wraps what is made inside of it, and where a tensor stands for
    others: a fake one, a batch under vmap, a subclass that dispatches.
    """
    if torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return True
    is_off = torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)
    if torch._C._len_torch_dispatch_stack() and not is_off:
        return True
    return any(_stands_for_others(value) for value in tensors if isinstance(value, Tensor))


def _stands_for_others(tensor: Tensor) -> bool:
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return True
    keys = torch._C._dispatch_keys(tensor)
    return keys.has(DispatchKey.Python) or keys.has(DispatchKey.Functionalize)


def layout_of(
    offs: Tensor | None, m_indices: Tensor | None, masked_m: Tensor | None
) -> tuple[Layout, Tensor]:
    """
    Return the layout, and the tensor that says which rows belong to which group.

    Raises:
        InputError: There is not exactly one.
    """
    given = {"offs": offs, "m_indices": m_indices, "masked_m": masked_m}
    found = [
        (layout, tensor) for layout, name in ARGUMENT.items() if (tensor := given[name]) is not None
    ]
    names = [ARGUMENT[layout] for layout, _ in found]
    if not found:
        raise InputError("offs", "one of offs, m_indices and masked_m is required (got none)")
    if len(found) > 1:
        raise InputError(
            names[1],
            f"exactly one of offs, m_indices and masked_m is allowed (got {' and '.join(names)})",
        )
    require_tensor(names[0], found[0][1])
    return found[0]


def check_groups(name: str, groups: Tensor, length: int, like: tuple[str, Tensor]) -> None:
    """Require what says which rows belong to which group to be `length` int32 beside `like`."""
    of = "(M,)" if name == "m_indices" else "(G,)"
    require_dtype(name, groups, [torch.int32], None)
    require_rank(name, groups, 1, of)
    require_shape(name, groups, (length,), f"which is {of}")
    require_device(name, groups, like)
    require_unit_stride(name, groups, -1)


def require_tensor(name: str, value: object) -> None:
    """Require a dense tensor."""
    if not isinstance(value, Tensor):
        raise InputError(name, f"must be a torch tensor (got {type(value).__name__})")
    if value.layout is not torch.strided:
        raise InputError(name, f"must be a dense tensor (got layout {value.layout})")


def require_dtype(name: str, tensor: Tensor, allowed: list[torch.dtype], arch: Arch | None) -> None:
    """Require one of `allowed` types; `arch` is who allows them, if it is one."""
    if tensor.dtype not in allowed:
        where = f" on {arch}" if arch else ""
        raise InputError(name, f"must be {words(set(allowed))}{where} (got {tensor.dtype})")


def require_rank(name: str, tensor: Tensor, rank: int, of: str) -> None:
    """Require `rank` dimensions."""
    if tensor.dim() != rank:
        raise InputError(
            name, f"must have {rank} dimensions, {of} (got shape {tuple(tensor.shape)})"
        )


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], why: str) -> None:
    """Require `shape`."""
    if tuple(tensor.shape) != shape:
        raise InputError(name, f"must have shape {shape}, {why} (got {tuple(tensor.shape)})")


class _OnDevice(Protocol):
    """A tensor, or what is made of tensors of one device."""

    @property
    def device(self) -> torch.device:
        """Where it is."""


def require_device(name: str, tensor: Tensor, like: tuple[str, _OnDevice]) -> None:
    """Require the device of `like`, with its name."""
    other, device = like[0], like[1].device
    if tensor.device != device:
        raise InputError(name, f"must be on {device}, as {other} is (got {tensor.device})")


def require_unit_stride(name: str, tensor: Tensor, side: int) -> None:
    """Require neighbours along dimension `side`; of no elements strides mean nothing."""
    if tensor.shape[side] > 1 and tensor.stride(side) != 1 and not _is_empty(tensor):
        raise InputError(
            name, f"must be contiguous in its last dimension (got strides {tensor.stride()})"
        )


def _is_empty(tensor: Tensor) -> bool:
    """Say whether a tensor has no elements."""
    return any(length == 0 for length in tensor.shape)


def check_memory(
    name: str,
    tensor: Tensor,
    like: tuple[str, Tensor],
    alignment: int,
    *,
    has_memory: bool,
    across: bool = False,
) -> None:
    """
    Require rows of neighbours beside `like`, whose addresses are multiples of `alignment`.

    With `across` it is columns: the tensor is a transposed view.
    """
    require_device(name, tensor, like)
    tensor = tensor.mT if across else tensor
    require_unit_stride(name, tensor, -1)
    size = tensor.element_size()
    if alignment <= size or _is_empty(tensor):  # torch sees to that, and to what has no address
        return
    if has_memory and tensor.data_ptr() % alignment:
        raise InputError(
            name,
            f"must start at a multiple of {alignment} bytes (got address {tensor.data_ptr():#x})",
        )
    for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        if length > 1 and stride * size % alignment:
            raise InputError(
                name,
                f"must have strides that are multiples of {alignment} bytes, {alignment // size} "
                f"elements (got strides {tensor.stride()})",
            )


def needs_gradient(tensors: Iterable[object]) -> bool:
    """Return whether autograd is on and asks for a gradient of one of `tensors`."""
    return torch.is_grad_enabled() and any(
        isinstance(each, Tensor) and each.requires_grad for each in tensors
    )


def refuse_gradients(
    tensors: Mapping[str, object], op: str, why: str = "there is none", advice: str = ""
) -> None:
    """
    Do nothing where autograd is off or asks for no gradient of `tensors`, which have these names
    in a call of `op`.

    Args:
        tensors: Values by their names; those that are no tensors do not count.
        op: The operation.
        why: Why there is no gradient.
        advice: What else to do about it, and a comma.

    Raises:
        InputError: A result would be one that autograd knows nothing of, and a layer would train
            wrongly without a word.
    """
    for name, value in tensors.items():
        if needs_gradient([value]):
            raise InputError(
                name,
                f"must not require a gradient, because {why}: {advice}call {op} under "
                f"torch.no_grad(), or give {name}.detach()",
            )


def words(dtypes: set[torch.dtype]) -> str:
    """Return types in words, for errors."""
    return " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
