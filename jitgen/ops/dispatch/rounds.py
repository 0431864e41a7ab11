# SPDX-License-Identifier: Apache-2.0
"""
The state of a rank's rounds: one small tensor, which kernels read and write.

`dispatch` and `combine_ranks` take turns. Each writes one of two numbers and reads the other, so
that no CTA reads what another CTA of its kernel writes, and no number comes from the host: a
captured graph may be replayed any number of times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DISPATCHED, COMBINED, RANK, LIMIT_MS, FAILED, FAILED_ROUND, MISSING, SENT = WORDS = range(8)
"""Words of the state: see templates/shared/rounds.py.jinja."""

MASKED, BEAT, HEARD, MASKED_AT = 8, 9, 10, 16
"""
Words of the state of a rank that can mask others; from `MASKED_AT` on, there is one word for each
rank.
"""

MASKING_WORDS = 24

OF_SUMS = 16
"""Number that `combine_ranks` adds to that of a late rank, to mark its own step."""


FLAGS = 128
"""Flags of a rank, one for each of its CTAs at most."""


class Late(NamedTuple):
    """
    A wait that reached its limit.

    Attributes:
        step: The operation that waited.
        source: The rank that did not send.
        number: The round.
    """

    step: str
    source: int
    number: int


class Masked(NamedTuple):
    """
    A masked rank: this rank no longer sends to it or receives from it.

    Attributes:
        source: The number of the masked rank.
        step: The operation that waited for it.
        number: The round, modulo 2**30.
        was_told: Whether that rank had masked this one before.
    """

    source: int
    step: str
    number: int
    was_told: bool


def new_state(
    rank: int, limit_ms: int, device: torch.device | str, *, can_mask: bool = False
) -> Tensor:
    """Return the state of a rank before its first round: (8,) int32; (24,) if it can mask ranks."""
    words = [0] * (MASKING_WORDS if can_mask else len(WORDS))
    words[RANK], words[LIMIT_MS] = rank, limit_ms
    return torch.tensor(words, dtype=torch.int32, device=device)


def late(state: Tensor) -> Late | None:
    """Return the wait that reached its limit, or None; this waits for the device."""
    words = state.tolist()
    if not words[FAILED]:
        return None
    is_of_sums, source = divmod(words[FAILED] - 1, OF_SUMS)
    return Late("combine_ranks" if is_of_sums else "dispatch", source, words[FAILED_ROUND])


def masked(state: Tensor) -> tuple[Masked, ...]:
    """Return the ranks that are masked; this waits for the device."""
    words = state.tolist()
    return tuple(
        Masked(source, "combine_ranks" if at & 2 else "dispatch", at >> 2 & 2**30 - 1, bool(at & 1))
        for source, at in enumerate(words[MASKED_AT:])
        if words[MASKED] >> source & 1
    )


class Link(NamedTuple):
    """
    The connection of a rank to its peers.

    Attributes:
        inbox: (ranks, places, 4) int32, contiguous: memory that peers write to, with a place for
            each vector of each rank.
        peers: (ranks,) int64, addresses of the inboxes of all ranks, its own among them.
        state: (8,) int32, the state of its rounds, which `dispatch` and `combine_ranks` share;
            (24,) with notes.
        notes: (ranks,) int64, for each rank the address of ranks * 16 bytes in which the others
            note that they are waiting, or that they have masked it; None: a late rank is an error.
        by_flags: Whether vectors lie in the inbox without the number of the round, two in each
            place, and the last `FLAGS` words of 8 bytes of each rank are flags of its CTAs: the
            number of the round, and in the upper half how many CTAs the rank's kernel has.
    """

    inbox: Tensor
    peers: Tensor
    state: Tensor
    notes: Tensor | None = None
    by_flags: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are not None, in the order in which kernels take them."""
        every = (self.inbox, self.peers, self.state, self.notes)
        return tuple(each for each in every if each is not None)

    @property
    def can_mask(self) -> bool:
        """Whether a rank that is late is masked, which means left out from then on."""
        return self.notes is not None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.peers.shape[0]
