# SPDX-License-Identifier: Apache-2.0
"""
Rules about the tensors of a call, which all operations share.

Each rule raises an InputError that names the argument, says what is required, and then what was
given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules, size_refusal, target

Size = int
"""A number of rows as an argument; while torch traces, it may be a symbol."""


@frozen
class AnyValidated:
    """
    The facts that follow from valid arguments; sizes of a tracer may be symbols.

    Attributes:
        op: The operation.
        device: The device that runs the call.
    """

    op: ClassVar[str]
    device: Device

    @property
    def arch(self) -> Arch:
        """The target."""
        return self.device.arch


def tensors_of(args: NamedTuple) -> dict[str, Tensor]:
    """
    Return every tensor among the arguments of a call, by its name in errors, in the order of the
    arguments. Tensors in a tuple are called, for example, ``out.offs`` or ``out[0]``.
    """
    every = flat(args._asdict())
    return {name: value for name, value in every.items() if isinstance(value, Tensor)}


def flat(given: Mapping[str, object]) -> dict[str, object]:
    """Return arguments by name; tuples are split into their parts, named as by `tensors_of`."""
    found: dict[str, object] = {}
    for name, value in given.items():
        if not isinstance(value, tuple):
            found[name] = value
            continue
        parts = getattr(value, "_fields", None)
        for place, each in enumerate(value):
            found[f"{name}.{parts[place]}" if parts else f"{name}[{place}]"] = each
    return found


def groups_of(args: object) -> Tensor | None:
    """Return the one of offs, m_indices and masked_m that is given to a call; None if none is."""
    every = (getattr(args, name, None) for name in ARGUMENT.values())
    return next((each for each in every if each is not None), None)


def short_ids(ids: Tensor) -> Tensor:
    """
    Return ids of experts as int32; an id outside of int32 becomes -1, or another id of no expert.
    """
    return ids.clamp(-1, 2**31 - 1).to(torch.int32) if ids.dtype is torch.int64 else ids


def layout_of(
    offs: Tensor | None, m_indices: Tensor | None, masked_m: Tensor | None
) -> tuple[Layout, Tensor]:
    """
    Return the layout, and the tensor that says which rows belong to which group.

    Raises:
        InputError: Not exactly one of `offs`, `m_indices` and `masked_m` is given.
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
    require(names[0], found[0][1])
    return found[0]


def owned_rows(
    count: int, offs: Tensor | None, m_indices: Tensor | None, masked_m: Tensor | None
) -> Tensor:
    """
    Return which of `count` rows belong to a group: bool, (M,) or (G, M).

    Raises:
        InputError: Not exactly one of `offs`, `m_indices` and `masked_m` is given.
    """
    _, groups = layout_of(offs, m_indices, masked_m)
    if m_indices is not None:
        return groups >= 0
    rows = torch.arange(count, device=groups.device)
    if masked_m is not None:
        return rows < groups[:, None]
    return rows < (groups[-1] if len(groups) else 0)


def require(
    name: str,
    value: object,
    dtypes: Collection[torch.dtype] = (),
    *,
    arch: Arch | None = None,
    rank: tuple[int, str] | None = None,
    shape: tuple[tuple[int, ...], str] | None = None,
    like: tuple[str, torch.device] | None = None,
    contiguous: int | None = None,
) -> None:
    """
    Require a dense tensor, and then the further properties, in the order of the arguments.

    Args:
        name: The argument.
        value: The given value.
        dtypes: Allowed types; empty: any type.
        arch: The target, if only the target limits the types; for the message.
        rank: Number of dimensions, and their names, such as ``(M, K)``.
        shape: Its shape, and the reason for it, in words.
        like: Another argument, and the device that both are on.
        contiguous: The dimension that must be contiguous. Strides of tensors without elements are
            not checked.

    Raises:
        InputError: One of the properties does not hold.
    """
    if not isinstance(value, Tensor):
        raise InputError(name, f"must be a torch tensor (got {type(value).__name__})")
    if value.layout is not torch.strided:
        raise InputError(name, f"must be a dense tensor (got layout {value.layout})")
    if dtypes and value.dtype not in dtypes:
        where = f" on {arch}" if arch else ""
        raise InputError(name, f"must be {describe(dtypes)}{where} (got {value.dtype})")
    if rank is not None and value.dim() != rank[0]:
        text = f"must have {rank[0]} dimensions, {rank[1]} (got shape {tuple(value.shape)})"
        raise InputError(name, text)
    if shape is not None and tuple(value.shape) != shape[0]:
        text = f"must have shape {shape[0]}, {shape[1]} (got {tuple(value.shape)})"
        raise InputError(name, text)
    if like is not None and value.device != like[1]:
        text = f"must be on {like[1]}, as {like[0]} is (got {value.device})"
        raise InputError(name, text)
    side = 0 if contiguous is None else contiguous
    is_spread = contiguous is not None and value.shape[side] > 1 and value.stride(side) != 1
    if is_spread and not _is_empty(value):
        text = f"must be contiguous in its last dimension (got strides {value.stride()})"
        raise InputError(name, text)


