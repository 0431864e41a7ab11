# SPDX-License-Identifier: Apache-2.0
"""
Ranks that write to each other's memory: one window for tokens and one for sums, and their rounds.

The kernels say who may write which place when, and which wait allows it: see the beginning of a
generated `dispatch`. Both windows have one bank.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from jitgen.ops.combine_ranks.call import combine_ranks
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.call import Tokens, dispatch
from jitgen.ops.dispatch.launch import require_in_time
from jitgen.ops.dispatch.rounds import Link
from jitgen.parallel.memory import Shared

_VECTOR_BYTES = 16


class Windows:
    """
    Memory of this rank that peers write, and where theirs is.

    Args:
        group: The ranks.
        tokens: Memory for tokens, of all ranks.
        sums: Memory for sums.
        max_tokens: Most tokens of a rank in a call.
        limit_s: How long a rank waits for another one.
    """

    def __init__(
        self, group: ProcessGroup, tokens: Shared, sums: Shared, max_tokens: int, limit_s: float
    ) -> None:
        self.group_name = str(group.group_name)
        self.rank, self.ranks = group.rank(), group.size()
        self.max_tokens = max_tokens
        self._memory = (tokens, sums)
        device = tokens.own.device
        self._state = rounds.new_state(self.rank, max(1, round(1000 * limit_s)), device)
        self._tokens, self._sums = (
            Link(
                each.own.view(torch.int32).view(self.ranks, -1, 4),
                torch.tensor(each.addresses, dtype=torch.int64, device=device),
                self._state,
            )
            for each in self._memory
        )

    @staticmethod
    def nbytes(ranks: int, hidden: int, top_k: int, max_tokens: int) -> tuple[int, int]:
        """Return the bytes of each window of a rank: for tokens, and for sums."""
        rows = ranks * max_tokens * _VECTOR_BYTES
        return rows * (hidden // 4 + top_k), rows * (hidden // 4)

    def dispatch(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, room: int) -> Tokens:
        """See `jitgen.parallel.wire.Wire`."""
        return dispatch(x, topk_ids, topk_weights, self._tokens, room=room)

    def combine(
        self,
        y: Tensor,
        tokens: int,
        shared: Tensor | None = None,
        shared_weights: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `jitgen.parallel.wire.Wire`."""
        return combine_ranks(
            y, self._sums, tokens=tokens, shared=shared, shared_weights=shared_weights, out=out
        )

    def check(self) -> None:
        """See `jitgen.parallel.wire.Wire`."""
        require_in_time(self._state)

    def __deepcopy__(self, _memo: object) -> Windows:
        """Return itself: copies of a layer share it."""
        return self
