# SPDX-License-Identifier: Apache-2.0
"""The interface by which a layer reaches other ranks: windows and collectives have it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.rounds import Masked

_resolved: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]


def group_of(name: str) -> ProcessGroup:
    """
    Return the group of that name. What lives as long as a layer does not keep the group itself: the
    threads of one that is there when the process ends may abort it.
    """
    found: ProcessGroup = _resolved(name)
    return found


@runtime_checkable
class Wire(Protocol):
    """
    Ranks that reach each other.

    Every rank calls `dispatch` and `combine` in turn, with the same `room`. Layers that run one
    after the other on one stream share a wire.

    Attributes:
        group_name: Torch's name of the group of ranks; see `group_of`.
        rank: The number of this one.
        ranks: How many there are.
        max_tokens: Most tokens of a rank in a call.
        can_mask: Whether ranks that are late are masked.
    """

    group_name: str
    rank: int
    ranks: int
    max_tokens: int
    can_mask: bool

    def dispatch(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, room: int) -> Tokens:
        """Send the tokens of this rank to every rank; return those of all, `room` of each."""
        ...

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
        """
        Send y, (ranks * room, H), to the ranks of its rows; add up those of own tokens. With
        `inverse` y has rows of experts: see `jitgen.ops.combine_ranks.call`.
        """
        ...

    def check(self) -> tuple[Masked, ...]:
        """
        Wait for the device, and require that no rank waited too long. Where ranks that are late are
        masked, return those that are, and warn of each once.

        Raises:
            PeerTimeout: This rank did, and ranks are not masked.
        """
        ...
