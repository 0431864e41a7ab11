# SPDX-License-Identifier: Apache-2.0
"""
Rules about the tensors of a call, which all operations share.

Each rule raises the one InputError that names the argument, says what is required, and then what
came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError

Size = int
"""A number of rows among arguments: while torch traces, it may be a symbol."""


def tensors_of(given: NamedTuple) -> dict[str, Tensor]:
    """
    Return every tensor among the arguments of a call, by the name that errors have for it, in the
    order of the arguments. Tensors of an argument that is a tuple are ``out.offs`` or ``out[0]``.
    """
    found: dict[str, Tensor] = {}
    for name, value in zip(given._fields, given, strict=True):
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, tuple):
            parts = getattr(value, "_fields", None)
            for place, each in enumerate(value):
                if isinstance(each, Tensor):
                    found[f"{name}.{parts[place]}" if parts else f"{name}[{place}]"] = each
    return found


def groups_of(given: object) -> Tensor | None:
    """Return the one of offs, m_indices and masked_m that is given to a call."""
    every = (getattr(given, name, None) for name in ARGUMENT.values())
    return next((each for each in every if each is not None), None)


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
        raise InputError(name, f"must be {describe(allowed)}{where} (got {tensor.dtype})")


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


def describe(dtypes: Iterable[torch.dtype]) -> str:
    """Return the names of types as an error lists them: ``bfloat16 or float16``."""
    return " or ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))
