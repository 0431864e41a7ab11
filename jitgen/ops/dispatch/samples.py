# SPDX-License-Identifier: Apache-2.0
"""
Sample calls of `dispatch` that test a kernel, with their right results.

One device plays all ranks. The vectors of its peers are in its inbox from the start, and all
addresses of inboxes are that of its own inbox, in which the places of its own vectors are free.
`tests/compile/ranks.py` runs kernels on several devices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch

from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import MOST_PLACES, MOST_RANKS, DispatchConfig
from jitgen.config.format import Format
from jitgen.config.operation import Excuse
from jitgen.errors import ConfigError
from jitgen.ops.dispatch import reference, rounds
from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.quantize.samples import drawn
from jitgen.ops.route.reference import sort_pairs
from jitgen.ops.route.results import Sorting
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import Output, Solved, untouched
from jitgen.support.frozen import frozen

VECTOR = 4
_QUANTISED = 16  # of which columns of quantised tokens are a multiple
ROUND = 7
_NOTE = 4  # words
_NAMES = ("out_x", "out_ids", "out_weights", "out_scale")
_FIRST = 40  # of the local experts where pairs are sorted

RANKS = Number("R", "ranks", least=2, most=MOST_RANKS)
ROOM = Number("T", "tokens of a rank")
COLUMNS = Number("K", "columns", multiple=VECTOR)


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        ranks: Number of ranks.
        room: Number of tokens of each rank.
        k: Columns of a token.
        top_k: Number of experts of a token.
    """

    numbers = (RANKS, ROOM, COLUMNS, Number("TOP", "experts of a token", most=MOST_PLACES))
    words = "{ranks} ranks, {room} tokens of each, K {k}, top {top_k}"

    ranks: int
    room: int
    k: int
    top_k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: DispatchConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more vectors than the threads of a CTA take at once, and
        fewer. Of quantised tokens, also one rank alone.
        """
        once = config.tiling.threads
        if config.format is not Format.NONE:  # several parts of a row, the last one with a tail
            many = cls(ranks=3, room=3, k=8 * once + 5 * _QUANTISED, top_k=3)
            one = replace(many, ranks=1, k=_QUANTISED)  # which has a branch of its own
            every = many, one, replace(many, ranks=2, k=_QUANTISED, top_k=1)
            return tuple(each.few(config) for each in every)
        many = cls(ranks=3, room=3, k=VECTOR * (once // 6 + 3), top_k=3)
        return many.few(config), replace(many, ranks=2, k=2 * VECTOR, top_k=1)

    def few(self, config: DispatchConfig) -> Self:
        """
        Return the sizes with at most 2 ranks if there are flags: all peers have one inbox here, in
        which plain stores to several of them are a race. If pairs are sorted, with no more tokens
        than a CTA has threads for.
        """
        if config.sorts:
            most = config.tiling.threads // (self.ranks * self.top_k)
            return replace(self, room=max(1, min(self.room, most)))
        return replace(self, ranks=min(self.ranks, 2)) if config.by_flags else self

    @classmethod
    def edges(cls, config: DispatchConfig, arch: Arch) -> tuple[Self, ...]:
        ranks, room, columns, places = cls.numbers
        once = config.tiling.threads
        if config.format is not Format.NONE:
            ranks, columns = ranks._replace(least=1), columns._replace(multiple=_QUANTISED)
        sizes = in_pairs(
            around(ranks, MOST_RANKS), around(room), around(columns, once), around(places, 32)
        )
        every = (cls(ranks=r, room=t, k=k, top_k=top) for r, t, k, top in sizes)
        return tuple(each.few(config) for each in every)

    @classmethod
    def of_numbers(cls, config: DispatchConfig, *numbers: int) -> Self:
        ranks, room, k, top_k = numbers
        require_few(config, ranks)
        found = cls(ranks=ranks, room=room, k=k, top_k=top_k)
        if found.few(config) != found:
            raise ConfigError(
                f"problem has {ranks * room * top_k} pairs of tokens and experts, but CTAs of the "
                f"kernel sort at most {config.tiling.threads}"
            )
        return found


def require_few(config: DispatchConfig | CombineRanksConfig, ranks: int) -> None:
    """Require at most 2 ranks if there are flags, as `Sizes.few` says."""
    if config.by_flags and ranks > 2:
        raise ConfigError(
            f"problem has {ranks} ranks, but one device can play at most 2 for kernels with flags"
        )


def unreachable(_config: DispatchConfig | CombineRanksConfig) -> tuple[Excuse, ...]:
    """
    Return the branches that no sample reaches: those of waits, because all vectors are there from
    the start.
    """
    reason = "what peers send is in the inbox before the kernel begins"
    return (Excuse(condition="is_waiting", reason=reason, function="is_over"),)


def tile(config: DispatchConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return 1, VECTOR * config.tiling.threads


def make(
    config: DispatchConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call with `sizes`, the same for the same `seed` on the same `device`.

    This rank is the last one, and has one token less than there is room for. Tokens have random
    bits.
    """
    chance = torch.Generator(device).manual_seed(seed)
    every = [_tokens(sizes, sizes.room, chance, device, config) for _ in range(sizes.ranks - 1)]
    own = _tokens(sizes, sizes.room - 1, chance, device, config)
    wanted = reference.dispatch([*every, own], sizes.room, config.format)
    sent = reference.vectors(wanted)
    travelling = reference.tagged(sent, ROUND).view(sizes.ranks, -1, 4)
    if config.by_flags:
        travelling = reference.flagged(sent.view(sizes.ranks, -1, 2), ROUND)
    state = rounds.new_state(sizes.ranks - 1, 1000, device, can_mask=config.can_mask)
    state[rounds.COMBINED] = ROUND - 1
    now = torch.full_like(state[:1], ROUND)
    link = link_of(travelling, state, can_mask=config.can_mask)
    if sizes.ranks == 1:  # which sends nothing
        travelling = link.inbox.clone()
    names, numbers = [*_NAMES[: len(wanted.tensors)]], list[int]()
    if config.sorts:
        local = config.tiling.threads - 1
        order = sort_pairs(wanted.topk_ids, experts=300, first_expert=_FIRST, local_experts=local)
        wanted = wanted._replace(order=order)
        names, numbers = [*names, *Sorting._fields], [_FIRST]
    if config.leaves:  # its own, too
        travelling = reference.tagged(sent, ROUND).view(sizes.ranks, -1, 4)
        names, wanted = names[1:], wanted._replace(link=link)
    found = tuple(untouched(torch.empty_like(each)) for each in wanted.tensors)
    return Solved(
        tensors=(*own[:3], *link.tensors, *found, *numbers),
        arguments={},
        is_exact=is_exact,
        outputs=(
            *(
                Output(name=name, found=mine, expected=each)
                for name, mine, each in zip(names, found, wanted.tensors, strict=True)
            ),
            Output(name="inbox", found=link.inbox, expected=travelling),
            Output(name="state", found=state[:1], expected=now),
        ),
    )


