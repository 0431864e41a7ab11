# SPDX-License-Identifier: Apache-2.0
"""
Memory between the launches of a chain, planned once.

Two blocks suffice, because a launch never needs the output of the launch before the previous one:
the inputs of the first and the second product take turns in one block, their results in the other.
Layers that run one after the other on one stream share a workspace.

Launches that are not ordered among each other must not share those blocks. So each stream has
blocks of its own, a call holds them while it launches, and a call that finds them held by another
thread asks torch's allocator instead. So does a call that a CUDA graph captures: its memory then is
the graph's, and a replay cannot meet an eager call in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from jitgen.config.moe_decode import MOST_PAIRS, MOST_TOKENS
from jitgen.errors import InputError
from jitgen.layer.config import MoEConfig, require_count
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.support.frozen import frozen
from jitgen.support.moved import with_new_names, with_old_fields

_VIEWS = 256
"""Numbers of tokens whose views are cached; decoding has that many at most."""

STREAMS = 8
"""Streams that have blocks of their own; calls on any other one ask torch's allocator."""

_PER_THREAD = 2
"""CUDA's handle of the stream that differs from thread to thread (cudaStreamPerThread)."""


@frozen
class Buffers:
    """
    Output tensors of the launches of a chain; None: new memory. Scales of rows have new memory.

    Attributes:
        a: (P, H), rows of the first product, and None for their scales.
        h: (P, 2 I) bfloat16, or (P, I) without gates: its result.
        q: (P, I), rows of the second product, and None likewise.
        y: (P, H) bfloat16, its result.
    """

    a: tuple[Tensor, Tensor | None] | None = None
    h: Tensor | None = None
    q: tuple[Tensor, Tensor | None] | None = None
    y: Tensor | None = None


NEW = Buffers()
"""New memory for everything."""


