# SPDX-License-Identifier: Apache-2.0
"""
Ranks that exchange tokens by collectives of torch only: ranks on several hosts, or GPUs without
peer access.

Sums have the same bits as those of `jitgen.parallel.windows`: added in the order of ranks, rounded
once. Where a shared expert has weights, its share is rounded once more here than there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.ops.combine.call import combine
from jitgen.ops.dispatch.call import Local, Tokens
from jitgen.ops.dispatch.rounds import Masked
from jitgen.parallel.wire import Slot, group_of, side_stream

_ALIGNMENT = 16

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers a tensor of all ranks; newer versions of torch renamed it, and warn of the old name."""


class Collectives:
    """
    A connection of ranks by collectives of torch, with the methods of `jitgen.parallel.wire.Wire`.

    Args:
        group: The ranks.
        max_tokens: Most tokens of a rank in a call.
        device: Where this rank's tokens are.
        micro_batches: Number of micro-batches of a call with `max_tokens`.
    """

    def __init__(
        self, group: ProcessGroup, max_tokens: int, device: torch.device, micro_batches: int = 1
    ) -> None:
        self.group_name = str(group.group_name)
        self.rank, self.ranks = group.rank(), group.size()
        self.max_tokens, self.can_mask, self.quantises = max_tokens, False, False
        self.flags_from: int | None = None
        self.micro_batches = micro_batches
        self.stream = side_stream(device, micro_batches)

    def dispatch(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        room: int,
        form: Format = Format.NONE,
        slot: Slot | None = None,  # noqa: ARG002  # results have new memory
        local: Local | None = None,  # noqa: ARG002  # likewise
    ) -> Tokens:
        """
        Gather the tokens of all ranks by one collective; each token is one record of bytes.

        Raises:
            InputError: They are to be quantised.
        """
        if form is not Format.NONE:
            raise InputError("form", f"must be none: collectives send bfloat16 (got {form})")
        tokens, top_k = topk_ids.shape
        row, ids = 2 * x.shape[1], 4 * top_k
        length = -(-(row + 2 * ids) // _ALIGNMENT) * _ALIGNMENT
        mine = x.new_zeros(room, length, dtype=torch.uint8)
        mine[:, row : row + ids] = 255  # -1
        mine[:tokens, :row] = x.contiguous().view(torch.uint8)
        mine[:tokens, row : row + ids] = topk_ids.contiguous().view(torch.uint8)
        weights = topk_weights.contiguous().view(torch.uint8)
        mine[:tokens, row + ids : row + 2 * ids] = weights
        every = mine.new_empty(self.ranks * room, length)
        _gather(every, mine, group=group_of(self.group_name))
        return Tokens(
            every[:, :row].view(torch.bfloat16),
            every[:, row : row + ids].contiguous().view(torch.int32),
            every[:, row + ids : row + 2 * ids].contiguous().view(torch.float32),
        )

    def combine(  # noqa: PLR0913  # each is one thing to say
        self,
        y: Tensor,
        tokens: int,
        shared: Tensor | None = None,
        shared_weights: Tensor | None = None,
        out: Tensor | None = None,
        inverse: Tensor | None = None,
        topk_weights: Tensor | None = None,
        slot: Slot | None = None,  # noqa: ARG002  # likewise
        *,
        of_experts: bool = False,
    ) -> Tensor:
        """
        Send each rank, by collectives, the sums for its tokens, and add up the received ones in
        the order of ranks; with `of_experts` send rows of experts, and add them up in the order of
        a token's experts. Sums are those of `jitgen.combine`, or y without `inverse`.
        """
        if inverse is not None and topk_weights is not None:
            if of_experts:
                rows, found = self._rows(y, inverse, tokens)
                first = self.rank * len(inverse) // self.ranks
                given = rows, found, topk_weights[first : first + tokens]
                return combine(*given, shared=shared, out=out, shared_weights=shared_weights)
            y = combine(y, inverse, topk_weights)
        sent = y.contiguous().view(torch.uint8)
        every = torch.empty_like(sent)
        dist.all_to_all_single(every, sent, group=group_of(self.group_name))
        rows = every.view(torch.bfloat16).view(self.ranks, -1, y.shape[1])[:, :tokens]
        total = torch.zeros(rows.shape[1:], device=y.device)
        for each in rows:
            total += each.float()
        if shared is not None:
            extra = shared.float()
            total += extra if shared_weights is None else extra * shared_weights[:, None]
        return total.bfloat16() if out is None else out.copy_(total)

    def _rows(self, y: Tensor, inverse: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """
        Send the rows of experts, zeros for missing ones, and which rows are present; return the
        received rows, and for each pair of a token and an expert the index of its row, -1 if no
        rank has it.
        """
        is_here = (inverse >= 0) & (inverse < len(y))
        sent = y.new_zeros(inverse.numel(), y.shape[1])
        sent[is_here.view(-1)] = y[inverse[is_here].long()]
        every, who = torch.empty_like(sent), torch.empty_like(inverse)
        group = group_of(self.group_name)
        dist.all_to_all_single(every.view(torch.uint8), sent.view(torch.uint8), group=group)
        dist.all_to_all_single(who, is_here.int(), group=group)
        who = who.view(self.ranks, -1, inverse.shape[1])[:, :tokens]
        most, source = who.max(0)
        count = len(inverse) // self.ranks * inverse.shape[1]
        place = torch.arange(source.numel(), device=y.device).view(source.shape)
        return every, (count * source + place).where(most > 0, -1).int()

    def check(self) -> tuple[Masked, ...]:
        """Return no masked ranks: torch's own time limits end waits."""
        return ()

    def __deepcopy__(self, _memo: object) -> Collectives:
        """Return itself: copies of a layer share it."""
        return self
