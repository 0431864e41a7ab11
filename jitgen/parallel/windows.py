# SPDX-License-Identifier: Apache-2.0
"""
Ranks that write directly to each other's memory. Each rank has two windows: one receives tokens
(`dispatch`), the other receives sums (`combine_ranks`).

A *round* is one `dispatch` and the `combine_ranks` after it; every rank counts rounds. The
beginning of a generated `dispatch` explains who may write to which place at which time, and which
wait allows it. A window is one buffer, which every round uses again; there is no second buffer for
alternate rounds.

With flags instead of numbers for many tokens each rank has two more windows, for such tokens and
their sums: see `jitgen.ops.dispatch.rounds.Link`.

For micro-batches that overlap, each rank has two pairs of windows, which micro-batches use in turn:
each pair is used by `dispatch` and `combine_ranks` in turn, as the only pair is otherwise. All
exchanges of a rank run one after the other, in the same order on every rank, and share one state:
a rank that is masked in one micro-batch is masked in all that follow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from jitgen.config.format import Format
from jitgen.events import warn
from jitgen.ops.combine_ranks.call import combine_ranks
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.call import Local, Tokens, dispatch
from jitgen.ops.dispatch.launch import require_in_time
from jitgen.ops.dispatch.rounds import Link, Masked
from jitgen.parallel.memory import Shared
from jitgen.parallel.wire import Slot, side_stream

_VECTOR_BYTES = 16


def pairs_of(micro_batches: int) -> int:
    """Return how many pairs of windows micro-batches use in turn."""
    return min(micro_batches, 2)


class Windows:
    """
    Memory of this rank to which its peers write, and the addresses of the peers' memory.

    Args:
        group: The ranks.
        tokens: Buffers that receive the tokens of all ranks.
        sums: Buffers that receive sums.
        max_tokens: Most tokens of a rank in a call.
        limit_s: How long a rank waits for another one, in seconds.
        notes: Buffers in which ranks note that they are waiting, or that they have masked a late
            rank; None: a late rank is an error.
        is_invariant: Whether `sums` has room for one row per expert of a token, which invariant
            numerics need, instead of one sum.
        micro_batches: Number of micro-batches of a call with `max_tokens`; if there are several,
            the buffers are two pairs of windows, each for the tokens of one micro-batch.
        quantises: Whether layers that quantise tokens to float8 with float32 scales have them
            quantised before they are sent. Such tokens take fewer of the same places.
        flags_from: The number of tokens of a rank from which on words travel without the number of
            the round, if there are buffers `by_flags`; None: they always have it.
        by_flags: Buffers for such tokens and sums.
    """

    def __init__(  # noqa: PLR0913  # each is one thing to say
        self,
        group: ProcessGroup,
        tokens: Shared,
        sums: Shared,
        max_tokens: int,
        limit_s: float,
        notes: Shared | None = None,
        *,
        is_invariant: bool = False,
        micro_batches: int = 1,
        quantises: bool = False,
        flags_from: int | None = None,
        by_flags: tuple[Shared, ...] = (),
    ) -> None:
        self.group_name = str(group.group_name)
        self.rank, self.ranks = group.rank(), group.size()
        self.max_tokens, self.can_mask = max_tokens, notes is not None
        self.is_invariant, self.quantises = is_invariant, quantises
        self.micro_batches, self.flags_from = micro_batches, flags_from
        self._memory = (tokens, sums, notes, by_flags)
        device = tokens.own.device
        self.stream = side_stream(device, micro_batches)
        self._state = rounds.new_state(
            self.rank, max(1, round(1000 * limit_s)), device, can_mask=notes is not None
        )
        self._told: set[int] = set()
        self._last: int | None = None

        def link(memory: Shared, *, by_flags: bool = False) -> Link:
            return Link(
                memory.own.view(torch.int32).view(self.ranks, -1, 4),
                _table(memory),
                self._state,
                None if notes is None else _table(notes),
                by_flags=by_flags,
            )

        self._tokens, self._sums = (
            [link(part) for part in each.parts(pairs_of(micro_batches))] for each in (tokens, sums)
        )
        self._many = [link(each, by_flags=True) for each in by_flags]
        every = torch.arange(self.ranks * max_tokens, dtype=torch.int32, device=device)[:, None]
        self._as_they_are = every, torch.ones_like(every, dtype=torch.float32)

    @staticmethod
    def nbytes(
        ranks: int,
        hidden: int,
        top_k: int,
        max_tokens: int,
        *,
        is_invariant: bool = False,
        micro_batches: int = 1,
    ) -> tuple[int, int, int]:
        """
        Return the bytes of the buffers of a rank: for tokens, for sums or rows of experts, and for
        notes.
        """
        tokens = pairs_of(micro_batches) * -(-max_tokens // micro_batches)
        rows, vectors = ranks * tokens * _VECTOR_BYTES, hidden // 4
        sums = 1 + top_k * vectors if is_invariant else vectors
        return rows * (vectors + top_k), rows * sums, ranks * _VECTOR_BYTES

    @staticmethod
    def nbytes_by_flags(ranks: int, hidden: int, top_k: int, max_tokens: int) -> tuple[int, ...]:
        """Return the bytes of each window of a rank with flags: for tokens, and for sums."""
        sizes = (
            max_tokens * vectors + rounds.FLAGS for vectors in (hidden // 4 + top_k, hidden // 4)
        )
        return tuple(ranks * -(-size // 2) * _VECTOR_BYTES for size in sizes)

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
        """Send tokens to all ranks, as `Wire.dispatch` does, by writing to their windows."""
        pair, is_beside = self._set_apart(rounds.DISPATCHED, slot)
        link = self._many[0] if self._has_flags(room) else self._tokens[pair]
        tokens = dispatch(
            x, topk_ids, topk_weights, link, room=room, form=form, is_beside=is_beside, local=local
        )
        self._last = rounds.DISPATCHED
        self._tell_on_host()
        return tokens

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
        Send sums, or rows of experts, to the ranks of their tokens and add them up, as
        `Wire.combine` does, by writing to windows.
        """
        pair, is_beside = self._set_apart(rounds.COMBINED, slot)
        if inverse is None or topk_weights is None:  # each row is the sum of its token
            inverse, topk_weights = (each[: len(y)] for each in self._as_they_are)
        is_many = not of_experts and self._has_flags(len(inverse) // self.ranks)
        link = self._many[1] if is_many else self._sums[pair]
        out = combine_ranks(
            y,
            inverse,
            topk_weights,
            link,
            tokens=tokens,
            shared=shared,
            shared_weights=shared_weights,
            out=out,
            of_experts=of_experts,
            is_beside=is_beside,
        )
        self._last = rounds.COMBINED
        self._tell_on_host()
        return out

    def _set_apart(self, word: int, slot: Slot | None) -> Slot:
        """
        Give an exchange, which writes `word` of the state, another number than the last one if both
        are of the same kind, so that later exchanges have larger numbers: signs of life compare
        them. An exchange takes its number from the word of the other kind, which therefore grows.
        Return the slot of the exchange.
        """
        if slot is None:
            return Slot(0, is_beside=False)
        if self._last == word:
            other = rounds.COMBINED if word == rounds.DISPATCHED else rounds.DISPATCHED
            self._state[other : other + 1].add_(1)
            self._last = None
        return slot

    def check(self) -> tuple[Masked, ...]:
        """Require that no rank waited too long, as `Wire.check` does; return the masked ranks."""
        if not self.can_mask:
            require_in_time(self._state)
            return ()
        found = rounds.masked(self._state)
        for each in found:
            if each.source not in self._told:
                self._told.add(each.source)
                why = "masked it before" if each.was_told else "was late"
                warn(
                    f"rank {self.rank} masks rank {each.source} from round {each.number} on "
                    f"({each.step}): that rank {why}; results are without its experts until the "
                    "ranks are connected again"
                )
        return found

    def _has_flags(self, room: int) -> bool:
        """Say whether flags say that rows have come, for `room` tokens of each rank."""
        return self.flags_from is not None and room >= self.flags_from

    def _tell_on_host(self) -> None:
        """
        Warn of masked ranks if the state is in host memory, so that no wait for a device is needed.
        """
        if self.can_mask and not self._state.is_cuda and int(self._state[rounds.MASKED]):
            self.check()

    def __deepcopy__(self, _memo: object) -> Windows:
        """Return itself: copies of a layer share it."""
        return self


def _table(memory: Shared) -> Tensor:
    """Return the addresses of the buffers of all ranks, on the device of this rank's."""
    return torch.tensor(memory.addresses, dtype=torch.int64, device=memory.own.device)
