# SPDX-License-Identifier: Apache-2.0
"""
Memory between the launches of a chain, allocated once.

Two blocks are enough, because a launch never needs the output of the launch before the previous
one: the inputs of the first and of the second product use one block in turn, and their results the
other one. Layers that run one after another on one stream may share a workspace.

Launches that are not ordered must not share these blocks. So each stream has its own blocks, and a
call holds them while it launches. A call that finds them held by another thread uses torch's
allocator instead. So does a call that a CUDA graph captures: the graph then owns its memory, and a
replay cannot conflict with an eager call.
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
"""Number of token counts whose views are cached; decoding uses no more."""

STREAMS = 8
"""Most streams with their own blocks; calls on further streams use torch's allocator."""

_PER_THREAD = 2
"""CUDA's handle of the stream that differs from thread to thread (cudaStreamPerThread)."""


@frozen
class Buffers:
    """
    Output tensors of the launches of a chain with P rows; None: new memory. Scales always get new
    memory.

    Attributes:
        a: (P, H), the input rows of the first product, and None for their scales.
        h: (P, 2 I) bfloat16, or (P, I) without gates: the result of the first product.
        q: (P, I), the input rows of the second product, and None for their scales.
        y: (P, H) bfloat16, the result of the second product.
    """

    a: tuple[Tensor, Tensor | None] | None = None
    h: Tensor | None = None
    q: tuple[Tensor, Tensor | None] | None = None
    y: Tensor | None = None


NEW = Buffers()
"""Buffers with new memory for everything."""


class _Blocks:
    """
    The two blocks of one stream, and views of them.

    Args:
        sizes: H, I, and columns of the first product's result.
        rows: Number of rows that fit.
        a_dtype: Element type of activations in front of a product.
        device: Device of the memory.
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
        """Return the output tensors of launches whose rows have this shape: (P,), or (G, M)."""
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
        exchange: Memory in which the CTAs of calls in one launch exchange h; None: there are no
            such calls.
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
    Memory for at most `max_tokens` tokens at once, on each stream that uses it.

    Safe to use from any thread, on any stream and in graphs: a call that cannot get the blocks of
    its stream uses torch's allocator.

    Args:
        hidden: Columns H of a token.
        intermediate: Columns I of an expert.
        top_k: Number of experts of a token.
        max_tokens: Most tokens at once.
        a_dtype: Element type of activations in front of a product.
        device: Device of the memory.
        rows: Least number of rows that fit, if it is larger than the number that the tokens need.
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
        Return memory for a layer: for one of its passes, or for `max_tokens` tokens if these are
        fewer; and for at least `masked` rows of every expert, for `MoELayer.experts`.
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
        """
        Return a new workspace of the same sizes; contents are not copied, because they are not
        needed between calls.
        """
        return _like(*self.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle only its sizes."""
        hidden, intermediate, top_k, a_dtype, is_gated = self._sizes
        sizes = (hidden, intermediate, top_k, self.max_tokens, a_dtype)
        return _like, (*sizes, self._device, self.rows, is_gated)

    @property
    def nbytes(self) -> int:
        """Bytes of the workspace's memory, of all streams together."""
        with self._lock:
            every = list(self._of_stream.values())
        exchange = 0 if self._exchange is None else self._exchange.words.nbytes
        return exchange + sum(each.rows.nbytes + each.results.nbytes for each in every)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """
        Give a call the blocks of the current stream while it launches; or new memory, if another
        thread holds them, a CUDA graph is being captured, or too many streams have blocks.
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
        """Return the blocks of the current stream; None if it cannot have its own."""
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
        Write the numbers of rows now; all streams and graphs only read them. Does nothing while a
        CUDA graph is captured, because then only a replay would write them.
        """
        if self._order is None and not self._is_capturing():
            order = in_order(1, self.rows, self._device).flatten()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._order = order

    def make_exchange(self) -> None:
        """
        Allocate the memory for calls in one launch now, for all streams and graphs, because such
        calls run one after another. Does nothing while a CUDA graph is captured, like
        `number_rows`.
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
        Check that the workspace is large enough for a layer.

        Raises:
            InputError: The workspace is for other sizes or types, or another device.
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
        """Say whether a matrix of `rows` rows for each expert fits."""
        return groups * rows <= self.rows

    def require_masked(self, weights: ExpertWeights, rows: int) -> None:
        """
        Check that the workspace is large enough for a matrix of `rows` rows for each expert.

        Raises:
            InputError: It has fewer rows, or is for other sizes or types, or another device.
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
    """Return the numbers of the rows of `groups` matrices: (G, M) int32."""
    return torch.arange(groups * rows, dtype=torch.int32, device=device).view(groups, rows)


def _part(memory: Tensor, *shape: int) -> Tensor:
    return memory[: prod(shape)].view(shape)
