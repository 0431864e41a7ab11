# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `dispatch`, in torch: ranks as lists, and vectors in an inbox."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jitgen.ops.dispatch.call import Tokens


def dispatch(ranks: Sequence[Tokens], room: int) -> Tokens:
    """
    Return the tokens that every rank receives: those of all ranks, `room` rows for each.

    Args:
        ranks: For each rank x, (T, H) bfloat16, topk_ids, (T, top_k) int32, and topk_weights, (T,
            top_k) float32, with T at most `room`.
        room: Rows of a rank.
    """
    return Tokens(
        torch.cat([_padded(each.x, room, 0.0) for each in ranks]),
        torch.cat([_padded(each.topk_ids, room, -1) for each in ranks]),
        torch.cat([_padded(each.topk_weights, room, 0.0) for each in ranks]),
    )


def _padded(tensor: Tensor, room: int, value: float) -> Tensor:
    rest = tensor.new_full((room - len(tensor), tensor.shape[1]), value)
    return torch.cat([tensor, rest])


def vectors(tokens: Tokens) -> Tensor:
    """
    Return tokens in the form in which they are sent, (T * (H / 4 + top_k), 2) int32: for each token
    the vectors of its row, of four columns each, then one vector for each expert with its weight.
    """
    pairs = torch.stack([tokens.topk_ids, tokens.topk_weights.view(torch.int32)], -1)
    rows = words(tokens.x).view(len(tokens.x), -1, 2)
    return torch.cat([rows, pairs], 1).reshape(-1, 2)


def words(x: Tensor) -> Tensor:
    """Return rows of bfloat16 as vectors of two words, (T * H / 4, 2) int32."""
    return x.contiguous().view(torch.int32).view(-1, 2)


def tagged(pairs: Tensor, number: int) -> Tensor:
    """Return vectors with the number of a round beside each word, as an inbox has them."""
    tag = torch.full_like(pairs, number)
    return torch.stack([pairs, tag], -1).view(-1, 4)