def device_of(op: str, name: str, like: Tensor, session: Session) -> Device:
    """
    Return the device that runs a call of `op` with the tensor `like`.

    Args:
        op: The operation.
        name: Name of the argument `like`.
        like: A tensor of the call.
        session: The session of the call.

    Raises:
        InputError: `like` is not a tensor, or `op` has no kernels for its device.
    """
    require(name, like)
    device = devices.find(like.device, session, name)
    if op not in target(device.arch).operations:
        raise InputError(name, f"must be on a device with kernels of {op} (got {device.arch})")
    return device


def check_groups(name: str, groups: Tensor, length: int, like: tuple[str, torch.device]) -> None:
    """
    Require the tensor that gives groups their rows to have `length` int32 values on the device of
    `like`.
    """
    of = "(M,)" if name == "m_indices" else "(G,)"
    shape = ((length,), f"which is {of}")
    require(name, groups, [torch.int32], rank=(1, of), shape=shape, like=like, contiguous=-1)


def _is_empty(tensor: Tensor) -> bool:
    """Say whether a tensor has no elements."""
    return any(length == 0 for length in tensor.shape)


def check_memory(
    tensors: Iterable[tuple[str, Tensor | None, int]],
    like: tuple[str, torch.device],
    *,
    has_memory: bool,
    across: str = "",
) -> None:
    """
    Require contiguous rows on the device of `like`, whose addresses are multiples of an alignment.

    Args:
        tensors: For each tensor its name, the tensor or None, and its alignment in bytes.
        like: Another argument, and the device that all are on.
        has_memory: Whether tensors have addresses; a tracer's have none.
        across: Name of a tensor that is a transposed view, whose columns are checked instead of
            rows.
    """
    for name, given, alignment in tensors:
        if given is None:
            continue
        tensor = given.mT if name == across else given
        require(name, tensor, like=like, contiguous=-1)
        size = tensor.element_size()
        if alignment <= size or _is_empty(tensor):
            continue  # torch checks that, and tensors without an address
        if has_memory and tensor.data_ptr() % alignment:
            raise InputError(
                name,
                f"must start at a multiple of {alignment} bytes (got address "
                f"{tensor.data_ptr():#x})",
            )
        for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
            if length > 1 and stride * size % alignment:
                raise InputError(
                    name,
                    f"must have strides that are multiples of {alignment} bytes, "
                    f"{alignment // size} elements (got strides {tensor.stride()})",
                )


def check_size(valid: AnyValidated, name: str) -> None:
    """Require sizes that kernels support; `name` is the argument with these sizes."""
    if reason := size_refusal(valid, valid.arch):
        raise InputError(name, reason)


def check_vectors(
    args: object, valid: AnyValidated, names: Iterable[str], *, has_memory: bool
) -> None:
    """
    Require memory that is aligned for vector loads and stores of kernels, on the device of the
    first tensor.

    Args:
        args: The arguments of the call.
        valid: The validated form of the arguments.
        names: Names of the tensors; None values pass.
        has_memory: Whether tensors have addresses; a tracer's have none.
    """
    alignment = rules(valid.arch, valid.op).alignment
    tensors = [(name, getattr(args, name), alignment) for name in names]
    first, like, _ = tensors[0]
    check_memory(tensors, (first, like.device), has_memory=has_memory)


