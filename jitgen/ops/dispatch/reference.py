# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `dispatch`, in torch: ranks as lists, and vectors in an inbox."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jitgen.config.dispatch import scales_of
from jitgen.config.format import Format
from jitgen.formats.block128 import per_token_group
from jitgen.formats.row import per_row
from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.rounds import FLAGS

_CTAS = 3
"""CTAs of each peer but the last, which are more than this rank has."""


def dispatch(ranks: Sequence[Tokens], room: int, form: Format = Format.NONE) -> Tokens:
    """
    Return the tokens that every rank receives: those of all ranks, `room` rows for each.

    Args:
        ranks: For each rank x, (T, H) bfloat16, topk_ids, (T, top_k) int32, and topk_weights, (T,
            top_k) float32, with T at most `room`.
        room: Rows of a rank.
        form: Format in which they are sent.
    """
    every = Tokens(
        torch.cat([_padded(each.x, room, 0.0) for each in ranks]),
        torch.cat([_padded(each.topk_ids, room, -1) for each in ranks]),
        torch.cat([_padded(each.topk_weights, room, 0.0) for each in ranks]),
    )
    if form is Format.NONE:
        return every
    x, scale = quantised(every.x, form)
    return every._replace(x=x, scale=scale)


def quantised(x: Tensor, form: Format) -> tuple[Tensor, Tensor]:
    """Return rows in bfloat16 as they are sent in another format, and their scales."""
    if form is Format.ROW:
        return per_row(x)
    q, of_blocks = per_token_group(x)
    rows, blocks = of_blocks.shape
    scale = of_blocks.new_ones(rows, scales_of(x.shape[1], form))
    scale[:, :blocks] = of_blocks
    return q, scale


def _padded(tensor: Tensor, room: int, value: float) -> Tensor:
    rest = tensor.new_full((room - len(tensor), tensor.shape[1]), value)
    return torch.cat([tensor, rest])


def vectors(tokens: Tokens) -> Tensor:
    """
    Return tokens in the form in which they are sent, (T * length, 2) int32: for each token the
    vectors of its row, each with four columns or eight quantised ones, those of its scales, two in
    each, then one vector for each expert with its weight.
    """
    count, scale = len(tokens.x), tokens.scale
    pairs = torch.stack([tokens.topk_ids, tokens.topk_weights.view(torch.int32)], -1)
    parts = [words(tokens.x).view(count, -1, 2), pairs]
    if scale is not None:
        both = scale if scale.dim() > 1 else torch.stack([scale, torch.zeros_like(scale)], -1)
        parts.insert(1, words(both).view(count, -1, 2))
    return torch.cat(parts, 1).reshape(-1, 2)


def words(rows: Tensor) -> Tensor:
    """Return rows as vectors of two words, (vectors, 2) int32."""
    return rows.contiguous().view(torch.int32).view(-1, 2)


def flagged(pairs: Tensor, number: int) -> Tensor:
    """
    Return vectors of each rank, (ranks, vectors, 2) int32, as an inbox has them that is read by
    flags: (ranks, places, 4) int32. The last rank has one CTA, and each other rank has `_CTAS`; the
    flag of a CTA has the number of a round, and how many CTAs its rank has.
    """
    ranks, count = pairs.shape[:2]
    places = -(-(count + FLAGS) // 2)
    found = pairs.new_full((ranks, 2 * places, 2), -1)
    found[:, :count] = pairs
    flags = found.view(torch.int64)[..., 0]
    flags[:-1, -_CTAS:] = _CTAS << 32 | number
    flags[-1, -1] = 1 << 32 | number
    return found.view(ranks, places, 4)


def tagged(pairs: Tensor, number: int) -> Tensor:
    """Return vectors with the number of a round beside each word, as an inbox has them."""
    tag = torch.full_like(pairs, number)
    return torch.stack([pairs, tag], -1).view(-1, 4)
