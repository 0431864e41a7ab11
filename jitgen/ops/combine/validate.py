# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `combine`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.combine import MOST_PLACES
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.tensors import AnyValidated, check_size, check_vectors, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen


class Arguments(NamedTuple):
    """The arguments of one call of `combine`, as the caller gave them."""

    y: Tensor
    inverse: Tensor
    topk_weights: Tensor
    shared: Tensor | None = None
    out: Tensor | None = None
    config: Config | Override | None = None
    shared_weights: Tensor | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        rows: Tokens.
        n: Columns.
        top_k: Places of a token.
    """

    op = "combine"

    rows: int
    n: int
    top_k: int


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    y, inverse = args.y, args.inverse
    device = device_of(Validated.op, "y", y, session)
    common.require("y", y, [torch.bfloat16], arch=device.arch)
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
    valid = Validated(device=device, rows=tokens, n=y.shape[-1], top_k=top_k)
    check_size(valid, "y")
    of_result = ((tokens, valid.n), "tokens by columns of y")
    for name in ("shared", "out"):
        if (tensor := getattr(args, name)) is not None:
            common.require(name, tensor, [torch.bfloat16], shape=of_result)
    if args.shared_weights is not None:
        if args.shared is None:
            raise InputError("shared_weights", "must be None without shared, which they are for")
        common.require(
            "shared_weights",
            args.shared_weights,
            [torch.float32],
            shape=((tokens,), "one for each token"),
            like=like,
            contiguous=0,
        )
    common.require_rows_apart(args.out)
    check_vectors(args, valid, ("y", "shared", "out"), has_memory=has_memory)
    require_differentiable(args._asdict())
    return valid


def require_differentiable(given: Mapping[str, object]) -> None:
    """
    Check that autograd needs no gradient of, or through, `out`.

    Args:
        given: Arguments of `combine` by their names.

    Raises:
        InputError: Autograd needs a gradient of `out`, or through it.
    """
    common.refuse_other_gradients(
        given,
        Validated.op,
        ("y", "topk_weights", "shared", "shared_weights"),
        ((given.get("out") is not None, *common.OUT_HAS_NONE),),
    )
