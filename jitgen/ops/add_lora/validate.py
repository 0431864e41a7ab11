# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `add_lora`: each rule has its own error."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.add_lora import MOST_PARTS, RANKS
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.tensors import AnyValidated, check_size, check_vectors, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen


class Arguments(NamedTuple):
    """The arguments of one call of `add_lora`, as the caller gave them."""

    y: Tensor
    x: Tensor
    a: Tensor
    b: Tensor
    scales: Tensor
    adapter_ids: Tensor
    topk_ids: Tensor
    permutation: Tensor
    first_expert: int = 0
    by_row: bool = False
    out: Tensor | None = None
    config: Config | Override | None = None


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        rows: Rows of y.
        top_k: Rows of y for each token.
        n: Columns of y.
        k: Columns of x.
        rank: Columns of b.
        parts: Parts of y's columns.
        adapters: Number of adapters.
        experts: Number of experts.
        by_row: Whether x has a row for each row of y.
    """

    op = "add_lora"

    rows: int
    top_k: int
    n: int
    k: int
    rank: int
    parts: int
    adapters: int
    experts: int
    by_row: bool


def validate(args: Arguments, session: Session, *, has_memory: bool = True) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call, as `Call.validate` does.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    y, x, a = args.y, args.x, args.a
    device = device_of(Validated.op, "y", y, session)
    common.require("y", y, [torch.bfloat16], arch=device.arch, rank=(2, "(M, N)"))
    rows, columns = y.shape
    if columns == 0:
        raise InputError("y", "must have at least one column (got 0)")
    _check_pairs(args, rows)
    like = ("y", y.device)
    common.require("x", x, [torch.bfloat16], rank=(2, "(T, K), or (M, K) with by_row"))
    if args.by_row:
        wanted, why = rows, "a row for each of y's, as by_row says"
    else:
        wanted, why = args.topk_ids.shape[0], "a row for each token"
    common.require("x", x, shape=((wanted, x.shape[1]), why), like=like)
    if x.shape[1] == 0:
        raise InputError("x", "must have at least one column (got 0)")
    common.require("a", a, [torch.bfloat16], rank=(4, "(L, G, R, K)"))
    parts, rank = check_matrices(a, args.b, x.shape[1], columns)
    common.require(
        "scales",
        args.scales,
        [torch.float32],
        shape=((a.shape[0],), "one for each adapter"),
        like=like,
        contiguous=0,
    )
    valid = Validated(
        device=device,
        rows=rows,
        top_k=args.topk_ids.shape[1],
        n=columns,
        k=x.shape[1],
        rank=rank,
        parts=parts,
        adapters=a.shape[0],
        experts=a.shape[1],
        by_row=args.by_row,
    )
    check_size(valid, "x")
    if args.out is not None:
        common.require("out", args.out, [torch.bfloat16], shape=(tuple(y.shape), "as y has"))
        common.require_rows_apart(args.out)
    check_vectors(args, valid, ("y", "x", "a", "b", "out"), has_memory=has_memory)
    common.refuse_gradients(common.tensors_of(args), Validated.op)
    return valid


def check_matrices(
    a: Tensor, b: Tensor, size_k: int, size_n: int, names: tuple[str, str] = ("a", "b")
) -> tuple[int, int]:
    """
    Check the two matrices of adapters; return the number of parts of y's columns (1 or 2) and the
    rank.

    Args:
        a: (L, G, R, K) bfloat16.
        b: (L, G, N, rank).
        size_k: Columns K of x.
        size_n: Columns N of y.
        names: Names of the two arguments in errors.

    Raises:
        InputError: The matrices do not fit each other, or the sizes.
    """
    first, second = names
    adapters, experts, inner, _ = a.shape
    common.require(first, a, shape=((adapters, experts, inner, size_k), "K columns, as x has"))
    if not adapters or not experts:
        raise InputError(first, f"must have adapters and experts (got shape {tuple(a.shape)})")
    common.require(second, b, [torch.bfloat16], rank=(4, "(L, G, N, rank)"))
    rank = b.shape[3]
    wanted = (adapters, experts, size_n, rank)
    common.require(
        second,
        b,
        shape=(wanted, f"adapters, experts of {first}, columns of y"),
        like=(first, a.device),
    )
    if rank not in RANKS:
        allowed = ", ".join(map(str, RANKS))
        raise InputError(
            second,
            f"must have a rank of {allowed} in its last dimension (got {rank}): fill up rows of "
            f"{first} and columns of {second} with zeros",
        )
    if inner not in [parts * rank for parts in range(1, MOST_PARTS + 1)]:
        raise InputError(
            first,
            f"must have {rank} rows, the rank of {second}, or {2 * rank}, of gates and then of ups "
            f"(got {inner})",
        )
    parts = inner // rank
    if size_n % parts:
        raise InputError(
            first, f"must have {rank} rows where y has {size_n} columns, no two equal parts"
        )
    if b.numel() and (b.stride(3) != 1 or (size_n > 1 and b.stride(2) != rank)):
        raise InputError(
            second, f"must have contiguous matrices (got strides {b.stride()}): give a copy"
        )
    return parts, rank


def _check_pairs(args: Arguments, rows: int) -> None:
    """Check the tensors that give the adapter and the expert of each row."""
    like = ("y", args.y.device)
    int32 = [torch.int32]
    common.require(
        "topk_ids", args.topk_ids, int32, rank=(2, "(T, top_k)"), like=like, contiguous=-1
    )
    tokens, top_k = args.topk_ids.shape
    if not top_k:
        raise InputError("topk_ids", "must have at least one column (got 0)")
    common.require(
        "permutation",
        args.permutation,
        int32,
        shape=((rows,), "one for each row of y"),
        like=like,
        contiguous=0,
    )
    common.require(
        "adapter_ids",
        args.adapter_ids,
        int32,
        shape=((tokens,), "one for each token"),
        like=like,
        contiguous=0,
    )
    if type(args.by_row) is not bool:
        raise InputError("by_row", f"must be True or False (got {args.by_row!r})")
    first = args.first_expert
    if type(first) is not int or not 0 <= first < 2**31:
        raise InputError("first_expert", f"must be an integer of at least 0 (got {first!r})")