def result_of(operands: torch.dtype) -> torch.dtype:
    """Return the default type of the product of such operands, as in torch."""
    return operands if operands in (torch.float16, torch.float32) else torch.bfloat16


def check_out(
    out: Tensor | None,
    asked: torch.dtype | None,
    allowed: Collection[torch.dtype],
    arch: Arch,
    shape: tuple[tuple[int, ...], str],
    usual: torch.dtype = torch.bfloat16,
) -> torch.dtype:
    """
    Return the type of a result.

    Args:
        out: The tensor for the result; None: a new tensor.
        asked: The type that the caller requests, or None.
        allowed: The types that `arch` has kernels for.
        arch: The target.
        shape: The shape of `out`, and the reason for it, in words.
        usual: The default type.

    Raises:
        InputError: No kernel gives a result of this type, or `out` has another type or shape.
    """
    if asked is not None and not isinstance(asked, torch.dtype):
        raise InputError("out_dtype", f"must be a torch.dtype, or None (got {asked!r})")
    if asked is not None and asked not in allowed:
        raise InputError("out_dtype", f"must be {describe(allowed)} on {arch} (got {asked})")
    if out is None:
        return asked or usual
    require("out", out, allowed if asked is None else [asked], arch=arch, shape=shape)
    return out.dtype


def require_rows_apart(out: Tensor | None) -> None:
    """Require that the rows of a result do not overlap."""
    if out is not None and out.shape[-2] > 1 and out.stride(-2) < out.shape[-1]:
        raise InputError("out", f"must not overlap itself (got strides {out.stride()})")


def require_count(name: str, value: object) -> None:
    """Require an integer of at least 1, or None."""
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(name, f"must be an integer of at least 1 (got {value!r})")


def needs_gradient(tensors: Iterable[object]) -> bool:
    """Return whether autograd is on and needs a gradient of one of `tensors`."""
    return torch.is_grad_enabled() and any(
        isinstance(each, Tensor) and each.requires_grad for each in tensors
    )


def refuse_gradients(
    tensors: Mapping[str, object], op: str, why: str = "there is none", advice: str = ""
) -> None:
    """
    Check that autograd is off or needs no gradient of `tensors`, the named tensors of a call of
    `op`.

    Args:
        tensors: Values by name; values that are not tensors are ignored.
        op: The operation.
        why: Why there is no gradient.
        advice: What else the caller can do, followed by a comma.

    Raises:
        InputError: A tensor requires a gradient. Autograd would not see the call, and a layer would
            train wrongly without an error.
    """
    for name, value in tensors.items():
        if needs_gradient([value]):
            raise InputError(
                name,
                f"must not require a gradient, because {why}: {advice}call {op} under "
                f"torch.no_grad(), or give {name}.detach()",
            )


def refuse_other_gradients(
    given: Mapping[str, object],
    op: str,
    differentiable: Collection[str],
    wrong: Iterable[tuple[bool, str, str]] = (),
) -> None:
    """
    Check that autograd is off, or needs gradients of some arguments alone.

    Args:
        given: Arguments by their names.
        op: The operation.
        differentiable: Names of the arguments that have a gradient.
        wrong: For each possible reason: whether it holds, so that no argument has a gradient in
            this call; the reason; and advice.

    Raises:
        InputError: Autograd needs a gradient that does not exist.
    """
    if not needs_gradient(given.values()):
        return
    for is_so, why, advice in wrong:
        if is_so:
            refuse_gradients(given, op, why, advice)
    others = {name: value for name, value in given.items() if name not in differentiable}
    refuse_gradients(others, op)


OUT_HAS_NONE = "what is written to out has none", "leave out `out`, "
"""Why there is no gradient, and what to do."""


def describe(dtypes: Iterable[torch.dtype]) -> str:
    """Return the names of types as an error lists them: ``bfloat16 or float16``."""
    return " or ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))
