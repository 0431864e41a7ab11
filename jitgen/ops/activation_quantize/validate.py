# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `activation_quantize`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from jitgen.config import Config, Layout
from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.config.format import IN_ROWS, Format
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.protocol import TORCH, Rows, ScaleFormat
from jitgen.ops import tensors as common
from jitgen.ops.activation_quantize.numbers import require_group_numbers, require_numbers
from jitgen.ops.scaled import Scaled, check_out
from jitgen.ops.tensors import AnyValidated, Size, check_size, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules

Word = TypeVar("Word", bound=StrEnum)


class Arguments(NamedTuple):
    """The arguments of one call of `activation_quantize`, as the caller gave them."""

    x: Tensor
    offs: Tensor | None = None
    m_indices: Tensor | None = None
    masked_m: Tensor | None = None
    format: str = "block128"
    global_scale: Tensor | None = None
    activation: str = "swiglu"
    interleaved: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    power_of_two: bool = False
    out: Scaled | None = None
    expected_m: Size | None = None
    config: Config | Override | None = None
    swiglu_beta: float | None = None
    gate_softcap: float | None = None
    up_softcap: float | None = None
    group_numbers: Tensor | None = None

    @property
    def numbers(self) -> tuple[float, ...]:
        """
        Run-time numbers of the activation, in the order in which a kernel takes them; empty if each
        group has its own numbers.
        """
        if self.group_numbers is not None:
            return ()
        given = (getattr(self, name) for name in Activation(self.activation).numbers)
        return tuple(float(number) for number in given)


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        layout: How rows belong to groups.
        scale_granularity: How many results share one scale.
        activation: Function of a gate and an up.
        groups: Number of groups; 1 for the contiguous layout, whose number is not known.
        rows: Rows of x; in the masked layout, of one group.
        n: Columns of q.
    """

    op = "activation_quantize"

    layout: Layout
    scale_granularity: Format
    activation: Activation
    groups: int
    rows: int
    n: int


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    x = args.x
    device = device_of(Validated.op, "x", x, session)
    layout, groups = common.layout_of(args.offs, args.m_indices, args.masked_m)
    common.require("x", x, [torch.bfloat16], arch=device.arch)
    is_masked = layout is Layout.MASKED
    activation = _word("activation", (*Activation,), args.activation)
    of = f"{'(G, ' if is_masked else '('}M, {'2 I' if activation.is_gated else 'I'}) for {layout}"
    common.require("x", x, rank=(3 if is_masked else 2, of))
    columns = _columns(activation, x.shape[-1])
    common.require(ARGUMENT[layout], groups, rank=(1, "one number for each group or row"))
    if layout is Layout.RAGGED and groups.shape[0] == 0:
        raise InputError("offs", "must have at least one group: the group list is empty")
    if is_masked and x.shape[0] == 0:
        raise InputError("x", "must have at least one group: it has no matrix")
    length = groups.shape[0] if layout is Layout.RAGGED else x.shape[0]
    common.check_groups(ARGUMENT[layout], groups, length, ("x", x.device))
    scales = _word("format", IN_ROWS, args.format)
    _check_options(args, scales, activation)
    valid = Validated(
        device=device,
        layout=layout,
        scale_granularity=scales,
        activation=activation,
        groups=1 if layout is Layout.CONTIGUOUS else groups.shape[0],
        rows=x.shape[-2],
        n=columns,
    )
    check_size(valid, "x")
    _check_tensors(args, valid, has_memory=has_memory)
    require_differentiable(args._asdict())
    return valid


def require_differentiable(given: Mapping[str, object]) -> None:
    """
    Check that autograd needs no gradient except that of x, and this only for results that are not
    quantised, without `out` and without numbers of groups.

    Args:
        given: Arguments of `activation_quantize` by their names.

    Raises:
        InputError: Autograd needs another gradient; the message has advice.
    """
    is_quantised = given["format"] != Format.NONE
    common.refuse_other_gradients(
        common.flat(given),
        Validated.op,
        ("x",),
        (
            (given.get("out") is not None, *common.OUT_HAS_NONE),
            (is_quantised, "quantised results have none", "activate by format='none', "),
            (
                given.get("group_numbers") is not None,
                "activations with numbers of each group have none",
                "call it for each group with its numbers, ",
            ),
        ),
    )


def _columns(activation: Activation, given: int) -> int:
    """Return the number of columns of the result."""
    if activation.is_gated and (given % 2 or given == 0):
        raise InputError(
            "x", f"must have as many columns of gates as of ups, at least 1 of each (got {given})"
        )
    if given == 0:
        raise InputError("x", "must have at least 1 column (got 0)")
    return given // activation.inputs


def _check_options(args: Arguments, scales: Format, activation: Activation) -> None:
    for name in ("interleaved", "power_of_two"):
        if type(getattr(args, name)) is not bool:
            raise InputError(name, f"must be True or False (got {getattr(args, name)!r})")
    if args.interleaved and not activation.is_gated:
        raise InputError("interleaved", f"must be False for {activation}, which has no gate")
    if args.power_of_two and not scales.has_float_scales:
        raise InputError(
            "power_of_two", f"is for block128 and row, whose scales are found here (got {scales})"
        )
    given = {name: getattr(args, name) for name in NUMBERS}
    require_numbers(activation, given, per_group=args.group_numbers is not None)
    common.require_count("expected_m", args.expected_m)


def _check_tensors(args: Arguments, valid: Validated, *, has_memory: bool) -> None:
    """Check scale and out, and that memory is aligned for loads of vectors."""
    x, out, scale, scales = args.x, args.out, args.global_scale, valid.scale_granularity
    if (scale is not None) != (scales is Format.TENSOR):
        what = f"is required for {scales} (got None)"
        if scale is not None:
            what = f"belongs to tensor: leave it out with {scales}"
        raise InputError("global_scale", what)
    if scale is not None:
        common.require(
            "global_scale",
            scale,
            [torch.float32],
            shape=((1,), "for a scale of the whole tensor"),
            like=("x", x.device),
        )
    if args.group_numbers is not None:
        groups = None if valid.layout is Layout.CONTIGUOUS else valid.groups
        require_group_numbers(args.group_numbers, valid.activation, groups, ("x", x.device))
    like, rows = ("x", x.device), x.shape[:-1]
    if out is not None:
        form = form_of(scales)
        check_out(
            out,
            [TORCH[scales.q_dtype]],
            ((*rows, valid.n), f"rows of x by {'half ' * valid.activation.is_gated}its columns"),
            form,
            () if form is None else form.a_shape(Rows(tuple(rows)), valid.n),
            like,
            has_memory=has_memory,
        )
    alignment = rules(valid.arch, valid.op).alignment  # of 8 values of x, and of as many results
    of_out = alignment * TORCH[scales.q_dtype].itemsize // x.element_size()
    tensors = [("x", x, alignment), ("out[0]", None if out is None else out[0], of_out)]
    common.check_memory(tensors, like, has_memory=has_memory)


def form_of(scales: Format) -> ScaleFormat | None:
    """
    Return the format of the scales that a kernel computes, which is that of operand a of a GEMM.
    """
    return find_format(scales.scales) if scales.has_float_scales else None


def _word(name: str, allowed: tuple[Word, ...], value: object) -> Word:
    for each in allowed:
        if each == value:
            return each
    raise InputError(name, f"must be one of {', '.join(allowed)} (got {value!r})")
