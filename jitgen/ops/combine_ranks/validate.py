# SPDX-License-Identifier: Apache-2.0
"""Checks the tensors of `combine_ranks`: each rule has its own error."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import MOST_PLACES
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_link, check_rows


def check_places(
    inverse: Tensor, topk_weights: Tensor, y: Tensor, link: Link, *, of_experts: bool
) -> int:
    """
    Check the places of the tokens of all ranks, and their weights; return the number of places in
    an inbox that a token takes.
    """
    like = ("y", y.device)
    if of_experts and link.can_mask:
        raise InputError(
            "of_experts", "must be False for a link with notes: sums alone can be masked"
        )
    if of_experts and link.by_flags:
        raise InputError("of_experts", "must be False for a link with flags, which are for sums")
    common.require(
        "inverse", inverse, [torch.int32], rank=(2, "(rows, top_k)"), like=like, contiguous=-1
    )
    top_k = inverse.shape[1]
    if not 1 <= top_k <= MOST_PLACES:
        raise InputError("inverse", f"must have 1 to {MOST_PLACES} places (got {top_k})")
    common.require(
        "topk_weights",
        topk_weights,
        [torch.float32],
        shape=(tuple(inverse.shape), "as inverse"),
        like=like,
        contiguous=-1,
    )
    vectors = y.shape[1] // 4
    return 1 + top_k * vectors if of_experts else vectors


def require_kind(config: CombineRanksConfig, *, of_experts: bool) -> None:
    """Require a config of the kind that the call needs: for rows of experts, or for sums."""
    if config.of_experts != of_experts:
        raise InputError("config", f"must have of_experts={of_experts}, as the call has")


def check_sums(
    y: Tensor,
    link: Link,
    tokens: int,
    shared: Tensor | None,
    shared_weights: Tensor | None,
    out: Tensor | None,
) -> None:
    """
    Check y, the connection of this rank to its peers, and the tensors for the rank's own tokens:
    shared, its weights and out.
    """
    common.require("y", y)
    like = ("y", y.device)
    check_rows("y", y, like)
    check_link(link, like)
    for name, rows in (("shared", shared), ("out", out)):
        if rows is not None:
            check_rows(name, rows, like)
            common.require(name, rows, shape=((tokens, y.shape[1]), "tokens by columns of y"))
    if shared_weights is None:
        return
    if shared is None:
        raise InputError("shared_weights", "must be None without shared, which they are for")
    common.require(
        "shared_weights",
        shared_weights,
        [torch.float32],
        shape=((tokens,), "one for each token"),
        like=like,
        contiguous=0,
    )