def link_of(travelling: torch.Tensor, state: torch.Tensor, *, can_mask: bool) -> Link:
    """
    Return a link of the last rank in which every peer is this rank itself. Its own vectors are not
    in the inbox yet; if ranks can be masked, the notes lie after the inbox.
    """
    ranks, length = len(travelling), travelling.numel()
    memory = travelling.new_zeros(length + _NOTE * ranks)
    inbox = memory[:length].view(travelling.shape)
    inbox[:-1], inbox[-1] = travelling[:-1], -1
    peers = torch.full((ranks,), inbox.data_ptr(), dtype=torch.int64, device=inbox.device)
    notes = peers + inbox.element_size() * length if can_mask else None
    return Link(inbox, peers, state, notes)


def _tokens(
    sizes: Sizes, count: int, chance: torch.Generator, device: str, config: DispatchConfig
) -> Tokens:
    """
    Return `count` random tokens with their experts and weights: any bits, or finite numbers if they
    are quantised, because a NaN in an inbox may have either sign.
    """
    bits = torch.randint(-(2**15), 2**15, (count, sizes.k), generator=chance, device=device)
    x = bits.short().view(torch.bfloat16)
    if config.format is not Format.NONE:
        x = drawn(chance, (count,), sizes.k, Format.NVFP4, is_exact=False)
    shape = (count, sizes.top_k)
    ids = torch.randint(-1, 300, shape, generator=chance, device=device)
    weights = torch.rand(shape, generator=chance, device=device)
    return Tokens(x, ids.int(), weights)
