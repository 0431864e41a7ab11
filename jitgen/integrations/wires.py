# SPDX-License-Identifier: Apache-2.0
"""The wires over which an engine's layers exchange tokens and sums between ranks."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup

from jitgen.parallel import Wire, connect
from jitgen.support.frozen import frozen

FEW_TOKENS = 256
"""
Largest number of tokens of each rank that are sent through windows. With more tokens the number of
bytes decides the time, and collectives are used.
"""


@frozen
class Wires:
    """
    Two wires of the same ranks.

    Attributes:
        few: The wire for few tokens of each rank.
        many: The wire for any number of tokens.
    """

    few: Wire
    many: Wire

    def of_room(self, room: int) -> Wire:
        """Return the wire for `room` tokens of each rank."""
        return self.few if room <= self.few.max_tokens else self.many


_wires: dict[tuple[str, int, int], Wires] = {}
"""
The wires by groups and sizes. Layers run one after the other, so those of one size share wires.
"""


def wires_of(group: ProcessGroup, *, hidden: int, top_k: int, device: str | torch.device) -> Wires:
    """
    Return the wires of a layer, with columns `hidden` of a token and at most `top_k` experts. All
    ranks of the group call it, in the same order.
    """
    key = group.group_name, hidden, top_k
    if key not in _wires:
        few, many = (
            connect(
                group,
                hidden=hidden,
                top_k=top_k,
                max_tokens=FEW_TOKENS,
                device=device,
                kind=kind,
                numerics="fast",  # sums travel
            )
            for kind in ("auto", "collectives")
        )
        _wires[key] = Wires(few=few, many=many)
    return _wires[key]
