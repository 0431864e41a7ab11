# SPDX-License-Identifier: Apache-2.0
"""
Checks for kernels that are called directly, ``jitgen.get_kernel(config)(...)``: the properties that
a compiled entry does not check, because public calls have checked them.

An entry checks types, ranks, strides, and that sizes agree which are one size. It does not see what
only its config says (at most 256 experts), what follows from other sizes (a scale for each 128
columns), nor numbers. So the arguments of an entry become those of its public call, whose rules
judge them: `check` does that where they have the same names, and a module ``direct`` of the
operation where they have not.
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
    given: tuple[Any, ...],
    tensors: Sequence[str],
    numbers: Sequence[str] = (),
    in_place: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Return the arguments of a direct call of an entry, by name, after checking their number and
    types, and that the tensors share a device of `arch`. torch's dispatcher would do nothing else
    with them: see `jitgen.ops.dispatcher`.

    Args:
        config: Config that the kernel was generated from.
        arch: Target of the device.
        session: Session whose kernels and settings serve the call.
        given: The arguments.
        tensors: Names of the tensors; all are on the device of the first one.
        numbers: Names of the numbers behind the tensors, without the number of CTAs.
        in_place: Which of its tensors a result may be, as `require_apart` has it.

    Raises:
        InputError: An argument is missing, or has another type or device.
    """
    names = (*tensors, *numbers, *([_COUNT] if arch.is_gpu else []))
    if len(given) != len(names):
        raise InputError(
            "arguments",
            f"must be {len(names)} for {config.name(arch)}: {', '.join(names)} (got {len(given)})",
        )
    found = dict(zip(names, given, strict=True))
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


def check(call: Call[Any, Any, Any], config: Config, arch: Arch, given: tuple[Any, ...]) -> None:
    """
    Require arguments of an entry that its public call would take for `config`, where they have the
    names that they have there.

    Raises:
        InputError: One is wrong; the message says which, what is required, and what came.
    """
    session = current.get()
    names = call.entry_tensors(config)
    found = read(config, arch, session, given, names, in_place=call.in_place)
    judge(call, config, call.arguments(**found), session)


def judge(call: Call[Any, Any, Any], config: Config, args: Any, session: Session) -> Any:
    """
    Let the rules of a public call judge arguments of an entry of `config`; return what follows from
    them.

    Raises:
        InputError: One is wrong, or is for another config, or there is nothing to do.
    """
    valid = call.validate(args, session)
    call.require_fit(config, args, valid)
    require_rows(call.rows_of or call.like, call.rows(args, valid))
    call.check_entry(args, valid)
    call.check_values(args, valid)
    return valid


def require_rows(name: str, count: int) -> None:
    """Require something to do: public calls launch nothing for no rows, and no kernel is for it."""
    if not count:
        raise InputError(name, "must have at least one row: nothing is launched for none")


def require_scales(
    name: str, scale: Tensor, form: ScaleFormat, shape: tuple[int, ...], *, of_result: bool = True
) -> None:
    """
    Require scales of `form` as kernels read and write them; atoms may be in more blocks.

    Args:
        name: What they are called.
        scale: They.
        form: Their format.
        shape: What they must have, or more blocks.
        of_result: Whether a kernel writes them: then other orders are no more copied than read.
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
