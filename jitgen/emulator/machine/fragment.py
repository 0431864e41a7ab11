# SPDX-License-Identifier: Apache-2.0
"""
Fragments: threads of one CTA that are at the same basic block, run as one.

Registers are numpy rows with one element for each thread of the CTA, so that a block costs the same
for one warp and for twelve. A fragment splits at a branch that its threads take differently, and
two that meet at a block become one. The threads of a fragment never change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread, Scalar
from jitgen.emulator.machine import faults

if TYPE_CHECKING:
    from jitgen.emulator.machine.cluster import Cluster
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.machine import Machine

WARP = 32
"""Threads of a warp."""


@dataclass(frozen=True, slots=True)
class Wait:
    """
    Why threads stop: what a block function returns instead of the next block.

    Attributes:
        at: Index of the instruction that waits.
        is_over: Returns whether the threads may go on; it is asked after every event.
        describe: Returns a text of what they wait for, for the report of a deadlock.
        retry: Whether to execute the block again from its start; else threads go on at block
            `then`.
        then: The block to go on at, if not `retry`.
    """

    at: int
    is_over: Callable[[], bool]
    describe: Callable[[], str]
    retry: bool = True
    then: int = -1


Outcome = int | Wait
"""The block at which threads continue (-1: they exit), or the event that they wait for."""

Split = list[tuple[NDArray[np.bool_], Outcome]]
"""Threads [n] of a fragment that go on differently; every thread is in one of the masks."""


class Threads:
    """
    A set of threads of a CTA and all that follows from it. `Cta.threads` keeps one for each set.

    Attributes:
        lanes: Thread numbers, ascending [n].
        s: The same as an index of the register files' last axis: a slice where they are adjacent.
        n: Number of threads.
        warps: Warps of the threads, ascending.
        warp_starts: Index in `lanes` of each warp's first thread.
        counts: Threads of each warp.
        agents: Clock agents of `warps`.
        agent_of: Clock agent of each thread [n].
        num_warps: Number of warps.
    """

    def __init__(self, cta: Cta, lanes: NDArray[np.int64]) -> None:
        self._cta = cta
        self._parts: dict[bytes, Threads] = {}
        self._unions: dict[Threads, Threads] = {}
        self.lanes = lanes
        self.n = n = len(lanes)
        first, last = int(lanes[0]), int(lanes[-1])
        self.s: slice | NDArray[np.int64] = (
            slice(first, last + 1) if last - first + 1 == n else lanes
        )
        warp_of, self.warps, self.warp_starts, self.counts = _warps_of(lanes.tobytes())
        self.agents: NDArray[np.int64] = self.warps + cta.agent0
        self.agent_of: NDArray[np.int64] = warp_of + cta.agent0
        self.num_warps = len(self.warps)

    def part(self, mask: NDArray[np.bool_]) -> Threads:
        """
        Return the threads of this set under the mask [n]; cached, because loops repeat branches.
        """
        key = mask.tobytes()
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._cta.threads(self.lanes[mask])
        return found

    def union(self, other: Threads) -> Threads:
        """
        Return the set of these threads and of `other` ones of the same CTA; cached, as `part`.
        """
        found = self._unions.get(other)
        if found is None:
            lanes = np.sort(np.concatenate([self.lanes, other.lanes]))
            found = self._unions[other] = self._cta.threads(lanes)
        return found

    def members(self, warp: int, mask: NDArray[np.bool_] | None = None) -> int:
        """Return a bit for each lane of a warp that is in the set, and under the mask [n]."""
        is_mine = self.lanes // WARP == warp
        if mask is not None:
            is_mine &= mask
        return int(np.left_shift(1, self.lane_ids[is_mine]).sum())

    @cached_property
    def lane_ids(self) -> NDArray[np.int64]:
        """Position of each thread in its warp, 0..31 [n]."""
        return self.lanes % WARP

    @cached_property
    def is_here(self) -> NDArray[np.bool_]:
        """Whether each lane of the warps is in the set [num_warps, 32]; do not write to it."""
        here = np.zeros(self.num_warps * WARP, np.bool_)
        here[self.in_warps] = True
        here.flags.writeable = False
        return here.reshape(-1, WARP)

    @cached_property
    def lowest_lanes(self) -> NDArray[np.uint32]:
        """The lowest lane in the set of each thread's warp [n]; do not write to it."""
        lanes = np.repeat(self.lane_ids[self.warp_starts], self.counts).astype(np.uint32)
        lanes.flags.writeable = False
        return lanes

    @cached_property
    def in_warps(self) -> NDArray[np.int64]:
        """Position of each thread in a [num_warps, 32] table, in row-major order [n]."""
        return np.repeat(np.arange(self.num_warps), self.counts) * WARP + self.lane_ids


@lru_cache(maxsize=1 << 12)
def _warps_of(lanes: bytes) -> tuple[NDArray[np.int64], ...]:
    """
    Return the warp of each thread, the warps, and of each the index of its first thread and the
    number of its threads.

    The arrays are the same in every CTA; do not write to them.
    """
    warp_of = np.frombuffer(lanes, np.int64) // WARP
    found = (warp_of, *np.unique(warp_of, return_index=True, return_counts=True))
    for array in found:
        array.flags.writeable = False
    return found


