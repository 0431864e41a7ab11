# SPDX-License-Identifier: Apache-2.0
"""
The interface through which a layer exchanges rows with other ranks; `Windows`, `Collectives` and
`Placed` implement it.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from jitgen.config.format import Format
from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.rounds import Masked

_resolved: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]


def group_of(name: str) -> ProcessGroup:
    """
    Return the process group that torch calls `name`. Objects that live as long as a layer keep the
    name, not the group: if a group still exists when the process ends, its threads may abort the
    process.
    """
    found: ProcessGroup = _resolved(name)
    return found


@runtime_checkable
class Wire(Protocol):
    """
    The connection of a rank to the others.

    Every rank calls `dispatch` and `combine` in turn, with the same `room`. Layers that run one
    after the other on one stream share a wire.

    Attributes:
        group_name: Torch's name of the group of ranks; see `group_of`.
        rank: The number of this rank.
        ranks: Number of ranks.
        max_tokens: Most tokens of a rank in a call.
        can_mask: Whether ranks that are late are masked.
        quantises: Whether `dispatch` quantises tokens, if it is asked to.
        flags_from: The number of tokens of a rank from which on flags say that data has come; None:
            they never do.
    """

    group_name: str
    rank: int
    ranks: int
    max_tokens: int
    can_mask: bool
    quantises: bool
    flags_from: int | None

    def dispatch(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        room: int,
        form: Format = Format.NONE,
    ) -> Tokens:
        """
        Send the tokens of this rank to every rank, in bfloat16 or quantised to `form`; return the
        tokens of all ranks, `room` rows for each.
        """
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
        Send each row of y, (ranks * room, H), to the rank of its token, and add up the rows
        received for this rank's tokens. With `inverse`, y has one row for each pair of a token and
        an expert: see `jitgen.ops.combine_ranks.call`.
        """
        ...

    def check(self) -> tuple[Masked, ...]:
        """
        Wait for the device, and require that no rank waited too long. Where ranks that are late are
        masked, return those that are, and warn of each once.

        Raises:
            PeerTimeout: This rank waited too long, and late ranks are not masked.
        """
        ...
