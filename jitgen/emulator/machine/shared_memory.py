# SPDX-License-Identifier: Apache-2.0
"""
The shared memory of a CTA: its bytes, which of them hold data, and the history of accesses.

An access has two sides. What it does to the bytes may be put off, where the hardware may be late as
well; that it happens is noted when the instruction is executed, with what the executing warp knows
then, so that the history does not depend on how late it is.

PTX ISA, sections "State Spaces: shared", "Data Movement and Conversion Instructions: Asynchronous
operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements, PerThread, Where
from jitgen.emulator.machine.access import READ, RELAXED_WRITE, WRITE, Access
from jitgen.emulator.machine.agreement import check_agreement
from jitgen.emulator.machine.clocks import Agents
from jitgen.emulator.machine.lane_history import LaneNumbers
from jitgen.emulator.machine.lanes import EVERYONE
from jitgen.emulator.machine.live_barriers import MBARRIER_BYTES
from jitgen.emulator.machine.regions import region_of
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.machine.shared_history import WORD, SharedHistory

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment

SHARED_BASE = 1024
"""Offset of the first byte that belongs to the kernel; the bytes before it belong to the system."""

SHARED_SIZE = 256 * 1024
"""Bytes that matrix descriptors can address; hardware has less."""

POISON = 0xCD
"""Value of every byte at the start."""

_RANK_SHIFT = 24
_OFFSET_MASK = (1 << _RANK_SHIFT) - 1
_WARP = 32
_UNITS = (1, 2, 4, 8)
_WRITTEN = {unit: np.array((1 << 8 * unit) // 255, f"u{unit}")[()] for unit in _UNITS}
"""One integer whose bytes are the flags of initialised bytes."""

_WRITES = frozenset({WRITE, RELAXED_WRITE})

_CHUNK = np.dtype(np.complex128)
"""A type of 16 bytes, to move as many at once."""

"""Bytes of shared memory: adjacent ones, or the offset of each, of any shape."""


class SharedMemory:
    """
    The shared memory of one CTA.

    Attributes:
        bytes: uint8 [SHARED_SIZE].
        views: The same bytes as unsigned integers of 1, 2, 4 and 8 bytes, by that size.
        initialised: Whether each byte was written, bool [SHARED_SIZE].
        end: Offset after the last byte of the launch's memory.
        history: The recorded accesses.
    """

    def __init__(self, cta: Cta, end: int) -> None:
        self.cta = cta
        self.end = end
        self.bytes: NDArray[np.uint8] = np.full(SHARED_SIZE, POISON, np.uint8)
        self.views: dict[int, Elements] = {unit: self.bytes.view(f"u{unit}") for unit in _UNITS}
        self.initialised: NDArray[np.bool_] = np.zeros(SHARED_SIZE, np.bool_)
        self._flags = {unit: self.initialised.view(f"u{unit}") for unit in _UNITS}
        self._clocks = cta.cluster.clocks
        is_of_many = cta.machine.launch.cluster_size > 1
        self.history = SharedHistory(
            self._clocks, SHARED_SIZE, cta.name, cta.agents, spans_ctas=is_of_many
        )

    def free(self) -> None:
        """Give the memory back when the cluster has ended; do not use it from then on."""
        self.bytes, self.initialised = np.zeros(0, np.uint8), np.zeros(0, np.bool_)
        self.views, self._flags = {}, {}
        self.history = SharedHistory(self._clocks, 0, self.cta.name, self.cta.agents)

    # --- addresses --------------------------------------------------------------------------------

    def offsets(self, f: Fragment, at: int, addresses: PerThread, width: int) -> NDArray[np.int64]:
        """
        Return the offsets in this memory of shared addresses [k].

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            addresses: Integers [k], or one.
            width: Bytes that are accessed at each; a power of 2 is also its alignment, else 4 is.

        Raises:
            MachineFault: An address is of another CTA, out of bounds or not aligned.
        """
        wide = np.atleast_1d(addresses).astype(np.int64)
        low, high = int(np.minimum.reduce(wide)), int(np.maximum.reduce(wide))
        if not low >> _RANK_SHIFT == high >> _RANK_SHIFT == self.cta.rank:
            stranger = int(wide[(wide >> _RANK_SHIFT != self.cta.rank).argmax()])
            f.fault(at, f"shared address {stranger:#x} is not in {self.cta.name}")
        self.check_bounds(f, at, low & _OFFSET_MASK, (high & _OFFSET_MASK) + width)
        offsets = wide - (low & ~_OFFSET_MASK) if low > _OFFSET_MASK else wide
        alignment = width if width & (width - 1) == 0 else WORD
        if int(np.bitwise_or.reduce(offsets)) & (alignment - 1):
            first = int(offsets[(offsets & (alignment - 1) != 0).argmax()])
            f.fault(at, f"shared address {first:#x} is not a multiple of {alignment}")
        return offsets

    def check_bounds(self, f: Fragment, at: int, start: int, stop: int) -> None:
        """Fault, if the memory has not all bytes from `start` up to, and without, `stop`."""
        if start < SHARED_BASE or stop > self.end:
            f.fault(
                at,
                f"shared memory {start:#x}..{stop:#x} of {self.cta.name} is out of bounds, which "
                f"are {SHARED_BASE:#x}..{self.end:#x}",
            )

    # --- ordinary accesses ------------------------------------------------------------------------

    def generic_read(
        self,
        f: Fragment,
        at: int,
        offsets: NDArray[np.int64],
        width: int,
        threads: NDArray[np.int64] | slice,
        kind: str = READ,
        lanes: LaneNumbers | None = None,
        scope: Scope = Scope.SYS,
    ) -> NDArray[np.uint8]:
        """
        Return what threads read, uint8 [k, width].

        Args:
            f: The fragment that executes the instruction.
            at: The index of the instruction.
            offsets: The offset that each thread reads [k], as `offsets` returns them.
            width: Bytes that each reads: a power of 2, or a multiple of 4.
            threads: The threads [k], as indices 0..n-1 of the fragment's.
            kind: READ or RELAXED_READ.
            lanes: Lanes that access; by default those of `threads`.
            scope: The scope of a relaxed access.
        """
        self._note(f, at, offsets, width, threads, kind, lanes, scope)
        unit, index = _units(offsets, width)
        is_missing = self._flags[unit][index] != _WRITTEN[unit]
        if np.count_nonzero(is_missing):
            self._warn_uninitialised(f, at, int(offsets[is_missing.any(axis=1).argmax()]))
        self.cta.guarded.check(f, at, offsets, width)
        data: Elements = self.views[unit][index]
        return data.view(np.uint8)

    def peek(self, offsets: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
        """Return the bytes at offsets [k], uint8 [k, width], without an access."""
        unit, index = _units(offsets, width)
        return np.ascontiguousarray(self.views[unit][index]).view(np.uint8)

    def generic_write(
        self,
        f: Fragment,
        at: int,
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        threads: NDArray[np.int64] | slice,
        kind: str = WRITE,
        lanes: LaneNumbers | None = None,
        scope: Scope = Scope.SYS,
    ) -> None:
        """
        Write uint8 `data` [k, width] of threads.

        `kind` is WRITE or RELAXED_WRITE; for the other arguments see `generic_read`.
        """
        width = data.shape[1]
        self.cta.guarded.check(f, at, offsets, width)
        self._clocks.give_shadow(f.agents)
        self._note(f, at, offsets, width, threads, kind, lanes, scope)
        unit, index = _units(offsets, width)
        view, values = self.views[unit], data.view(f"u{unit}")
        view[index] = values
        self._flags[unit][index] = _WRITTEN[unit]
        if kind == WRITE and len(offsets) > 1 and np.count_nonzero(view[index] != values):
            check_agreement(f, at, offsets, data, threads, f"shared memory of {self.cta.name}")

    def note_mbarriers(
        self, f: Fragment, at: int, offsets: NDArray[np.int64], threads: NDArray[np.int64]
    ) -> None:
        """Note that threads [k] make barriers of bytes at `offsets` [k], or bytes of barriers."""
        self._note(f, at, offsets, MBARRIER_BYTES, threads, WRITE, lanes=None)
        for offset in offsets.tolist():
            self.initialised[offset : offset + MBARRIER_BYTES] = False

    def _note(
        self,
        f: Fragment,
        at: int,
        offsets: NDArray[np.int64],
        width: int,
        threads: NDArray[np.int64] | slice,
        kind: str,
        lanes: LaneNumbers | None,
        scope: Scope = Scope.SYS,
    ) -> None:
        """Note accesses of threads."""
        agents: Agents
        epochs: Agents
        if len(f.agents) == 1:
            agents = int(f.agents[0])
            epochs = self._clocks.now(agents)
        else:
            agents = f.agent_of[threads]
            epochs = self._clocks.vector.diagonal()[agents]
        is_remote = self.cta is not f.cta
        if lanes is None and not is_remote:
            lanes = f.threads.lane_ids[threads]
            representatives, writes = self._clocks.representatives, kind in _WRITES
            if len(lanes) == 1:
                agent = int(f.agent_of[threads][0])
                now = self._clocks.now(agent)
                representatives.touch_alone(agent, now, int(lanes[0]), writes=writes)
            else:
                (representatives.wrote if writes else representatives.read)[agents] = epochs
        rank = f.cta.rank
        access = Access(kind, agents, epochs, agents, lanes=lanes, scope=scope, rank=rank)
        self.history.access(f, at, offsets, width, access)
        if is_remote:
            self.cta.note_remote(np.unique(agents), at)

    # --- accesses of asynchronous work ------------------------------------------------------------

    def note_async_write(  # noqa: PLR0913  # each is one thing to say
        self,
        f: Fragment,
        at: int,
        where: Where,
        agent: int,
        epoch: int,
        row: int | None = None,
        *,
        is_atomic: bool = False,
        is_generic: bool = False,
        lane: int | None = None,
    ) -> None:
        """
        Note that an asynchronous unit writes bytes; call it when the instruction is executed.

        It also reports bytes that threads wrote without a proxy fence: either write may come last.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            where: The bytes, which are whole words.
            agent: The unit; for copies that signal an mbarrier its agent.
            epoch: The unit's epoch; for such copies the barrier's completed phases + 1.
            row: The agent that must be ordered after earlier accesses; by default the first warp of
                `f`.
            is_atomic: Whether it is a reduction, which may run at the same time as other
                reductions.
            is_generic: Whether the write is of the generic proxy, as writes of threads are.
            lane: The lane of that warp that issues it, if one does.

        Raises:
            MachineFault: Out of bounds.
        """
        region = region_of(where)
        self.check_bounds(f, at, region.start, region.stop)
        self.cta.guarded.check_region(f, at, where, region.start, region.stop)
        row = int(f.agents[0]) if row is None else row
        lane = lane if self.cta is f.cta else None  # only a CTA's own lanes are recorded
        kind = RELAXED_WRITE if is_atomic else WRITE
        is_async = not is_generic
        access = Access(kind, agent, epoch, row, is_async=is_async, lanes=lane, rank=f.cta.rank)
        self.history.access_words(f, at, region.words, access)

    def put(self, where: Where, data: NDArray[np.uint8]) -> None:
        """Write uint8 `data` of the shape of `where`."""
        self.bytes[where] = data
        self.initialised[where] = True

    def note_async_read(
        self,
        f: Fragment,
        at: int,
        where: Where,
        agents: Agents,
        epochs: Agents,
        rows: Agents,
        *,
        lane: int | None = None,
    ) -> None:
        """
        Note that asynchronous units read bytes; call it when the instruction is executed.

        It also reports bytes that threads wrote without a proxy fence.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            where: The bytes that are read. An array that cannot be written to is looked at once
                only.
            agents: The unit, or several, ascending, each of which reads all of the bytes [m].
            epochs: The units' epochs, in the form of `agents`.
            rows: The agents that must be ordered after earlier writes: the warps, or units with
                clocks of their own; as `agents`.
            lane: The lane of that warp that issues it, if one does.

        Raises:
            MachineFault: Out of bounds.
        """
        region = region_of(where)
        self.check_bounds(f, at, region.start, region.stop)
        self.cta.guarded.check_region(f, at, where, region.start, region.stop)
        is_joint = isinstance(agents, np.ndarray)
        access = Access(READ, agents, epochs, rows, is_joint=is_joint, is_async=True, lanes=lane)
        self.history.access_words(f, at, region.words, access)

    def note_reads_apart(
        self, f: Fragment, at: int, reads: list[tuple[Where, int, int, int]]
    ) -> None:
        """
        Note the reads of several asynchronous units, each of different bytes, as `note_async_read`
        does for one.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            reads: For each unit the bytes, its agent and epoch, and the agents that must be ordered
                after earlier writes.
        """
        stretches = [where for where, *_ in reads if isinstance(where, slice)]
        if len(reads) > 1 and len(stretches) == len(reads):
            start, stop = min(x.start for x in stretches), max(x.stop for x in stretches)
            self.check_bounds(f, at, start, stop)
            words = [slice(x.start // WORD, -(-x.stop // WORD)) for x in stretches]
            _, agents, epochs, rows = zip(*reads, strict=True)
            if not self.cta.guarded.is_hit(start, stop) and self.history.read_apart(
                at, words, agents, epochs, np.array(rows)
            ):
                return
        for where, agent, epoch, row in reads:
            self.note_async_read(f, at, where, agent, epoch, row)

    def take(self, f: Fragment, at: int, where: Where) -> NDArray[np.uint8]:
        """
        Return the bytes, uint8 of the shape of `where`, a view of them where that is a slice;
        report those that were never written.
        """
        region = region_of(where)
        if isinstance(where, slice) or region.chunks is None:
            if np.count_nonzero(self._flags[WORD][region.words] != _WRITTEN[WORD]):
                self._find_uninitialised(f, at, where)
            return self.bytes[where]
        flags = self.initialised.view(_CHUNK).take(region.chunks).view(np.uint64)
        if np.count_nonzero(flags != _WRITTEN[8]):
            self._find_uninitialised(f, at, where)
        return self.bytes.view(_CHUNK).take(region.chunks).view(np.uint8).reshape(where.shape)

    def fence_async(self, threads: NDArray[np.int64]) -> None:
        """Execute fence.proxy.async in threads of this CTA, by their numbers in it."""
        if not len(threads):
            return
        warps, counts = np.unique(threads // _WARP, return_counts=True)
        members = None
        if np.count_nonzero(counts != self.cta.live[warps]):
            bits = np.left_shift(1, threads % _WARP)
            members = [int(bits[threads // _WARP == warp].sum()) for warp in warps]
            is_whole = (counts == self.cta.live[warps]).tolist()
            pairs = zip(members, is_whole, strict=True)
            members = [EVERYONE if whole else some for some, whole in pairs]
        self._clocks.fence_proxy(warps + self.cta.agent0, members)

    # --- inside -----------------------------------------------------------------------------------

    def _find_uninitialised(self, f: Fragment, at: int, where: Where) -> None:
        """Report the first byte of `where` that was never written, if there is one."""
        offsets = np.arange(where.start, where.stop) if isinstance(where, slice) else where.ravel()
        missing = ~self.initialised[offsets]
        if np.count_nonzero(missing):
            self._warn_uninitialised(f, at, int(offsets[missing.argmax()]))

    def _warn_uninitialised(self, f: Fragment, at: int, offset: int) -> None:
        message = f"shared memory {offset:#x} of {self.cta.name} is read and was never written"
        f.warn(at, "uninitialised", message)


def _units(offsets: NDArray[np.int64], width: int) -> tuple[int, NDArray[np.int64]]:
    """
    Return the bytes of the integers that accesses consist of, and their numbers [k, width / size].
    """
    unit = min(8, width & -width)
    first = (offsets >> unit.bit_length() - 1)[:, None]
    return unit, first if width == unit else first + np.arange(width // unit)
