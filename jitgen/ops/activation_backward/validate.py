# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `activation_backward`: each rule has its own error."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Config, Layout
from jitgen.config.activation_backward import SUM_COLUMNS
from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.config.layouts import ARGUMENT
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.activation_quantize.numbers import require_numbers
from jitgen.ops.tensors import AnyValidated, Size, check_size, check_vectors, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules

Results = tuple[Tensor, Tensor, Tensor]
"""The results: dx, y and sums."""


class Arguments(NamedTuple):
    """The arguments of one call of `activation_backward`, as the caller gave them."""

    dy: Tensor
    x: Tensor
    weights: Tensor
    offs: Tensor | None = None
    m_indices: Tensor | None = None
    masked_m: Tensor | None = None
    activation: str = "swiglu"
    interleaved: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None
    gate_softcap: float | None = None
    up_softcap: float | None = None
    out: Results | None = None
    expected_m: Size | None = None
    config: Config | Override | None = None

    @property
    def numbers(self) -> tuple[float, ...]:
        """Run-time numbers of the activation, in the order in which a kernel takes them."""
        given = (getattr(self, name) for name in Activation(self.activation).numbers)
        return tuple(float(number) for number in given)


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        layout: How rows belong to groups.
        activation: Function of a gate and an up.
        groups: Number of groups; 1 for the contiguous layout, whose number is not known.
        rows: Rows of x; in the masked layout, of one group.
        n: Columns of y.
    """

    op = "activation_backward"

    layout: Layout
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
    dy, x = args.dy, args.x
    device = device_of(Validated.op, "dy", dy, session)
    layout, groups = common.layout_of(args.offs, args.m_indices, args.masked_m)
    is_masked, like = layout is Layout.MASKED, ("dy", dy.device)
    of = f"{'(G, ' if is_masked else '('}M, I) for {layout}"
    common.require("dy", dy, [torch.bfloat16], arch=device.arch, rank=(3 if is_masked else 2, of))
    if args.activation not in tuple(Activation):
        allowed = ", ".join(Activation)
        raise InputError("activation", f"must be one of {allowed} (got {args.activation!r})")
    activation = Activation(args.activation)
    _check_options(args, activation)
    rows, columns = tuple(dy.shape[:-1]), dy.shape[-1]
    if columns == 0:
        raise InputError("dy", "must have at least one column (got 0)")
    of_x = (*rows, activation.inputs * columns)
    why = f"rows of dy by {'twice ' * activation.is_gated}its columns"
    common.require("x", x, [torch.bfloat16], shape=(of_x, why), like=like)
    common.require(
        "weights",
        args.weights,
        [torch.float32],
        shape=(rows, "one for each row"),
        like=like,
        contiguous=-1,
    )
    common.require(ARGUMENT[layout], groups, rank=(1, "one number for each group or row"))
    if groups.shape[0] == 0 and layout is not Layout.CONTIGUOUS:
        raise InputError(ARGUMENT[layout], "must have at least one group: the group list is empty")
    length = groups.shape[0] if layout is Layout.RAGGED else dy.shape[0]
    common.check_groups(ARGUMENT[layout], groups, length, like)
    valid = Validated(
        device=device,
        layout=layout,
        activation=activation,
        groups=1 if layout is Layout.CONTIGUOUS else groups.shape[0],
        rows=dy.shape[-2],
        n=columns,
    )
    check_size(valid, "dy")
    check_vectors(args, valid, ("dy", "x"), has_memory=has_memory)
    if args.out is not None:
        _check_out(args, valid, has_memory=has_memory)
    common.refuse_gradients(common.tensors_of(args), Validated.op)
    return valid


def sums_of(columns: int) -> int:
    """Return the number of sums of a row with this number of columns."""
    return -(-columns // SUM_COLUMNS)


def _check_options(args: Arguments, activation: Activation) -> None:
    if type(args.interleaved) is not bool:
        raise InputError("interleaved", f"must be True or False (got {args.interleaved!r})")
    if args.interleaved and not activation.is_gated:
        raise InputError("interleaved", f"must be False for {activation}, which has no gate")
    require_numbers(activation, {name: getattr(args, name) for name in NUMBERS})
    common.require_count("expected_m", args.expected_m)


def _check_out(args: Arguments, valid: Validated, *, has_memory: bool) -> None:
    """Require dense tensors of the right shapes and types to write results to."""
    out = args.out
    if not isinstance(out, tuple) or len(out) != 3:
        raise InputError("out", "must be three tensors: dx, y and sums")
    rows, alignment = tuple(args.dy.shape[:-1]), rules(valid.arch, valid.op).alignment
    for place, (shape, dtype) in enumerate(
        (
            (tuple(args.x.shape), torch.bfloat16),
            (tuple(args.dy.shape), torch.bfloat16),
            ((*rows, sums_of(valid.n)), torch.float32),
        )
    ):
        name, tensor = f"out[{place}]", out[place]
        common.require(name, tensor, [dtype], shape=(shape, "as it is computed"))
        if not tensor.is_contiguous():
            raise InputError(name, f"must be contiguous (got strides {tensor.stride()})")
        of_vectors = alignment if dtype is torch.bfloat16 else 1
        like = ("dy", args.dy.device)
        common.check_memory([(name, tensor, of_vectors)], like, has_memory=has_memory)
