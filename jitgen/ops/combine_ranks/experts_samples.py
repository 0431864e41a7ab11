# SPDX-License-Identifier: Apache-2.0
"""
Sample calls of `combine_ranks` with rows of experts: one device stands for all ranks, as in the
samples of `dispatch`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.ops.combine_ranks import reference
from jitgen.ops.dispatch import reference as of_dispatch
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.samples import ROUND, VECTOR, link_of
from jitgen.ops.solved import Output, Solved, further_than, untouched

TOP_K = 5
"""Places of a token: more than a thread loads at once."""


def make(
    config: CombineRanksConfig,
    sizes: tuple[int, int, int],
    *,
    is_exact: bool,
    seed: int,
    device: str,
) -> Solved:
    """
    Return a call with (ranks, room, columns) of `sizes`.

    This rank is the last one, and has one token less than there is room for, but at least one. The
    expert of a place is on any rank or on none. This rank sends the same rows to all others,
    because here they share one inbox.
    """
    (ranks, room, n), chance = sizes, torch.Generator(device).manual_seed(seed)
    tokens, rank = max(1, room - 1), ranks - 1

    def values(*shape: int) -> Tensor:
        if is_exact:
            return torch.randint(-8, 9, shape, generator=chance, device=device).bfloat16()
        return torch.randn(shape, generator=chance, device=device).bfloat16()

    def whole(least: int, most: int, *shape: int) -> Tensor:
        return torch.randint(least, most, shape, generator=chance, device=device)

    homes = whole(-1, ranks, room, TOP_K)
    rows = values(room, TOP_K, n)
    y = torch.cat([rows.view(-1, n), values(2, n)])
    number = torch.arange(room * TOP_K, device=device).view(room, TOP_K)
    sent = number.where(whole(0, 2, room, TOP_K) > 0, len(y))  # what y has not counts as none
    own = number.where(homes == rank, -1)
    inverse = torch.cat([sent] * rank + [own]).int()
    powers = whole(-2, 1, tokens, TOP_K)
    weights = torch.exp2(powers.float()) * (1.0 if is_exact else 0.7)
    parts = [*(_travelling(rows, homes == each) for each in range(rank))]
    wanted = torch.stack([*parts, _travelling(rows, sent < len(y))])
    state = rounds.new_state(rank, 1000, device)
    state[rounds.DISPATCHED] = ROUND
    now = torch.full_like(state[:1], ROUND)
    link = link_of(wanted, state, can_mask=False)
    extra = {}
    if config.has_shared:
        extra["shared"] = values(tokens, n)
    if config.is_weighted:
        powers = whole(-2, 1, tokens)
        extra["shared_weights"] = torch.exp2(powers.float()) * (1.0 if is_exact else 0.7)
    has_row = homes[:tokens] >= 0
    expected = reference.combine_experts(rows[:tokens], has_row, weights, **extra)
    sizes_of = {name: each.abs() for name, each in extra.items()}
    most = reference.combine_experts(rows[:tokens].abs(), has_row, weights, **sizes_of)
    allowed = 0.0 if is_exact else expected.abs().float() * 2.0**-7 + most.float() * 2.0**-20
    out = untouched(torch.empty_like(expected))
    return Solved(
        tensors=(y, inverse, weights, *link.tensors, *extra.values(), out),
        arguments={},
        is_exact=is_exact,
        outputs=(
            Output(name="out", found=out, expected=expected, differ=further_than(allowed)),
            Output(name="inbox", found=link.inbox, expected=wanted),
            Output(name="state", found=state[1:2], expected=now),
        ),
    )


def _travelling(rows: Tensor, is_sent: Tensor) -> Tensor:
    """Return the part of an inbox of a rank that sends some of (room, TOP_K, n) rows."""
    n = rows.shape[2]
    bits = (is_sent.int() << torch.arange(TOP_K, device=rows.device)).sum(1)
    heads = torch.stack([bits, torch.zeros_like(bits)], 1).int()
    vectors = of_dispatch.tagged(of_dispatch.words(rows.view(-1, n)), ROUND)
    is_vector = is_sent.view(-1, 1).expand(-1, n // VECTOR).reshape(-1, 1)
    absent = torch.full_like(vectors, -1)
    return torch.cat([of_dispatch.tagged(heads, ROUND), vectors.where(is_vector, absent)])
