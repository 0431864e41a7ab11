# SPDX-License-Identifier: Apache-2.0
"""
The passes of a layer that ranks share. A pass consists of `dispatch`, the products and
`combine_ranks`, for a part of the tokens.

Passes run one after the other, or overlap as micro-batches: the tokens of the next pass, and the
results of the one before, travel on a stream of their own while this pass is multiplied.

    exchanges   dispatch 0, dispatch 1, combine 0, dispatch 2, combine 1, combine 2
    products                products 0,            products 1,            products 2

An exchange waits for all ranks. So that ranks never wait for each other in a circle, exchanges have
one order, which is the same on every rank. Therefore the number of passes follows from the
largest number of tokens of any rank, which all ranks know, never from the tokens of this rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from jitgen.config import Numerics
from jitgen.config.format import Format
from jitgen.layer.call import require_workspace
from jitgen.layer.chain import Chain
from jitgen.layer.early import sorts_on_arrival
from jitgen.layer.problems import sent_as
from jitgen.layer.workspace import Buffers, Lease, Workspace
from jitgen.ops import tensors as common
from jitgen.ops.dispatch.call import Local, Tokens
from jitgen.parallel import Wire
from jitgen.parallel.wire import Slot
from jitgen.runtime.session import current, sparing

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Added = tuple[Tensor | None, Tensor | None, Tensor | None]
"""shared, shared_weights and out."""


class _Rows(NamedTuple):
    """
    Results of the experts of this rank for the tokens of all ranks.

    Attributes:
        y: The rows of experts.
        inverse: The index of each pair's row.
        weights: The weight of each pair.
        added: What is added to the sums for this rank's tokens, and where these go.
    """

    y: Tensor
    inverse: Tensor
    weights: Tensor
    added: Added


@dataclass(frozen=True, slots=True)
class Passes:
    """
    A call of a layer that ranks share.

    Attributes:
        chain: The launches of a rank.
        wire: The connection of the ranks.
        x: (T, H) bfloat16, checked like the others.
        topk_weights: (T, k) float32.
        ids: (T, k) int32.
        added: shared, shared_weights and out, of all tokens.
        workspace: Memory between launches.
        room: Largest number of tokens of a rank in a pass.
        form: Format in which tokens are sent.
        local: The local experts by which the launch that sends tokens also sorts the pairs, in
            passes that run in turn; None: another launch sorts.
    """

    chain: Chain
    wire: Wire
    x: Tensor
    topk_weights: Tensor
    ids: Tensor
    added: Added
    workspace: Workspace | None
    room: int
    form: Format
    local: Local | None

    def in_turn(self, count: int) -> list[Tensor]:
        """Run passes one after the other; return their results."""
        found = []
        for number in range(count):
            received = self.send(number)
            with self.multiplied(received, number) as rows:
                found.append(self.combine(rows, number))
        return found

    def overlapping(self, count: int) -> None:
        """
        Run passes as micro-batches, in the order above; `out` gets the results.

        Memory that an exchange reads is kept until the current stream has waited for an exchange
        after it, because torch's allocator knows only the stream that the memory was made on.
        """
        side = _Side.of(self.wire.stream)
        multiplied: deque[_Rows] = deque()
        try:
            arriving = [side.run(self.send, 0, Slot(0, is_beside=False))]
            for number in range(count):
                following = number + 1
                if following < count:
                    slot = Slot(following % 2, is_beside=True)
                    arriving.append(side.run(self.send, following, slot))
                received, event = arriving.pop(0)
                side.await_event(event)
                if number >= 2:  # what came had to wait for the exchange that read these rows
                    multiplied.popleft()
                with side.beside(), self.multiplied(received, number, is_beside=True) as rows:
                    multiplied.append(rows)
                slot = Slot(number % 2, is_beside=following < count)
                side.run(self.combine, rows, number, slot)
                del received, rows  # not before, as that exchange reads them
        finally:
            side.join()

    def part(self, number: int) -> slice:
        """Return which tokens of this rank a pass has: none if they are fewer than those before."""
        tokens = self.x.shape[0]
        return slice(*(min(each * self.room, tokens) for each in (number, number + 1)))

    def send(self, number: int, slot: Slot | None = None) -> Tokens:
        """Send the tokens of a pass; return those of all ranks."""
        part = self.part(number)
        x, ids, weights = (
            each[part].contiguous() for each in (self.x, self.ids, self.topk_weights)
        )
        local = self.local if slot is None else None
        return self.wire.dispatch(x, ids, weights, self.room, self.form, slot, local)

    @contextmanager
    def multiplied(
        self, received: Tokens, number: int, *, is_beside: bool = False
    ) -> Iterator[_Rows]:
        """
        Run the experts of this rank for the tokens of all ranks. The results are valid in the with
        block, and with `is_beside` after it: an exchange reads them beside the next products.
        """
        part, chain = self.part(number), self.chain
        shared, shared_weights, out = (None if each is None else each[part] for each in self.added)
        added, is_quantised = (shared, shared_weights, out), received.scale is not None
        count = len(received.topk_ids)
        with self._buffers(count, keeps_y=not is_beside) as into:
            order, is_sorted = received.order, is_quantised or received.order is not None
            ranked = chain.for_tokens(count, is_sorted=is_sorted)
            rows = received.x, received.topk_ids, into, order
            y, pairs = ranked.expert_rows(*rows, scale=received.scale, link=received.link)
            if chain.config.zero_experts:
                first = self.wire.rank * count // self.wire.ranks
                own = slice(first, first + part.stop - part.start)
                ids, weights = received.topk_ids[own], received.topk_weights[own]
                added = received.x[own], chain.token_weights(weights, ids), out
            yield _Rows(y, pairs.inverse, received.topk_weights, added)

    @contextmanager
    def _buffers(self, count: int, *, keeps_y: bool) -> Iterator[Buffers]:
        """
        Lease memory for `count` tokens from the workspace, if there is one that has enough. Without
        `keeps_y` the results of experts have memory of their own.
        """
        workspace = self.workspace
        if workspace is not None:
            require_workspace(workspace)
            workspace.require(self.chain.config, self.chain.weights)
            workspace = workspace if count <= workspace.max_tokens else None
        with nullcontext(Lease()) if workspace is None else workspace.lease() as lease:
            into = lease.buffers(count)
            yield into if keeps_y else replace(into, y=None)

    def combine(self, rows: _Rows, number: int, slot: Slot | None = None) -> Tensor:
        """Send the results of a pass to the ranks of the tokens; return the sums of this rank."""
        part, given = self.part(number), (*rows.added, rows.inverse, rows.weights, slot)
        of_experts = self.chain.config.numerics is Numerics.INVARIANT
        count = part.stop - part.start
        return self.wire.combine(rows.y, count, *given, of_experts=of_experts)


@dataclass(frozen=True, slots=True)
class _Side:
    """
    The stream of exchanges beside the current one, which products run on.

    Attributes:
        streams: Both; None: all runs on the current stream, in the order of calls.
    """

    streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None

    @classmethod
    def of(cls, stream: torch.cuda.Stream | None) -> _Side:
        """Return the stream of a wire beside the current one, if there is one."""
        if stream is None:
            return cls(None)
        return cls((stream, torch.cuda.current_stream(stream.device)))

    def run(
        self, step: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> tuple[Result, torch.cuda.Event | None]:
        """
        Run an exchange after all that the current stream has been given; return the result, and an
        event for its end.
        """
        if self.streams is None:
            return step(*args, **kwargs), None
        side, main = self.streams
        side.wait_stream(main)
        with torch.cuda.stream(side):
            return step(*args, **kwargs), side.record_event()

    def beside(self) -> AbstractContextManager[None]:
        """Let products launched in a with block leave SMs to exchanges."""
        return nullcontext() if self.streams is None else sparing(current.get()).active()

    def await_event(self, event: torch.cuda.Event | None) -> None:
        """Let the current stream wait for the end of an exchange."""
        if self.streams is not None and event is not None:
            self.streams[1].wait_event(event)

    def join(self) -> None:
        """Let the current stream wait for all exchanges."""
        if self.streams is not None:
            side, main = self.streams
            main.wait_stream(side)


def run_in_passes(
    chain: Chain,
    wire: Wire,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None],
    workspace: Workspace | None,
    every: int,
) -> Tensor:
    """
    Run a layer whose `tensors` (x, topk_weights, topk_ids, shared, out, shared_weights) are
    checked, in as many passes as `every`, the largest number of tokens of a rank, needs. If the
    wire has micro-batches, they overlap.
    """
    x, topk_weights, topk_ids, shared, out, shared_weights = tensors
    most = pass_tokens(wire)
    form = sent_as(chain.config, chain.weights) if wire.quantises else Format.NONE
    most = max(1, min(most, chain.config.chunk_tokens // wire.ranks))  # the rows of all ranks
    count = -(-every // most)
    room, flags_from = -(-every // max(1, count)), wire.flags_from
    local = None
    if chain.starts_early and chain.may_join and (flags_from is None or room < flags_from):
        of_chain, can_mask = (chain.config, chain.weights), wire.can_mask
        local = sorts_on_arrival(*of_chain, wire.ranks, room, can_mask=can_mask, form=form)
    if out is None and count != 1:
        out = x.new_empty(x.shape)
    passes = Passes(
        chain=chain,
        wire=wire,
        x=x,
        topk_weights=topk_weights,
        ids=common.short_ids(topk_ids).contiguous(),
        added=(shared, shared_weights, out),
        workspace=workspace,
        room=room,
        form=form,
        local=local,
    )
    if count > 1 and wire.micro_batches > 1:
        passes.overlapping(count)
        return out  # type: ignore[return-value]  # several passes have it
    found = passes.in_turn(count)
    return found[0] if out is None else out


def pass_tokens(wire: Wire) -> int:
    """Return the most tokens of a rank in a pass."""
    return -(-wire.max_tokens // wire.micro_batches)
