# SPDX-License-Identifier: Apache-2.0
"""
What a rank knows of its rounds: one small tensor, which kernels read and write.

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
"""Words of the state of a rank that can mask others; behind `MASKED_AT` is one of each rank."""

MASKING_WORDS = 24

OF_SUMS = 16
"""What `combine_ranks` adds to the number of a late rank."""


class Late(NamedTuple):
    """
    A wait that came to its limit.

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
    A rank that this one neither sends to nor takes from any more.

    Attributes:
        source: Its number.
        step: The operation that waited for it.
        number: The round.
        was_told: Whether that rank had masked this one before.
    """

    source: int
    step: str
    number: int
    was_told: bool


def new_state(
    rank: int, limit_ms: int, device: torch.device | str, *, can_mask: bool = False
) -> Tensor:
    """Return the state of a rank that has done no round: (8,) int32; (24,) if it can mask."""
    words = [0] * (MASKING_WORDS if can_mask else len(WORDS))
    words[RANK], words[LIMIT_MS] = rank, limit_ms
    return torch.tensor(words, dtype=torch.int32, device=device)


def late(state: Tensor) -> Late | None:
    """Return the wait that came to its limit, if one did; this waits for the device."""
    words = state.tolist()
    if not words[FAILED]:
        return None
    is_of_sums, source = divmod(words[FAILED] - 1, OF_SUMS)
    return Late("combine_ranks" if is_of_sums else "dispatch", source, words[FAILED_ROUND])


def masked(state: Tensor) -> tuple[Masked, ...]:
    """Return the ranks that are masked; this waits for the device."""
    words = state.tolist()[MASKED_AT:]
    return tuple(
        Masked(source, "combine_ranks" if at & 2 else "dispatch", at >> 2, bool(at & 1))
        for source, at in enumerate(words)
        if at
    )


class Link(NamedTuple):
    """
    What a rank reaches its peers by.

    Attributes:
        inbox: (ranks, places, 4) int32, contiguous: what peers write, a place for each vector of
            each rank.
        peers: (ranks,) int64, addresses of the inboxes of all ranks, its own among them.
        state: (8,) int32, its rounds, for `dispatch` and `combine_ranks` one; (24,) with notes.
        notes: (ranks,) int64, addresses of ranks * 16 bytes of each rank, where the others note
            that they wait, or have masked it; None: a rank that is late is an error.
    """

    inbox: Tensor
    peers: Tensor
    state: Tensor
    notes: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that there are, as kernels take them."""
        return tuple(each for each in self if each is not None)

    @property
    def can_mask(self) -> bool:
        """Whether a rank that is late is masked."""
        return self.notes is not None

    @property
    def ranks(self) -> int:
        """Ranks."""
        return self.peers.shape[0]
