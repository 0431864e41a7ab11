# SPDX-License-Identifier: Apache-2.0
"""
A wire by which experts have places: tokens come with experts of the layer, and travel with places.

A token's number decides which replica it has, so that the same call has the same result. The table
is a tensor: a new map is one copy, which captured graphs read without a new capture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.rounds import Masked
from jitgen.parallel.expert_map import ExpertMap
from jitgen.parallel.wire import Wire

PERIOD = 64
"""Tokens after which replicas take turns anew: of three, one has a token more of these than two."""


class Placed:
    """
    See `jitgen.parallel.wire.Wire`.

    Attributes:
        expert_map: The experts in places.
        is_moving: Whether another map is on its way.

    Args:
        wire: What the ranks reach each other by.
        expert_map: The experts in places.
        others: Numbers of experts without weights, behind those with.
        device: Where tokens are.
    """

    def __init__(
        self, wire: Wire, expert_map: ExpertMap, others: int, device: torch.device
    ) -> None:
        self.wire = wire
        self.group_name, self.rank, self.ranks = wire.group_name, wire.rank, wire.ranks
        self.max_tokens, self.can_mask = wire.max_tokens, wire.can_mask
        self.is_moving = False
        self._others = others
        rows = expert_map.experts + others + 2  # and one on either side for any other number
        self._table = torch.empty(rows * PERIOD, dtype=torch.int32, device=device)
        turn = (torch.arange(self.max_tokens, device=device) + self.rank) % PERIOD
        self._turn = (turn + PERIOD).int()[:, None]  # -1 is the number of the first row
        self.switch(expert_map)

    def switch(self, expert_map: ExpertMap) -> None:
        """Let calls from now on have another map."""
        self.expert_map = expert_map
        places = expert_map.places
        none, first = (-1,), len(expert_map.placed)
        rows = [none, *places, *((first + each,) for each in range(self._others)), none]
        values = [row[turn % len(row)] for row in rows for turn in range(PERIOD)]
        self._table.copy_(torch.tensor(values, dtype=torch.int32))

    def choose(self, topk_ids: Tensor) -> Tensor:
        """
        Return the places of a call's experts: token t has replica ``(t + rank) % count`` of an
        expert with so many, each `PERIOD` tokens anew.

        Args:
            topk_ids: (T, k) int32: experts of the layer; any other number has no place, -1.
        """
        last = self._table.numel() // PERIOD - 2
        rows = topk_ids.clamp(-1, last)
        index = torch.add(self._turn[: len(rows)], rows, alpha=PERIOD)
        return self._table.index_select(0, index.flatten()).view(rows.shape)

    def dispatch(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, room: int) -> Tokens:
        """See `jitgen.parallel.wire.Wire`."""
        return self.wire.dispatch(x, self.choose(topk_ids), topk_weights, room)

    def combine(
        self,
        y: Tensor,
        tokens: int,
        shared: Tensor | None = None,
        shared_weights: Tensor | None = None,
        out: Tensor | None = None,
        inverse: Tensor | None = None,
        topk_weights: Tensor | None = None,
    ) -> Tensor:
        """See `jitgen.parallel.wire.Wire`."""
        given = (shared, shared_weights, out, inverse, topk_weights)
        return self.wire.combine(y, tokens, *given)

    def check(self) -> tuple[Masked, ...]:
        """See `jitgen.parallel.wire.Wire`."""
        return self.wire.check()

    def require_like(self, expert_map: object) -> None:
        """
        Require another map that these places can have.

        Raises:
            InputError: It is none, or has other sizes.
        """
        if not isinstance(expert_map, ExpertMap):
            kind = type(expert_map).__name__
            raise InputError("expert_map", f"must be a jitgen.parallel.ExpertMap (got {kind})")
        mine = self.expert_map
        have, wanted = ((each.experts, each.ranks, len(each.placed)) for each in (expert_map, mine))
        if have != wanted:
            raise InputError(
                "expert_map", f"must have experts, ranks, places = {wanted} (got {have})"
            )
