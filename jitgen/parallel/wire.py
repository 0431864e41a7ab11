# SPDX-License-Identifier: Apache-2.0
"""
The interface through which a layer exchanges rows with other ranks; `Windows`, `Collectives` and
`Placed` implement it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.ops.dispatch.call import Local, Tokens
from jitgen.ops.dispatch.rounds import Masked

FLAGS_FROM = 128
"""
Tokens of a rank from which on `connect` takes flags by itself. With fewer tokens, layers with flags
were not faster on two H200s.
"""

_resolved: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]


def require_flags(flags_from: object) -> None:
    """Require a number of tokens from which on there are flags: at least 2, 0 (never) or None."""
    is_number = type(flags_from) is int and (flags_from == 0 or flags_from >= 2)
    if flags_from is not None and not is_number:
        raise InputError("flags_from", f"must be at least 2, 0 or None (got {flags_from!r})")


def chosen_flags(flags_from: int | None, max_tokens: int, *, possible: bool) -> int | None:
    """
    Return the number of tokens of a rank from which on there are flags, or None: never.

    Args:
        flags_from: What is asked for; 0: never; None: `FLAGS_FROM` where that is `possible`.
        max_tokens: Most tokens of a rank.
        possible: Whether there are kernels with flags.
    """
    if flags_from is None and possible and max_tokens >= FLAGS_FROM:
        return FLAGS_FROM
    return flags_from or None


def group_of(name: str) -> ProcessGroup:
    """
    Return the process group that torch calls `name`. Objects that live as long as a layer keep the
    name, not the group: if a group still exists when the process ends, its threads may abort the
    process.
    """
    found: ProcessGroup = _resolved(name)
    return found


class Slot(NamedTuple):
    """
    The place of an exchange among those of micro-batches that overlap.

    Attributes:
        pair: The number of its pair of windows: micro-batches use 0 and 1 in turn.
        is_beside: Whether products run at the same time, to which it leaves most SMs.
    """

    pair: int
    is_beside: bool


def side_stream(device: torch.device, micro_batches: int) -> torch.cuda.Stream | None:
    """Return a new stream for exchanges that overlap products, of high priority; see `Wire`."""
    if device.type != "cuda" or micro_batches == 1:
        return None
    return torch.cuda.Stream(device, priority=-1)


@runtime_checkable
class Wire(Protocol):
    """
    The connection of a rank to the others.

    Every rank calls `dispatch` and `combine` in turn, with the same `room`; with micro-batches that
    overlap, in turn for each pair of windows, and in the same order on every rank. Layers that run
    one after the other on one stream share a wire.

    Attributes:
        group_name: Torch's name of the group of ranks; see `group_of`.
        rank: The number of this rank.
        ranks: Number of ranks.
        max_tokens: Most tokens of a rank in a call.
        micro_batches: Number of micro-batches of a call with `max_tokens`.
        stream: The stream of exchanges that overlap products; None: exchanges run on the current
            stream, because there is one micro-batch or the tokens are on a CPU.
        can_mask: Whether ranks that are late are masked.
        quantises: Whether `dispatch` quantises tokens, if it is asked to.
        flags_from: The number of tokens of a rank from which on flags say that data has come; None:
            they never do.
    """

    group_name: str
    rank: int
    ranks: int
    max_tokens: int
    micro_batches: int
    stream: torch.cuda.Stream | None
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
        slot: Slot | None = None,
        local: Local | None = None,
    ) -> Tokens:
        """
        Send the tokens of this rank to every rank, in bfloat16 or quantised to `form`; return the
        tokens of all ranks, `room` rows for each. `slot` is given for micro-batches that overlap.
        With `local` the launch may sort the pairs, too; if it does, their order is in the result.
        """
        ...

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
        """
        Send each row of y, (ranks * room, H), to the rank of its token, and add up the rows
        received for this rank's tokens. With `inverse` and `topk_weights`, each (ranks * room,
        top_k), y has rows of experts: their weighted sum for each token is sent, or with
        `of_experts` each of these rows; see `jitgen.ops.combine_ranks.call`. `slot` is that of the
        `dispatch` before.
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
