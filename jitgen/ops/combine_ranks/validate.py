# SPDX-License-Identifier: Apache-2.0
"""Checks the tensors of `combine_ranks`: every rule, each with one error."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_link, check_rows


def check_sums(
    y: Tensor,
    link: Link,
    tokens: int,
    shared: Tensor | None,
    shared_weights: Tensor | None,
    out: Tensor | None,
) -> None:
    """Require sums, what this rank reaches its peers by, and rows of its own tokens."""
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
