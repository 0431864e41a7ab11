# SPDX-License-Identifier: Apache-2.0
"""
Checks for kernels that are called directly, ``jitgen.get_kernel(config)(...)``: the properties that
a compiled entry does not check, because public calls check them before.

An entry checks types, numbers of dimensions, strides, and that sizes with one name agree. It does
not check limits of its config (at most 256 experts), sizes that follow from others (a scale for
each 128 columns), or values of numbers. So the arguments of an entry are converted to those of its
public call and checked by its rules: by `check` where they have the same names, otherwise by the
function that the operation names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitgen.config import Arch, Config
from jitgen.config.operation import operation
from jitgen.errors import InputError
from jitgen.formats.protocol import ScaleFormat
from jitgen.ops import tensors as common
from jitgen.ops.dispatcher import is_traced, mark_written, require_apart, require_plain
from jitgen.runtime import devices
from jitgen.runtime.session import Session, current

if TYPE_CHECKING:
    from jitgen.ops.call import Call

_COUNT = "num_ctas"
"""Name of the last argument of a GPU's entries: number of CTAs, at most one for each SM."""


def read(
    config: Config,
    arch: Arch,
    session: Session,
    given: tuple[object, ...],
    tensors: Sequence[str],
    numbers: Sequence[str] = (),
    in_place: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Return the arguments of a direct call of an entry, by name, after checking their number and
    types, that the tensors share a device of `arch`, and that torch's dispatcher would not treat
    them specially: see `jitgen.ops.dispatcher`.

    Args:
        config: Config that the kernel was generated from.
        arch: Target of the device.
        session: Session whose kernels and settings serve the call.
        given: The arguments.
        tensors: Names of the tensors; all are on the device of the first one.
        numbers: Names of the numbers that follow the tensors, without the number of CTAs.
        in_place: Names of the tensors that a result may be: see `require_apart`.

    Raises:
        InputError: An argument is missing, or has another type or device; a result overlaps with
            another tensor; or the number of CTAs is not allowed.
    """
    names = (*tensors, *numbers, *([_COUNT] if arch.is_gpu else []))
    if len(given) != len(names):
        raise InputError(
            "arguments",
            f"must be {len(names)} for {config.name(arch)}: {', '.join(names)} (got {len(given)})",
        )
    found: dict[str, Any] = dict(zip(names, given, strict=True))
    first, *others = tensors
    for name in tensors:
        common.require(name, found[name])
    if is_traced(found.values()):
        raise InputError("arguments", "must not be a tracer's tensors: call the public function")
    common.refuse_gradients(found, "a kernel")
    for name in others:
        common.require(name, found[name], like=(first, found[first].device))
    device = devices.find(found[first].device, session, first)
    if device.arch is not arch:
        raise InputError(
            first, f"must be on {arch}, which {config.name(arch)} is for (got {device.arch})"
        )
    if found[first].is_cuda and found[first].get_device() != torch.cuda.current_device():
        raise InputError(
            first,
            f"must be on the current GPU, cuda:{torch.cuda.current_device()} (got "
            f"{found[first].device}): kernels run on its stream",
        )
    if arch.is_gpu:
        most, count = device.tail[0], found.pop(_COUNT)
        if type(count) is not int or not 1 <= count <= most:
            raise InputError(_COUNT, f"must be from 1 to the {most} SMs (got {count!r})")
    named = {name: found[name] for name in tensors}
    written = [name for name in operation(config.op).results if name in named]
    require_plain(named)
    require_apart(named, written, in_place)
    mark_written(named[name] for name in written)
    return found


def check(call: Call[Any, Any, Any], config: Config, arch: Arch, given: tuple[object, ...]) -> None:
    """
    Require arguments of an entry that its public call would accept with `config`; for entries whose
    arguments have the names of the public call.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session = current.get()
    names = call.entry_tensors(config)
    found = read(config, arch, session, given, names, in_place=call.in_place)
    judge(call, config, call.arguments(**found), session)


def judge(call: Call[Any, Any, Any], config: Config, args: Any, session: Session) -> Any:
    """
    Check the arguments of an entry of `config` by the rules of its public call; return the sizes
    and types that follow from them.

    Raises:
        InputError: An argument is wrong, or is for another config, or there are no rows.
    """
    valid = call.validate(args, session)
    call.require_fit(config, args, valid)
    require_rows(call.rows_of or call.like, call.rows(args, valid))
    call.check_entry(args, valid)
    call.check_values(args, valid)
    return valid


def require_rows(name: str, count: int) -> None:
    """
    Require at least one row: kernels do not support calls without rows, for which public calls
    launch nothing.
    """
    if not count:
        raise InputError(name, "must have at least one row: nothing is launched for none")


def require_scales(
    name: str, scale: Tensor, form: ScaleFormat, shape: tuple[int, ...], *, of_result: bool = True
) -> None:
    """
    Require scales of `form` in a layout that kernels read and write; there may be more blocks of
    atoms than needed.

    Args:
        name: Name of the argument in errors.
        scale: The scales.
        form: Their format.
        shape: Their required shape; in atoms, the number of blocks may be larger.
        of_result: Whether a kernel writes them. Then they must be contiguous, too, because results
            are never copied.
    """
    common.require(name, scale, [form.dtype])
    if form.has_atoms and scale.dim() == len(shape) and scale.shape[-3] > shape[-3]:
        shape = (*shape[:-3], scale.shape[-3], *shape[-2:])
    common.require(name, scale, shape=(shape, f"for {form.name} scales"))
    if of_result and not form.has_readable_orders and not scale.is_contiguous():
        raise InputError(name, f"must be contiguous (got strides {scale.stride()})")
    require_readable(name, scale, form)


def require_readable(name: str, scale: Tensor, form: ScaleFormat) -> None:
    """
    Require scales in an order that kernels read. A public call copies scales in another order; a
    direct call does not.
    """
    if not form.is_readable(scale):
        raise InputError(
            name,
            f"must lie as kernels read {form.name} scales, which jitgen.quantize returns (got "
            f"strides {scale.stride()} at {scale.data_ptr():#x})",
        )


def require_bytes(name: str, tensor: Tensor) -> None:
    """Require pairs of e2m1 to be bytes, as kernels take them."""
    if tensor.dtype is torch.float4_e2m1fn_x2:
        raise InputError(name, "must be uint8, as kernels take pairs of e2m1: .view(torch.uint8)")
