# SPDX-License-Identifier: Apache-2.0
"""
A wire that translates experts to places: callers give the experts of the layer, ranks exchange the
places that an `ExpertMap` assigns.

The index of a token decides which replica it uses, so that equal calls have equal results. The
table is a tensor: to change the map, one copy is enough, and captured graphs use the new map
without a new capture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.ops.dispatch.call import Local, Tokens
from jitgen.ops.dispatch.rounds import Masked
from jitgen.parallel.expert_map import ExpertMap
from jitgen.parallel.wire import Slot, Wire

PERIOD = 64
"""
Tokens after which the turns of replicas begin again. Of three replicas, one gets one token more in
each period than the other two.
"""


class Placed:
    """
    A wire that sends experts' places instead of their numbers, with the methods of
    `jitgen.parallel.wire.Wire`.

    Attributes:
        expert_map: The map of experts to places.
        is_moving: Whether weights are being moved to another map.

    Args:
        wire: The connection of the ranks.
        expert_map: The map of experts to places.
        others: Number of experts without weights; their numbers follow those of the experts with
            weights.
        device: Where tokens are.
    """

    def __init__(
        self, wire: Wire, expert_map: ExpertMap, others: int, device: torch.device
    ) -> None:
        self.wire = wire
        self.group_name, self.rank, self.ranks = wire.group_name, wire.rank, wire.ranks
        self.max_tokens, self.can_mask = wire.max_tokens, wire.can_mask
        self.micro_batches, self.stream = wire.micro_batches, wire.stream
        self.quantises, self.flags_from = wire.quantises, wire.flags_from
        self.is_moving = False
        self._others = others
        rows = expert_map.experts + others + 2  # and one on either side for any other number
        self._table = torch.empty(rows * PERIOD, dtype=torch.int32, device=device)
        turn = (torch.arange(self.max_tokens, device=device) + self.rank) % PERIOD
        self._turn = (turn + PERIOD).int()[:, None]  # -1 is the number of the first row
        self.switch(expert_map)

    def switch(self, expert_map: ExpertMap) -> None:
        """Use another map in all calls from now on."""
        self.expert_map = expert_map
        places = expert_map.places
        none, first = (-1,), len(expert_map.placed)
        rows = [none, *places, *((first + each,) for each in range(self._others)), none]
        values = [row[turn % len(row)] for row in rows for turn in range(PERIOD)]
        self._table.copy_(torch.tensor(values, dtype=torch.int32))

    def choose(self, topk_ids: Tensor) -> Tensor:
        """
        Return the places of the experts of a call. Of an expert with `count` replicas, token t uses
        replica ``(t + rank) % PERIOD % count``.

        Args:
            topk_ids: (T, k) int32: experts of the layer; any other number gives place -1.
        """
        last = self._table.numel() // PERIOD - 2
        rows = topk_ids.clamp(-1, last)
        index = torch.add(self._turn[: len(rows)], rows, alpha=PERIOD)
        return self._table.index_select(0, index.flatten()).view(rows.shape)

    def dispatch(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        room: int,
        form: Format = Format.NONE,
        slot: Slot | None = None,
        local: Local | None = None,
    ) -> Tokens:
        """Send tokens to all ranks, as `Wire.dispatch` does, with the places of their experts."""
        return self.wire.dispatch(x, self.choose(topk_ids), topk_weights, room, form, slot, local)

    def combine(  # noqa: PLR0913  # each is one thing to say
        self,
        y: Tensor,
        tokens: int,
        shared: Tensor | None = None,
        shared_weights: Tensor | None = None,
        out: Tensor | None = None,
        inverse: Tensor | None = None,
        topk_weights: Tensor | None = None,
        slot: Slot | None = None,
        *,
        of_experts: bool = False,
    ) -> Tensor:
        """Send rows to the ranks of their tokens and add them up, as `Wire.combine` does."""
        given = (shared, shared_weights, out, inverse, topk_weights, slot)
        return self.wire.combine(y, tokens, *given, of_experts=of_experts)

    def check(self) -> tuple[Masked, ...]:
        """Require that no rank waited too long, as `Wire.check` does; return the masked ranks."""
        return self.wire.check()

    def require_like(self, expert_map: object) -> None:
        """
        Require a map with the same numbers of experts, ranks and places as the present one.

        Raises:
            InputError: It is not an `ExpertMap`, or has other sizes.
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