class _Blocks:
    """
    The two blocks of one stream, and views of them.

    Args:
        sizes: H, I, and columns of the first product's result.
        rows: Rows that there is room for.
        a_dtype: Element type of activations in front of a product.
        device: Where.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int],
        rows: int,
        a_dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        hidden, intermediate, between = self._sizes = sizes
        self.rows = torch.empty(rows * max(hidden, intermediate), dtype=a_dtype, device=device)
        self.results = torch.empty(rows * max(hidden, between), dtype=torch.bfloat16, device=device)
        self.lock = threading.Lock()
        self._views: dict[tuple[int, ...], Buffers] = {}

    def buffers(self, *shape: int) -> Buffers:
        """Return where launches write whose rows have this shape: (P,), or (G, M)."""
        found = self._views.get(shape)
        if found is None:
            hidden, intermediate, between = self._sizes
            found = Buffers(
                a=(_part(self.rows, *shape, hidden), None),
                h=_part(self.results, *shape, between),
                q=(_part(self.rows, *shape, intermediate), None),
                y=_part(self.results, *shape, hidden),
            )
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[shape] = found
        return found


class Lease:
    """
    Share of one call in a workspace: the blocks of its stream, or new memory.

    Attributes:
        tokens: Most tokens at once; None: any number.
        exchange: What CTAs of calls in one launch exchange h by; None: there are no such calls.
    """

    def __init__(
        self,
        blocks: _Blocks | None = None,
        tokens: int | None = None,
        top_k: int = 1,
        order: Tensor | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.tokens = tokens
        self.exchange = exchange
        self._blocks = blocks
        self._top_k = top_k
        self._order = order

    def buffers(self, tokens: int) -> Buffers:
        """Return the output tensors of the launches for `tokens` tokens, at most `self.tokens`."""
        return NEW if self._blocks is None else self._blocks.buffers(tokens * self._top_k)

    def masked(self, groups: int, rows: int) -> Buffers:
        """Return the output tensors for a matrix of each expert, (G, M, ...); see `has_room`."""
        return NEW if self._blocks is None else self._blocks.buffers(groups, rows)

    def order(self, groups: int, rows: int, device: torch.device) -> Tensor:
        """Return (G, M) int32, the numbers from 0 on."""
        if self._order is None:
            return in_order(groups, rows, device)
        return self._order[: groups * rows].view(groups, rows)


@with_old_fields
class Workspace:
    """
    Memory for at most `max_tokens` tokens at once, on each stream that asks for it.

    Safe to use from any thread, on any stream and in graphs: a call that cannot have the blocks of
    its stream gets memory of torch's allocator.

    Args:
        hidden: H.
        intermediate: I.
        top_k: Experts of a token.
        max_tokens: Most tokens at once.
        a_dtype: Element type of activations in front of a product.
        device: Where.
        rows: Least rows that it has room for, where they shall be more than tokens ask for.
        is_gated: Whether the first product has gates beside ups: 2 I columns.
    """

    def __init__(  # sizes
        self,
        *,
        hidden: int,
        intermediate: int,
        top_k: int,
        max_tokens: int,
        a_dtype: torch.dtype,
        device: torch.device | str,
        rows: int = 0,
        is_gated: bool = True,
    ) -> None:
        counts = {"hidden": hidden, "intermediate": intermediate, "top_k": top_k}
        for name, count in (*counts.items(), ("max_tokens", max_tokens)):
            require_count(name, count, least=1)
        require_count("rows", rows, least=0)
        if not isinstance(a_dtype, torch.dtype):
            raise InputError("a_dtype", f"must be a torch.dtype (got {a_dtype!r})")
        self.max_tokens = max_tokens
        self.rows = max(max_tokens * top_k, rows)
        self._sizes = (hidden, intermediate, top_k, a_dtype, is_gated)
        self._lock = threading.Lock()
        self._order: Tensor | None = None
        self._exchange: Exchange | None = None
        self._device = torch.empty(0, device=device).device
        self._of_stream: dict[int, _Blocks] = {}
        self._blocks()  # now, so that there is room for it or an error

    @classmethod
    def of(
        cls,
        config: MoEConfig,
        weights: ExpertWeights,
        max_tokens: int | None = None,
        *,
        masked: int = 0,
        **old: Any,
    ) -> Workspace:
        """
        Return memory for a layer: for its chunks, or for at most `max_tokens` if they are fewer;
        and for at least `masked` rows of every expert, for `MoELayer.experts`.
        """
        if old:
            return cls.of(**with_new_names(cls.of, locals()))
        if max_tokens is not None:
            require_count("max_tokens", max_tokens, least=1)
        require_count("masked", masked, least=0)
        return cls(
            hidden=weights.hidden,
            intermediate=weights.intermediate,
            top_k=config.top_k,
            max_tokens=min(max_tokens or config.chunk_tokens, config.chunk_tokens),
            a_dtype=weights.a_dtype,
            device=weights.device,
            rows=weights.groups * masked,
            is_gated=weights.is_gated,
        )

    def __deepcopy__(self, _memo: object) -> Workspace:
        """Return a new workspace of the same sizes: its contents mean nothing between calls."""
        return _like(*self.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Keep its sizes alone."""
        hidden, intermediate, top_k, a_dtype, is_gated = self._sizes
        sizes = (hidden, intermediate, top_k, self.max_tokens, a_dtype)
        return _like, (*sizes, self._device, self.rows, is_gated)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory, of all streams together."""
        with self._lock:
            every = list(self._of_stream.values())
        exchange = 0 if self._exchange is None else self._exchange.words.nbytes
        return exchange + sum(each.rows.nbytes + each.results.nbytes for each in every)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """
        Let a call have the blocks of the current stream while it launches; or new memory, where
        another thread has them, a CUDA graph is being captured, or too many streams have some.
        """
        blocks = self._blocks()
        if blocks is not None and not blocks.lock.acquire(blocking=False):
            blocks = None
        try:
            yield Lease(blocks, self.max_tokens, self._sizes[2], self._order, self._exchange)
        finally:
            if blocks is not None:
                blocks.lock.release()

    def _blocks(self) -> _Blocks | None:
        """Return the blocks of the current stream, if it can have some."""
        if self._is_capturing():
            return None
        stream = _stream(self._device)
        found = self._of_stream.get(stream)
        if found is None and stream != _PER_THREAD:
            with self._lock:
                found = self._of_stream.get(stream)
                if found is None and len(self._of_stream) < STREAMS:
                    hidden, intermediate, _, a_dtype, is_gated = self._sizes
                    sizes = hidden, intermediate, (1 + is_gated) * intermediate
                    found = _Blocks(sizes, self.rows, a_dtype, self._device)
                    self._of_stream[stream] = found
        return found

    def _is_capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def number_rows(self) -> None:
        """
        Make the numbers of rows now, for all streams and graphs, which only read them; while a CUDA
        graph is captured do nothing, for only a replay would write them.
        """
        if self._order is None and not self._is_capturing():
            order = in_order(1, self.rows, self._device).flatten()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._order = order

    def make_exchange(self) -> None:
        """
        Make the memory of calls in one launch now, for all streams and graphs: such calls come one
        after the other. While a CUDA graph is captured do nothing, as `number_rows`.
        """
        if self._exchange is None and not self._is_capturing():
            _, intermediate, top_k, *_ = self._sizes
            tokens = min(self.max_tokens, MOST_TOKENS, MOST_PAIRS // top_k)
            exchange = Exchange.of(tokens, top_k, intermediate, self._device)
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._exchange = exchange

    def require(self, config: MoEConfig, weights: ExpertWeights) -> None:
        """
        Check that it is large enough for a layer.

        Raises:
            InputError: It is for other sizes, types or another device.
        """
        sizes = weights.hidden, weights.intermediate
        wanted = (*sizes, config.top_k, weights.a_dtype, weights.is_gated)
        if self._sizes != wanted or self._device != weights.device:
            raise InputError(
                "workspace",
                f"must be one for H, I, k, activations, gates = {wanted} on {weights.device} (got "
                f"one for {self._sizes} on {self._device})",
            )

    def has_room(self, groups: int, rows: int) -> bool:
        """Say whether a matrix of `rows` rows for each expert fits in."""
        return groups * rows <= self.rows

    def require_masked(self, weights: ExpertWeights, rows: int) -> None:
        """
        Check that it is large enough for a matrix of `rows` rows for each expert.

        Raises:
            InputError: It has less room, or is for other sizes, types or another device.
        """
        hidden, intermediate, _, a_dtype, is_gated = self._sizes
        have = hidden, intermediate, a_dtype, is_gated
        wanted = weights.hidden, weights.intermediate, weights.a_dtype, weights.is_gated
        if have != wanted or self._device != weights.device:
            raise InputError(
                "workspace",
                f"must be one for H, I, activations, gates = {wanted} on {weights.device} (got one "
                f"for {have} on {self._device})",
            )
        groups = weights.groups
        if not self.has_room(groups, rows):
            raise InputError(
                "workspace",
                f"must have room for {groups} matrices of {rows} rows (got one for {self.rows} "
                f"rows): make it with Workspace.of(config, weights, max_tokens, masked={rows})",
            )


def _like(  # the fields that `Workspace.__reduce__` keeps
    hidden: int,
    intermediate: int,
    top_k: int,
    max_tokens: int,
    a_dtype: torch.dtype,
    device: torch.device,
    rows: int,
    is_gated: bool = True,
) -> Workspace:
    return Workspace(
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        max_tokens=max_tokens,
        a_dtype=a_dtype,
        device=device,
        rows=rows,
        is_gated=is_gated,
    )


def _stream(device: torch.device) -> int:
    """Return the number of the current stream; 0 on a CPU, whose calls end before they return."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def in_order(groups: int, rows: int, device: torch.device) -> Tensor:
    """Return the numbers of the rows of so many matrices: (G, M) int32."""
    return torch.arange(groups * rows, dtype=torch.int32, device=device).view(groups, rows)


def _part(memory: Tensor, *shape: int) -> Tensor:
    return memory[: prod(shape)].view(shape)
