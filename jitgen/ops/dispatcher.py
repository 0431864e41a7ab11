# SPDX-License-Identifier: Apache-2.0
"""
The work of torch's dispatcher for an operation, and how a call that bypasses the dispatcher does
it.

An eager call launches its kernel without torch's dispatcher, which would cost as much as the rest
of the call. So everything that the dispatcher does is done here, or refused with advice.
docs/torch.md has the table, and `tests/compile/test_dispatcher.py` tests every operation with every
row of it.

The first call with certain shapes runs `require_plain` and `require_apart`. A warm call runs a
guard, which refuses tensors that the dispatcher would treat differently (`jitgen.ops.guards`). It
does not check memory again, which would take half of its time: see JITGEN_CHECK.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch._C import DispatchKey, _functorch
from torch.autograd import forward_ad

from jitgen.errors import InputError

_Function = TypeVar("_Function")

constant_result: Callable[[_Function], _Function] = torch.compiler.assume_constant_result
"""Decorator of functions that torch.compile calls once, and whose result is then a constant."""

_PLAIN_KEY = re.compile(r"CPU|CUDA|ADInplaceOrView|Auto(grad|cast)\w+")
"""Dispatch keys of tensors that kernels read as they lie in memory."""

_KEYS = {
    "Negative": ("a lazily negated view, whose sign torch keeps apart", "{}.resolve_neg()"),
    "Conjugate": ("a lazily conjugated view", "{}.resolve_conj()"),
    "ZeroTensor": ("a tensor of zeros without memory", "torch.zeros_like({})"),
}
"""Meaning of other keys, and the tensor to pass instead."""


def is_traced(tensors: Iterable[object]) -> bool:
    """
    Return whether torch's dispatcher has to see a call with `tensors`.

    The dispatcher has to see a call in a dispatch mode (fake tensors, make_fx), while
    torch.jit.trace records, and in a transform of torch.func, which wraps new tensors. It also has
    to see tensors that represent others: fake ones, a batch under vmap, and those of a subclass
    that dispatches.
    """
    if torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return True
    is_off = torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)
    if torch._C._len_torch_dispatch_stack() and not is_off:
        return True
    for value in tensors:
        if isinstance(value, Tensor):
            keys = torch._C._dispatch_keys(value)
            if keys.has(DispatchKey.Python) or keys.has(DispatchKey.Functionalize):
                return True
            if _functorch.is_functorch_wrapped_tensor(value):
                return True
    return False


def require_plain(tensors: Mapping[str, Tensor]) -> None:
    """
    Check that the memory of `tensors`, given by name, contains their values, so that kernels may
    read it.

    Raises:
        InputError: A tensor has a forward-mode derivative, a lazy sign, or another key of torch's
            dispatcher that changes the meaning of its memory; or its storage was freed or made
            smaller.
    """
    refuse_tangents(tensors)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_meta:
            continue  # which is refused by the rule about layouts, or devices
        found[name] = tensor
        keys = torch._C._dispatch_keyset_to_string(torch._C._dispatch_keys(tensor))
        others = (
            each
            for each in keys.partition("(")[2].rstrip(")").split(", ")
            if not _PLAIN_KEY.fullmatch(each)
        )
        if (wrong := next(others, None)) is not None:
            what, instead = _KEYS.get(wrong, (f"one with torch's dispatch key {wrong}", "a copy"))
            raise InputError(
                name,
                f"must be a tensor that lies in memory as it is (got {what}): give "
                f"{instead.format(name)}",
            )
    require_storage(found)


def refuse_tangents(tensors: Mapping[str, object]) -> None:
    """
    Require tensors without a forward-mode derivative.

    Raises:
        InputError: A tensor has one; the result would lack it.
    """
    if not _are_tangents_on():
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and _has_tangent(tensor):
            raise InputError(
                name,
                "must not have a forward-mode derivative, because kernels have none: use reverse "
                "mode, where there is one (docs/gradients.md), or give "
                f"torch.autograd.forward_ad.unpack_dual({name}).primal",
            )


def is_differentiated(tensor: Tensor) -> bool:
    """Return whether autograd needs a derivative with respect to a tensor."""
    return (torch.is_grad_enabled() and tensor.requires_grad) or _has_tangent(tensor)


def _has_tangent(tensor: Tensor) -> bool:
    """Say whether a tensor has a forward-mode derivative that counts."""
    if not _are_tangents_on():
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def _are_tangents_on() -> bool:
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def require_storage(tensors: Mapping[str, Tensor]) -> None:
    """
    Require storages that contain all elements of `tensors`, given by name.

    Raises:
        InputError: A storage was freed or made smaller after its tensor was made.
    """
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        have = tensor.untyped_storage().nbytes()
        wanted = tensor.storage_offset() * tensor.element_size() + reach(tensor)
        if wanted > have:
            raise InputError(
                name,
                f"must have its memory, {wanted} bytes of storage (got {have}): it was freed or "
                "made smaller behind the tensor, as FSDP does with weights that are not in use",
            )


def reach(tensor: Tensor) -> int:
    """
    Return the number of bytes from the first element of a tensor to the end of its last element.
    """
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * step for size, step in sides) + 1) * tensor.element_size()


def require_apart(
    tensors: Mapping[str, Tensor], written: Collection[str], in_place: Collection[str] = ()
) -> None:
    """
    Check that the tensors that a call writes do not overlap with others, or with themselves.

    Tensors that are different columns of one matrix do not overlap. All other interleaved tensors
    are refused, even if they share no byte.

    Args:
        tensors: The tensors of the call, by name.
        written: Which of them it writes.
        in_place: Tensors of which the call reads each element before it writes the same place: an
            output may be one of these tensors as a whole, but not a part of one.

    Raises:
        InputError: A written tensor overlaps with another tensor or with itself, or is an inference
            tensor outside of inference mode.
    """
    names = [name for name in written if name in tensors]
    for place, name in enumerate(names):
        out = tensors[name]
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise InputError(
                name,
                "must not be a tensor of inference mode outside of it: torch lets none be written "
                f"there; give a clone: {name}.clone()",
            )
        if _overlaps_itself(out):
            raise InputError(name, f"must not overlap itself (got strides {out.stride()})")
        for other, tensor in tensors.items():
            if other in names[: place + 1] or (other in in_place and _is_same(out, tensor)):
                continue
            if do_overlap(out, tensor):
                raise InputError(
                    name,
                    f"must not share memory with {other} (got {_extent(out)}, and {other} with "
                    f"{_extent(tensor)})",
                )


def _overlaps_itself(tensor: Tensor) -> bool:
    """
    Say whether several elements may lie in the same place; the answer is exact for tensors that are
    not interleaved.
    """
    inner = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step < inner:
            return bool(tensor.numel())
        inner += step * (size - 1)
    return False


def do_overlap(first: Tensor, second: Tensor) -> bool:
    """Say whether two tensors share memory, or may share it because they are interleaved."""
    if first.device != second.device or first.is_meta or not (first.numel() and second.numel()):
        return False
    (start, end), (other_start, other_end) = _storage(first), _storage(second)
    if end <= other_start or other_end <= start:
        return False
    distance = second.data_ptr() - first.data_ptr()
    if distance >= reach(first) or -distance >= reach(second):
        return False
    (pitch, width), (other_pitch, other_width) = _rows(first), _rows(second)
    if pitch != other_pitch or not pitch:
        return True
    column = distance % pitch  # of the second's first one in the rows of the first
    return not width <= column <= pitch - other_width


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses at which the storage of a tensor begins and ends."""
    start = tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()
    return start, start + tensor.untyped_storage().nbytes()


def _rows(tensor: Tensor) -> tuple[int, int]:
    """Return the distance of rows in bytes, 0 if it is not constant, and the bytes of a row."""
    size = tensor.element_size()
    *others, pitch, step = (0, 0, *tensor.stride())[-max(2, tensor.dim()) :]
    width = ((tensor.shape[-1] - 1) * step + 1) * size if tensor.dim() else size
    is_regular = pitch * size >= width and all(each % pitch == 0 for each in others)
    return pitch * size if is_regular else 0, width


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same elements in memory."""
    kinds = [(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in (first, second)]
    return kinds[0] == kinds[1]


def _extent(tensor: Tensor) -> str:
    return f"{reach(tensor)} bytes at {tensor.data_ptr():#x}"


mark_written: Callable[[Iterable[Tensor]], None] = torch._C._increment_version
"""
Increase the version counters of written tensors, as every in-place operation of torch does, so that
autograd notices if it has saved one of them for a backward pass.
"""
