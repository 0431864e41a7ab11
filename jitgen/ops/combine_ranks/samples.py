# SPDX-License-Identifier: Apache-2.0
"""
Sample calls of `combine_ranks` that test a kernel, with their right results: one device plays all
ranks, as in the samples of `dispatch`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import MOST_RANKS
from jitgen.config.operation import Excuse
from jitgen.ops.combine.reference import combine as of_tokens_here
from jitgen.ops.combine_ranks import reference
from jitgen.ops.dispatch import reference as of_dispatch
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch import samples as of_tokens
from jitgen.ops.dispatch.samples import COLUMNS, RANKS, ROOM, ROUND, VECTOR, link_of, require_few
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.sizes import AnySizes
from jitgen.ops.solved import Output, Solved, further_than, untouched
from jitgen.support.frozen import frozen

TOP_K = 9
"""Places of a token: more than a thread loads at once."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        ranks: Number of ranks.
        room: Number of tokens of each rank.
        n: Columns of a token.
        top_k: Places of a token.
    """

    numbers = (RANKS, ROOM, COLUMNS._replace(letters="N"))
    words = "{ranks} ranks, {room} tokens of each, N {n}"

    ranks: int
    room: int
    n: int
    top_k: int = TOP_K
    num_sms: int = 1

    @classmethod
    def of(cls, config: CombineRanksConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more vectors than the threads of a CTA take at once, and
        fewer; and tokens that have no places, for which compilers write code of their own.
        """
        once = config.tiling.threads
        many = cls(ranks=3, room=3, n=VECTOR * (once // 3 + 3))
        if config.by_flags:  # see the samples of dispatch
            many = replace(many, ranks=2)
        few = replace(many, ranks=2, n=2 * VECTOR)
        return many, few, replace(few, top_k=0)

    @classmethod
    def edges(cls, config: CombineRanksConfig, arch: Arch) -> tuple[Self, ...]:
        ranks, room, columns = cls.numbers
        once = config.tiling.threads
        sizes = in_pairs(around(ranks, MOST_RANKS), around(room), around(columns, once))
        most = 2 if config.by_flags else MOST_RANKS
        return tuple(cls(ranks=min(r, most), room=t, n=n) for r, t, n in sizes)

    @classmethod
    def of_numbers(cls, config: CombineRanksConfig, *numbers: int) -> Self:
        ranks, room, n = numbers
        require_few(config, ranks)
        return cls(ranks=ranks, room=room, n=n)


def unreachable(config: CombineRanksConfig) -> tuple[Excuse, ...]:
    """
    Return the branches that no sample reaches: those that samples of `dispatch` do not reach, and
    the branch for tokens without a place.
    """
    found = of_tokens.unreachable(config)
    if not config.of_experts:
        return found
    return (*found, Excuse(condition="column == 0", reason="a token has one place or more"))


def tile(config: CombineRanksConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return 1, VECTOR * config.tiling.threads


def make(
    config: CombineRanksConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    This rank is the last one, and has one token less than there is room for, but at least one. It
    sends the same rows to all others, because here they share one inbox.
    """
    if config.of_experts:
        return _of_experts(config, sizes, is_exact=is_exact, seed=seed, device=device)
    chance = torch.Generator(device).manual_seed(seed)
    rows = (sizes.room, sizes.n)

    def values(*shape: int) -> torch.Tensor:
        if is_exact:
            return torch.randint(-8, 9, shape, generator=chance, device=device).bfloat16()
        return torch.randn(shape, generator=chance, device=device).bfloat16()

    tokens, others = max(1, sizes.room - 1), [values(*rows) for _ in range(sizes.ranks - 1)]
    shape = (2, sizes.room, sizes.top_k)
    pairs = torch.arange(prod(shape), device=device)
    y = values(len(pairs) + 1, sizes.n)
    nowhere = torch.randint(-1, 4, shape, generator=chance, device=device)  # -1, or beyond y
    places = pairs.view(shape).where(nowhere > 0, nowhere * len(y) + nowhere.clamp(max=0)).int()
    # Powers of two, so that products are exact: what is sent is compared bit by bit.
    powers = torch.exp2(torch.randint(-2, 1, shape, generator=chance, device=device).float())
    sent, own = (of_tokens_here(y, *each) for each in zip(places, powers, strict=True))
    inverse, weights = (
        torch.cat([of_both[0]] * (sizes.ranks - 1) + [of_both[1]]) for of_both in (places, powers)
    )
    travelling = torch.stack([of_dispatch.words(each) for each in (*others, sent)])
    if config.by_flags:
        wanted = of_dispatch.flagged(travelling, ROUND)
    else:
        wanted = of_dispatch.tagged(travelling.view(-1, 2), ROUND).view(sizes.ranks, -1, 4)
    state = rounds.new_state(sizes.ranks - 1, 1000, device, can_mask=config.can_mask)
    state[rounds.DISPATCHED] = ROUND
    link = link_of(wanted, state, can_mask=config.can_mask)
    extra = {}
    if config.has_shared:
        extra["shared"] = values(tokens, sizes.n)
    if config.is_weighted:
        powers = torch.randint(-2, 1, (tokens,), generator=chance, device=device)
        extra["shared_weights"] = torch.exp2(powers.float()) * (1.0 if is_exact else 0.7)
    parts = [each[:tokens] for each in (*others, own)]
    expected = reference.combine_ranks(parts, **extra)
    sizes_of = {name: each.abs() for name, each in extra.items()}
    most = reference.combine_ranks([each.abs() for each in parts], **sizes_of)
    tensors = (y, inverse, weights, *link.tensors, *extra.values())
    return _solved(tensors, link, (expected, wanted), most, is_exact=is_exact)


def _of_experts(
    config: CombineRanksConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int,
    device: str,
) -> Solved:
    """
    Return a call in which rows of experts travel.

    This rank is the last one, and has one token less than there is room for, but at least one. The
    expert of a place is on any rank or on none. This rank sends the same rows to all others,
    because here they share one inbox.
    """
    ranks, room, n, top_k = sizes.ranks, sizes.room, sizes.n, sizes.top_k
    chance = torch.Generator(device).manual_seed(seed)
    tokens, rank = max(1, room - 1), ranks - 1

    def values(*shape: int) -> Tensor:
        if is_exact:
            return torch.randint(-8, 9, shape, generator=chance, device=device).bfloat16()
        return torch.randn(shape, generator=chance, device=device).bfloat16()

    def whole(least: int, most: int, *shape: int) -> Tensor:
        return torch.randint(least, most, shape, generator=chance, device=device)

    homes = whole(-1, ranks, room, top_k)
    rows = values(room, top_k, n)
    y = torch.cat([rows.view(-1, n), values(2, n)])
    number = torch.arange(room * top_k, device=device).view(room, top_k)
    sent = number.where(whole(0, 2, room, top_k) > 0, len(y))  # what y has not counts as none
    own = number.where(homes == rank, -1)
    inverse = torch.cat([sent] * rank + [own]).int()
    powers = whole(-2, 1, ranks * room, top_k)
    weights = torch.exp2(powers.float()) * (1.0 if is_exact else 0.7)
    mine = weights[rank * room :][:tokens]
    parts = [*(_travelling(rows, homes == each) for each in range(rank))]
    wanted = torch.stack([*parts, _travelling(rows, sent < len(y))])
    state = rounds.new_state(rank, 1000, device)
    state[rounds.DISPATCHED] = ROUND
    link = link_of(wanted, state, can_mask=False)
    extra = {}
    if config.has_shared:
        extra["shared"] = values(tokens, n)
    if config.is_weighted:
        powers = whole(-2, 1, tokens)
        extra["shared_weights"] = torch.exp2(powers.float()) * (1.0 if is_exact else 0.7)
    has_row = homes[:tokens] >= 0
    expected = reference.combine_experts(rows[:tokens], has_row, mine, **extra)
    sizes_of = {name: each.abs() for name, each in extra.items()}
    most = reference.combine_experts(rows[:tokens].abs(), has_row, mine, **sizes_of)
    tensors = (y, inverse, weights, *link.tensors, *extra.values())
    return _solved(tensors, link, (expected, wanted), most, is_exact=is_exact)


def _solved(
    tensors: tuple[Tensor, ...],
    link: rounds.Link,
    expected: tuple[Tensor, Tensor],
    most: Tensor,
    *,
    is_exact: bool,
) -> Solved:
    """
    Return the call with these arguments, and its expected results.

    Args:
        tensors: All arguments but out.
        link: The connection of the rank.
        expected: The right sums, and the right content of the inbox.
        most: The sums over absolute values, which bounds of rounding errors are relative to.
        is_exact: Whether every sum is exact.
    """
    sums, inbox = expected
    allowed = 0.0 if is_exact else sums.abs().float() * 2.0**-7 + most.float() * 2.0**-20
    out = untouched(torch.empty_like(sums))
    now = torch.full_like(link.state[:1], ROUND)
    return Solved(
        tensors=(*tensors, out),
        arguments={},
        is_exact=is_exact,
        outputs=(
            Output(name="out", found=out, expected=sums, differ=further_than(allowed)),
            Output(name="inbox", found=link.inbox, expected=inbox),
            Output(name="state", found=link.state[1:2], expected=now),
        ),
    )


def _travelling(rows: Tensor, is_sent: Tensor) -> Tensor:
    """
    Return the part of an inbox that one rank writes: for each token a mask of the places that are
    sent; then the vectors of all (room, top_k, n) `rows`, -1 for those that are not sent.
    """
    n = rows.shape[2]
    bits = (is_sent.int() << torch.arange(is_sent.shape[1], device=rows.device)).sum(1)
    heads = torch.stack([bits, torch.zeros_like(bits)], 1).int()
    vectors = of_dispatch.tagged(of_dispatch.words(rows.view(-1, n)), ROUND)
    is_vector = is_sent.view(-1, 1).expand(-1, n // VECTOR).reshape(-1, 1)
    absent = torch.full_like(vectors, -1)
    return torch.cat([of_dispatch.tagged(heads, ROUND), vectors.where(is_vector, absent)])
