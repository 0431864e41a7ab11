# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `jitgen.quantize`, and decides which calls a kernel serves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config, Layout
from jitgen.config.format import IN_ATOMS, Format
from jitgen.config.quantize import QuantizeProblem, Rounding
from jitgen.errors import InputError
from jitgen.formats import e2m1, find_format, mx32
from jitgen.formats.protocol import Rows
from jitgen.ops import tensors as common
from jitgen.ops.tensors import AnyValidated, groups_of
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules, size_refusal, target

Result = tuple[Tensor, Tensor]

COLUMNS_OF_LOAD = 8
"""Strides of x are a multiple of this, in elements: 16 bytes."""


class Arguments(NamedTuple):
    """
    The arguments of a call.

    Attributes:
        x: The tensor that is quantised.
        format: Format of the result: the name of the function, an argument only in graphs.
        offs: (G,) int32, for ragged rows.
        masked_m: (G,) int32, for masked ones.
        global_scale: (1,) or (G,) float32, for NVFP4.
        rounding: Rounding of scales that are powers of two.
        out: Where results go, a tuple in the order in which they are returned: q and scale.
        config: The kernel to use; None: the one that the selector chooses.
    """

    x: Tensor
    format: str
    offs: Tensor | None = None
    masked_m: Tensor | None = None
    global_scale: Tensor | None = None
    rounding: str = "up"
    out: Result | None = None
    config: Config | Override | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes, types and target of a call that a kernel serves.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups, or of matrices.
        rows: Rows of x.
    """

    op = "quantize"

    layout: Layout
    groups: int
    rows: int


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated | None:
    """
    Check the arguments; return sizes, types and target. None if torch's operations serve the call,
    or the tensors are those of a tracer.

    Raises:
        InputError: An argument is wrong.
    """
    form = format_of(args.format)
    check(form, args.x, args.offs, args.masked_m, args.rounding)
    if args.out is not None:
        check_out(args.out, form, args.x, args.offs)
    device = server(args, session) if has_memory else None
    if device is None:
        return None
    groups, rows = problem_of(args).groups, args.x.shape[-2]
    return Validated(device=device, layout=layout_of(args), groups=groups, rows=rows)


def format_of(name: str) -> Format:
    """
    Return the format called `name`.

    Raises:
        InputError: There is no format of this name.
    """
    if name not in IN_ATOMS:
        raise InputError("format", f"must be one of {', '.join(IN_ATOMS)} (got {name!r})")
    return Format(name)


def layout_of(args: Arguments) -> Layout:
    """Return how rows belong to groups."""
    if args.offs is not None:
        return Layout.RAGGED
    return Layout.CONTIGUOUS if args.masked_m is None else Layout.MASKED


def shapes_of(
    form: Format, x: Tensor, offs: Tensor | None
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Return shape and type of q and of its scales; sizes of a tracer's `x` may be symbols."""
    *front, size_k = x.shape
    rows = Rows(tuple(front), 0 if offs is None else offs.shape[0])
    of_scales = find_format(form.scales)
    is_packed = form is not Format.MXFP8
    q = (*front, size_k // 2 if is_packed else size_k)
    return (
        (q, torch.uint8 if is_packed else torch.float8_e4m3fn),
        (of_scales.a_shape(rows, size_k), of_scales.dtype),
    )


def problem_of(args: Arguments) -> QuantizeProblem:
    """
    Return the problem that the selector gets: groups share ragged rows, and masked matrices are
    full.
    """
    x, groups = args.x, groups_of(args)
    count = (x.shape[0] if x.dim() == 3 else 1) if groups is None else groups.shape[0]
    rows = x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[1]
    return QuantizeProblem(
        layout=layout_of(args),
        groups=max(1, count),
        m=rows,
        k=x.shape[-1],
        format=Format(args.format),
        rounding=Rounding(args.rounding),
    )


def server(args: Arguments, session: Session) -> Device | None:
    """
    Return the GPU whose kernel serves a call; None if torch's operations serve it.

    torch's operations serve calls on a CPU, of types other than bf16, of sizes for which the GPU
    has no kernel, and of an x that is empty or whose rows are not aligned to 16 bytes.
    """
    x = args.x
    try:
        device = devices.find(x.device, session, "x")
    except InputError:  # nothing of jitgen's runs there, but torch does
        return None
    if not device.arch.is_gpu or "quantize" not in target(device.arch).operations:
        return None
    if x.dtype is not torch.bfloat16 or not x.numel() or not _is_readable(x, device.arch):
        return None
    problem = problem_of(args)
    if size_refusal(problem, device.arch) or not rules(device.arch, problem.op).candidates(problem):
        return None
    return device


def _is_readable(x: Tensor, arch: Arch) -> bool:
    """Say whether vectors can be loaded from `x`."""
    sides = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    in_rows = x.stride(-1) == 1 and all(
        length == 1 or stride % COLUMNS_OF_LOAD == 0 for length, stride in sides
    )
    return in_rows and x.data_ptr() % rules(arch, "quantize").alignment == 0


def check_out(out: object, form: Format, x: Tensor, offs: Tensor | None) -> None:
    """
    Require tensors for q and scale with the shapes and types of new ones.

    Raises:
        InputError: `out` has other shapes, types or strides, is on another device, or needs a
            gradient.
    """
    if not isinstance(out, tuple) or len(out) != 2:
        raise InputError("out", f"must be two tensors, for q and scale (got {type(out).__name__})")
    for name, tensor, (shape, dtype) in zip(
        ("out[0]", "out[1]"), out, shapes_of(form, x, offs), strict=True
    ):
        common.require(
            name, tensor, [dtype], shape=(shape, "which results have"), like=("x", x.device)
        )
        if not tensor.is_contiguous():
            raise InputError(name, f"must be contiguous (got strides {tensor.stride()})")
    common.refuse_gradients({"out[0]": out[0], "out[1]": out[1]}, "jitgen.quantize")


def check(
    form: Format, x: Tensor, offs: Tensor | None, masked_m: Tensor | None, rounding: str
) -> None:
    """
    Require arguments that both kernels and torch's operations take.

    Raises:
        InputError: An argument is wrong.
    """
    common.require("x", x)
    mx32.check(x, offs, rounding)
    if form is not Format.MXFP8:
        e2m1.check_even(x, "x")
    if masked_m is None:
        return
    if offs is not None or x.dim() != 3:
        raise InputError("masked_m", "is for x (G, M, K), without offs")
    common.require("masked_m", masked_m)
    common.check_groups("masked_m", masked_m, x.shape[0], ("x", x.device))
