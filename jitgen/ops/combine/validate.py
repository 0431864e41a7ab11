# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `combine`: every rule, each with one error."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch, Config
from jitgen.config.combine import MOST_PLACES
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules, size_refusal, target


class Arguments(NamedTuple):
    """The arguments of one `combine`, as the caller gave them; see there."""

    y: Tensor
    inverse: Tensor
    topk_weights: Tensor
    shared: Tensor | None = None
    out: Tensor | None = None
    config: Config | Override | None = None


@frozen
class Validated:
    """
    Sizes, types and target of a valid call; a tracer's sizes may be symbols.

    Attributes:
        device: Device that the call runs on.
        arch: Target of the device.
        rows: Tokens.
        n: Columns.
        top_k: Places of a token.
    """

    op: ClassVar[str] = "combine"
    device: Device
    arch: Arch
    rows: int
    n: int
    top_k: int


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call.

    Args:
        args: The arguments.
        session: Session whose kernels and settings serve the call.
        has_memory: Whether tensors have addresses; a tracer's have none.

    Raises:
        InputError: Something is wrong; the first rule that is broken, in the order of this
            function.
    """
    y, inverse = args.y, args.inverse
    common.require("y", y)
    device = devices.find(y.device, session, "y")
    arch = device.arch
    if Validated.op not in target(arch).operations:
        raise InputError("y", f"must be on a device with kernels of combine (got {arch})")
    common.require("y", y, [torch.bfloat16], arch=arch)
    if y.dim() not in (2, 3):
        shape = tuple(y.shape)
        raise InputError(
            "y", f"must have 2 or 3 dimensions, (M, N) or (G, M, N) (got shape {shape})"
        )
    if y.dim() == 3 and y.shape[0] > 1 and y.stride(0) != y.shape[1] * y.stride(1):
        raise InputError(
            "y", f"must have matrices that follow each other (got strides {y.stride()})"
        )
    if y.shape[-1] == 0:
        raise InputError("y", "must have at least one column (got 0)")
    like = ("y", y.device)
    pairs = (2, "(T, top_k)")
    common.require("inverse", inverse, [torch.int32], rank=pairs, like=like, contiguous=-1)
    tokens, top_k = inverse.shape
    if not 1 <= top_k <= MOST_PLACES:
        raise InputError("inverse", f"must have 1 to {MOST_PLACES} columns, top_k (got {top_k})")
    weights, of_pairs = args.topk_weights, (tuple(inverse.shape), "as inverse")
    common.require(
        "topk_weights", weights, [torch.float32], shape=of_pairs, like=like, contiguous=-1
    )
    valid = Validated(device=device, arch=arch, rows=tokens, n=y.shape[-1], top_k=top_k)
    if reason := size_refusal(valid, arch):
        raise InputError("y", reason)
    _check_rows(args, valid, has_memory=has_memory)
    common.refuse_gradients(common.tensors_of(args), Validated.op)
    return valid


def _check_rows(args: Arguments, valid: Validated, *, has_memory: bool) -> None:
    """Require shared and out to fit, and memory that vectors can be read from."""
    shape = ((valid.rows, valid.n), "tokens by columns of y")
    for name, tensor in (("shared", args.shared), ("out", args.out)):
        if tensor is not None:
            common.require(name, tensor, [torch.bfloat16], shape=shape)
    common.require_rows_apart(args.out)
    alignment = rules(valid.arch, valid.op).alignment
    tensors = [(name, getattr(args, name), alignment) for name in ("y", "shared", "out")]
    common.check_memory(tensors, ("y", args.y.device), has_memory=has_memory)
