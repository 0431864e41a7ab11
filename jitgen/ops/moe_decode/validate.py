# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `moe_decode`: each rule has its own error."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config.config import MAX_SIZE, SCALE_BLOCK
from jitgen.config.moe_decode import (
    MOST_EXPERTS,
    MOST_PAIRS,
    MOST_TOKENS,
    MoeDecodeConfig,
    MoeDecodeProblem,
)
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.dispatch.validate import check_tokens
from jitgen.ops.moe_decode.exchange import Exchange, rows_for

COLUMNS_OF_CHUNK = 512
"""Columns of tokens that a kernel has room for together."""

COLUMNS_OF_CTA = 64
"""Columns of the result that a CTA has sums for."""

_ALIGNMENT = 16


class Experts(NamedTuple):
    """
    Weights of experts, gates before ups, with a scale for each 128 x 128.

    Attributes:
        w13: (E, 2 I, H) float8_e4m3fn; I and H multiples of 128.
        w13_scale: (E, 2 I / 128, H / 128) float32.
        w2: (E, H, I) float8_e4m3fn.
        w2_scale: (E, H / 128, I / 128) float32.
    """

    w13: Tensor
    w13_scale: Tensor
    w2: Tensor
    w2_scale: Tensor


def check_layer(  # noqa: PLR0913, PLR0917  # each is one thing to say
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    experts: Experts,
    exchange: Exchange,
    first_expert: int,
    num_ctas: int,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    out: Tensor | None = None,
) -> MoeDecodeProblem:
    """
    Check the arguments of a layer of experts for few tokens, and the memory for the exchange;
    return the sizes.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    check_tokens(x, topk_ids, topk_weights)
    like = ("x", x.device)
    tokens, top_k = topk_ids.shape
    if tokens > MOST_TOKENS or tokens * top_k > MOST_PAIRS:
        raise InputError(
            "topk_ids",
            f"must be of at most {MOST_TOKENS} tokens and {MOST_PAIRS} pairs (got {tokens} x "
            f"{top_k}): jitgen.moe takes more",
        )
    problem = _check_weights(x, experts, top_k, like)
    most = COLUMNS_OF_CTA * num_ctas
    if problem.hidden > most:
        raise InputError(
            "x", f"must have at most {most} columns for {num_ctas} CTAs (got {problem.hidden})"
        )
    for name, rows in (("shared", shared), ("out", out)):
        if rows is not None:
            of_x = (tuple(x.shape), "as x")
            common.require(name, rows, [torch.bfloat16], shape=of_x, like=like, contiguous=-1)
    if shared_weights is not None:
        if shared is None:
            raise InputError("shared_weights", "must be None without shared, which they are for")
        of_tokens = ((tokens,), "one for each token")
        common.require(
            "shared_weights",
            shared_weights,
            [torch.float32],
            shape=of_tokens,
            like=like,
            contiguous=0,
        )
    if type(first_expert) is not int or not 0 <= first_expert < MAX_SIZE:
        raise InputError("first_expert", f"must be an expert's number (got {first_expert!r})")
    _check_exchange(exchange, problem, like)
    kind = {"has_shared": shared is not None, "is_weighted": shared_weights is not None}
    return replace(problem, **kind)


def require_room(config: MoeDecodeConfig, hidden: int) -> None:
    """Require a config with room for the columns of a token."""
    most = COLUMNS_OF_CHUNK * config.tiling.room
    if hidden > most:
        raise InputError("config", f"must have room for {hidden} columns of x (got one for {most})")


def _check_weights(
    x: Tensor, given: Experts, top_k: int, like: tuple[str, torch.device]
) -> MoeDecodeProblem:
    """
    Check that the weights of both products, and their scales, fit x and each other; return the
    sizes.
    """
    w13, w13_scale, w2, w2_scale = given
    hidden = x.shape[1]
    for name, each in (("w13", w13), ("w2", w2)):
        common.require(name, each, [torch.float8_e4m3fn], rank=(3, "(E, N, K)"), like=like)
    experts, _, inner = w2.shape
    if experts > MOST_EXPERTS:
        raise InputError("w2", f"must have at most {MOST_EXPERTS} experts (got {experts})")
    shapes = {"w13": (experts, 2 * inner, hidden), "w2": (experts, hidden, inner)}
    for name, weights, scale in (("w13", w13, w13_scale), ("w2", w2, w2_scale)):
        common.require(name, weights, shape=(shapes[name], "for x and w2"))
        blocks = tuple(-(-size // SCALE_BLOCK) for size in shapes[name][1:])
        common.require(
            f"{name}_scale",
            scale,
            [torch.float32],
            shape=((experts, *blocks), f"one for each 128 x 128 of {name}"),
            like=like,
            contiguous=-1,
        )
    common.check_memory([("w13", w13, _ALIGNMENT), ("w2", w2, _ALIGNMENT)], like, has_memory=True)
    return MoeDecodeProblem(
        m=len(x), experts=experts, top_k=top_k, hidden=hidden, intermediate=inner
    )


def _check_exchange(
    exchange: Exchange, problem: MoeDecodeProblem, like: tuple[str, torch.device]
) -> None:
    """Require memory in which the h of a call fits."""
    words, state = exchange
    common.require("exchange", words, [torch.int64], rank=(2, "(rows, I / 2)"), like=like)
    least = rows_for(problem.m, problem.top_k), problem.intermediate // 2
    if words.shape[0] < least[0] or words.shape[1] < least[1]:
        raise InputError("exchange", f"must be at least {least} (got {tuple(words.shape)})")
    common.check_memory([("exchange", words, _ALIGNMENT)], like, has_memory=True)
    common.require("state", state, [torch.int64], shape=((1,), "a number"), like=like)
