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


def new_state(rank: int, limit_ms: int, device: torch.device | str) -> Tensor:
    """Return the state of a rank that has done no round: (8,) int32."""
    words = [0 for _ in WORDS]
    words[RANK], words[LIMIT_MS] = rank, limit_ms
    return torch.tensor(words, dtype=torch.int32, device=device)


def late(state: Tensor) -> Late | None:
    """Return the wait that came to its limit, if one did; this waits for the device."""
    words = state.tolist()
    if not words[FAILED]:
        return None
    is_of_sums, source = divmod(words[FAILED] - 1, OF_SUMS)
    return Late("combine_ranks" if is_of_sums else "dispatch", source, words[FAILED_ROUND])


class Link(NamedTuple):
    """
    What a rank reaches its peers by.

    Attributes:
        inbox: (ranks, places, 4) int32, contiguous: what peers write, a place for each vector of
            each rank.
        peers: (ranks,) int64, addresses of the inboxes of all ranks, its own among them.
        state: (8,) int32, its rounds, for `dispatch` and `combine_ranks` one.
    """

    inbox: Tensor
    peers: Tensor
    state: Tensor

    @property
    def ranks(self) -> int:
        """Ranks."""
        return self.peers.shape[0]