class Fragment:
    """
    Threads of one CTA at one block. See `Threads` for the attributes that they share.

    Attributes:
        cta, cluster, machine: The CTA, the cluster and the machine that run it.
        threads: The set of threads.
        block: The basic block that it executes next.
        seen: For `is_spinning`: what an instruction met the last time.
        is_forced: Whether nothing else can run, so that a thread that spins goes round once more.
    """

    __slots__ = (
        "agent_of", "agents", "block", "cluster", "cta", "is_forced", "lanes", "machine", "n", "s",
        "seen", "threads", "warp_starts", "warps",
    )  # fmt: skip

    def __init__(self, cta: Cta, threads: Threads, block: int = 0) -> None:
        self.cta: Cta = cta
        self.cluster: Cluster = cta.cluster
        self.machine: Machine = cta.machine
        self.threads: Threads = threads
        self.lanes: NDArray[np.int64] = threads.lanes
        self.s: slice | NDArray[np.int64] = threads.s
        self.n: int = threads.n
        self.warps: NDArray[np.int64] = threads.warps
        self.warp_starts: NDArray[np.int64] = threads.warp_starts
        self.agents: NDArray[np.int64] = threads.agents
        self.agent_of: NDArray[np.int64] = threads.agent_of
        self.block = block
        self.seen: dict[int, tuple[int, object]] = {}
        self.is_forced = False

    def spread(self, x: NDArray[Scalar] | Scalar) -> NDArray[Scalar]:
        """Return `x`, a scalar or an array [n], with one element for each thread."""
        if isinstance(x, np.generic):
            spread = np.empty(self.n, x.dtype)
            spread.fill(x)
            return spread
        if isinstance(x, np.ndarray) and x.shape == (self.n,):
            return x
        return np.repeat(x, self.n)

    def selected(self, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the indices, 0..n-1, of the threads under the mask; None selects all."""
        return np.arange(self.n) if mask is None else np.flatnonzero(mask)

    def selected_warps(self, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the clock agents of the warps that have a thread under the mask."""
        if mask is None:
            return self.agents
        return self.threads.part(mask).agents if np.count_nonzero(mask) else self.agents[:0]

    def agents_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Return the clock agents, ascending, of the warps of one or more threads, given as indices
        0..n-1.
        """
        if len(self.agents) == 1:
            return self.agents
        return np.array(sorted(set(self.agent_of[indices].tolist())))

    def part(self, mask: NDArray[np.bool_]) -> Fragment:
        """Return a fragment of the threads under the mask, at the same block."""
        part = Fragment(self.cta, self.threads.part(mask), self.block)
        part.seen = dict(self.seen)
        return part

    def is_whole(self) -> bool:
        """Return whether every warp has all its living threads here."""
        threads = self.threads
        if threads.n == threads.num_warps * WARP:
            return True
        lacks_lanes = threads.counts != self.cta.live[threads.warps]
        return not np.count_nonzero(lacks_lanes)

    def has(self, members: int) -> NDArray[np.bool_]:
        """Return for each warp whether all lanes of a member mask, or all living ones, are here."""
        threads = self.threads
        named = (np.uint32(members) >> np.arange(WARP, dtype=np.uint32) & np.uint32(1)) != 0
        is_whole: NDArray[np.bool_] = threads.counts == self.cta.live[threads.warps]
        return np.logical_or(np.all(threads.is_here[:, named], axis=1), is_whole)

    def is_spinning(self, at: int, stamp: int, found: object = None) -> bool:
        """
        Return whether instruction `at` found the same as the last time, and nothing happened in
        between.

        The threads then loop until another agent does something, and the caller returns a Wait.
        If that would stop all threads, the machine lets them go round again (`is_forced`), since a
        loop may count.

        Args:
            at: Index of the instruction.
            stamp: A number that every event changes, as `cluster.events`.
            found: Value that the instruction found, compared with ``==``.
        """
        previous = self.seen.get(at)
        self.seen[at] = (stamp, found)
        return previous == (stamp, found) and not self.is_forced

    def fault(self, at: int, message: str) -> NoReturn:
        """Raise MachineFault with the place of instruction `at`, CTA and threads."""
        faults.fault(self, at, message)

    def warn(self, at: int, kind: str, message: str) -> None:
        """Record a finding; see `faults.Finding`."""
        faults.warn(self, at, kind, message)


def merge(one: Fragment, other: Fragment) -> Fragment:
    """Return one fragment of the threads of two, which are at the same block of the same CTA."""
    merged = Fragment(one.cta, one.threads.union(other.threads), one.block)
    merged.seen = one.seen | other.seen
    merged.is_forced = one.is_forced or other.is_forced
    return merged


def agree(values: PerThread) -> bool:
    """Return whether all threads have the same value: a scalar, or an array [n] of equal ones."""
    if not isinstance(values, np.ndarray) or len(values) == 1:
        return True
    return values.tobytes() == values[:1].tobytes() * len(values)
