# SPDX-License-Identifier: Apache-2.0
"""A CTA, or a cluster, with global memory and tensors in it, for tests of bulk copies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats.swizzle import swizzled
from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, TensorMap, encode
from jitgen.emulator.isa import control, mbarrier, named_barriers
from jitgen.emulator.isa.bulk_tensor import load_boxes, store_boxes
from jitgen.emulator.isa.mbarrier import Arrival
from jitgen.emulator.machine.barriers import MBarrier
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.global_memory import GlobalMemory
from tests.emulator.program import EAGER, fragment

AT = 0
BARRIER = 1024
BOX = 2048
"""Offset in shared memory of a box; `BARRIER` is that of an mbarrier."""


class Bench:
    """
    CTAs of `threads` threads, one of which issues copies.

    Attributes:
        f: All threads of CTA 0.
        one: Thread 0 of CTA 0.
    """

    def __init__(self, threads: int = 64, cluster: int = 1, mode: Any = EAGER) -> None:
        self.f = fragment(threads, cluster=cluster, mode=mode)
        self.f.machine.memory = GlobalMemory()
        self.one = self.f.part(self.f.lanes == 0)
        self._keep: list[NDArray[Any]] = []

    # --- memory ---

    def tensor(self, array: NDArray[Any]) -> int:
        """Declare an array as global memory and return its address; tensors of maps need 16."""
        assert array.ctypes.data % 16 == 0
        self._keep.append(array)
        first, last = np.lib.array_utils.byte_bounds(array)
        self.f.machine.memory.add(first, last - first, "tensor")
        return array.ctypes.data

    def tensor_map(
        self, array: NDArray[Any], element: str, box: tuple[int, ...], **fields: Any
    ) -> int:
        """Return the address of a new tensor map of `array`, declared here; box innermost first."""
        described = TensorMap(
            address=self.tensor(array),
            element=next(entry for entry in ELEMENT_TYPES if entry.name == element),
            sizes=array.shape[::-1],
            strides=array.strides[-2::-1] if array.ndim > 1 else (),
            box=box,
            element_strides=(1,) * array.ndim,
            swizzle=0,
            fills_nan=False,
            is_interleaved=False,
        )
        return self.place_map(encode(dataclasses.replace(described, **fields)))

    def place_map(self, data: bytes) -> int:
        return self.tensor(aligned(np.frombuffer(data, np.uint8)))

    def shared(self, size: int, rank: int = 0, offset: int = BOX) -> NDArray[np.uint8]:
        return self.f.cluster.ctas[rank].shared.bytes[offset : offset + size]

    def fill(self, data: NDArray[Any], offset: int = BOX, *, is_fenced: bool = True) -> None:
        """Let thread 0 write shared memory, byte by byte."""
        values = np.ascontiguousarray(data).view(np.uint32).ravel()
        offsets = offset + 4 * np.arange(len(values))
        threads = np.zeros(len(values), np.int64)
        data = values[:, None].view(np.uint8)
        self.f.cta.shared.generic_write(self.one, AT, offsets, data, threads)
        if is_fenced:
            self.f.cta.shared.fence_async(self.one.lanes)

    # --- barriers ---

    def barrier(self, count: int = 1, rank: int = 0) -> MBarrier:
        """Make an mbarrier that everybody of a CTA, and asynchronous work, knows."""
        f = self.of(rank)
        one = f.part(f.lanes == 0)
        mbarrier.initialise(one, AT, None, np.uint32(f.cta.base + BARRIER), np.uint32(count))
        control.fence_initialised(one, AT, None)
        named_barriers.arrive_and_wait(f, AT, None, np.uint32(0), None, True, 1)
        return f.cta.barriers[BARRIER]

    def of(self, rank: int) -> Fragment:
        """Return all threads of a CTA."""
        ready = self.f.cluster.schedule.ready.values()
        return next(part for part in ready if part.cta.rank == rank)

    def expect(self, number: int, f: Fragment | None = None) -> None:
        f = f or self.one
        address = np.uint32(f.cta.base + BARRIER)
        mbarrier.arrive_at(f, AT, None, address, np.uint32(number), Arrival(has_bytes=True))

    def wait(self, f: Fragment | None = None, parity: int = 0) -> bool:
        """Return whether the barrier's phase is over; if so the fragment learns what it knows."""
        f = f or self.f
        barrier = f.cta.barriers[BARRIER]
        is_over = barrier.has_completed(parity)
        if is_over and barrier.clock is not None:
            f.cluster.clocks.acquire(f.agents, barrier.clock)
        return is_over

    # --- copies ---

    def load(self, tensor_map: int, *where: int, f: Fragment | None = None, **options: Any) -> None:
        """
        Load a box from coordinates `where`, to the shared address `to` (default `BOX`), signalling
        the mbarrier at `signal` (default `BARRIER`).
        """
        places = (np.uint32(options.pop("to", BOX)), np.uint32(options.pop("signal", BARRIER)))
        ctas, is_pair = options.pop("ctas", None), options.pop("is_pair", False)
        coordinates = tuple(np.int32(coordinate) for coordinate in where)
        load_boxes(
            f or self.one, AT, None, places, np.uint64(tensor_map), coordinates, ctas, is_pair
        )

    def store(
        self, tensor_map: int, *where: int, f: Fragment | None = None, operation: str | None = None
    ) -> None:
        coordinates = tuple(np.int32(coordinate) for coordinate in where)
        source, address = np.uint32(BOX), np.uint64(tensor_map)
        store_boxes(f or self.one, AT, None, source, address, coordinates, operation)

    @property
    def findings(self) -> list[str]:
        """Kinds of the findings."""
        return [finding.kind for finding in self.f.machine.findings.values()]


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array at a multiple of 128 bytes."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    place = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    place[...] = array
    return place


def numbered(*shape: int, dtype: Any = np.uint16) -> NDArray[Any]:
    """Return an aligned array of 1, 2, 3, ..."""
    return aligned((np.arange(np.prod(shape)) + 1).astype(dtype).reshape(shape))


def unswizzled(memory: NDArray[np.uint8], bits: int, offset: int = BOX) -> NDArray[np.uint8]:
    """
    Return the bytes of a tile at `offset` in unswizzled order, from the swizzled bytes of shared
    memory.
    """
    return memory[np.asarray(swizzled(offset + np.arange(len(memory)), bits)) - offset]
