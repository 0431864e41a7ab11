# SPDX-License-Identifier: Apache-2.0
"""
The lanes that accessed each granule; finds accesses of two lanes of one warp that nothing orders.

For each granule the lane of the last ordinary write is kept, and for each warp the lane of its last
read. They are read only where the history says that this warp was the last, and that its lanes have
not synchronised since; so recording lanes costs time, and little else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import NO_AGENT, Agents, Clocks
from jitgen.emulator.machine.lanes import APART, MANY, ORDERED
from jitgen.emulator.machine.lazy_zeros import lazy_zeros
from jitgen.emulator.machine.readers import AT_BITS, AT_MASK, Bounds, Granules, Readers
from jitgen.emulator.machine.representatives import LeftOut, Represented

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

LaneNumbers = int | NDArray[np.int64]
"""A lane 0..31, or `MANY`; one for all granules, or for each [k]."""

_TOGETHER = MANY + 1
"""The lane of a granule that several lanes wrote in one instruction: each reads its own value."""

_WARPS = 32
_EPOCH_BITS = 32
_AGENT_SHIFT = AT_BITS + _EPOCH_BITS
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1

_APART = "nothing orders the two"
_CONVERGED = (
    "only waiting for each other lies between, and the PTX ISA does not say that it orders memory: "
    "bar.warp.sync does"
)


@dataclass(frozen=True, slots=True)
class Clash:
    """
    Two lanes that access one granule.

    Attributes:
        kind: Kind of the earlier access.
        position: Index of the granule among those of the later access.
        at: The instruction of the earlier access.
        warp: The agent of both lanes.
        lanes: The earlier and the later one.
        is_apart: Whether the lanes did not even wait for each other between the two accesses.
    """

    kind: str
    position: int
    at: int
    warp: int
    lanes: tuple[int, int]
    is_apart: bool


class LaneHistory:
    """The lanes that accessed one memory; its readers and last writes are the history's."""

    def __init__(self, clocks: Clocks, granules: int, readers: Readers) -> None:
        self._clocks, self._size = clocks, granules
        self._readers = readers
        self._wrote: NDArray[np.uint8] = np.zeros(granules, np.uint8)
        self._read: NDArray[np.uint8] = lazy_zeros((_WARPS, granules), np.uint8)

    # --- recording --------------------------------------------------------------------------------

    def note_write(self, granules: Granules, lanes: LaneNumbers) -> None:
        """Note the lanes of a write to `granules`: one lane for all of them, or one for each."""
        self._wrote[granules] = lanes
        if isinstance(lanes, np.ndarray) and not isinstance(granules, slice):
            others = self._wrote[granules] != lanes
            if np.count_nonzero(others):
                self._wrote[granules[others]] = _TOGETHER

    def note_read(self, granules: Granules, agents: Agents, lanes: LaneNumbers) -> None:
        """
        Note which lanes read granules.

        Args:
            granules: The granules that were read.
            agents: The warps that read: one for all granules, or one for each.
            lanes: The lanes of these warps, in the same form.
        """
        rows = agents & (_WARPS - 1)
        if isinstance(granules, slice):
            self._read[rows, granules] = lanes
            return
        where = rows * self._size + granules
        read = self._read.reshape(-1)
        read[where] = lanes
        others = read[where] != lanes
        if np.count_nonzero(others):
            read[where[others]] = MANY

    def move(self, granule: int, to: LaneHistory, granules: slice) -> None:
        """Copy the lanes of one granule to `granules` of another memory."""
        to._wrote[granules] = self._wrote[granule]
        to._read[:, granules] = self._read[:, granule, None]

    # --- asking -----------------------------------------------------------------------------------

    def after_write(
        self, last: NDArray[np.int64], granules: Granules, rows: Agents, lanes: LaneNumbers
    ) -> Clash | None:
        """
        Return a last write by another lane of the same warp that is not ordered before now; None if
        there is none.

        Args:
            last: Last writes of the granules, packed as in the history [k], or one for all [1].
            granules: The accessed granules.
            rows: The warps of the lanes, by their agents.
            lanes: The lanes that access.
        """
        known = self._clocks.lanes.known
        if len(last) == 1:  # as nearly always
            unit, epoch = int(last[0]) >> _AGENT_SHIFT, int(last[0]) >> AT_BITS & _EPOCH_MASK
            if known[unit] >= epoch or unit == NO_AGENT:
                return None
        units, epochs = last >> _AGENT_SHIFT, (last >> AT_BITS) & _EPOCH_MASK
        is_own = self._clocks.lanes.writers_of(units) == rows
        if not np.count_nonzero(is_own):
            return None
        is_fresh = is_own & (epochs > known[units])
        if not np.count_nonzero(is_fresh):
            return None
        wrote = self._wrote[granules]
        is_other = is_fresh & (wrote != _TOGETHER) & ((wrote != lanes) | (wrote == MANY))
        return self._first("write", is_other, wrote, np.broadcast_to(last, is_other.shape), lanes)

    def after_reads(
        self,
        kinds: frozenset[str],
        granules: Granules,
        bounds: Bounds,
        rows: Agents,
        lanes: LaneNumbers,
    ) -> Clash | None:
        """
        Return a read of `kinds`, since the last write, by another lane of the same warp, that is
        not ordered before now; None if there is none.
        """
        known, owner = self._clocks.lanes.known, self._clocks.lanes.owner
        groups = self._readers.groups
        for plane, latest in bounds.items():
            group = groups[plane]
            unit = group.agent
            if unit < 0 or known[unit] >= latest >> AT_BITS or group.kind not in kinds:
                continue
            warp, lane = owner.get(unit, (unit, -1))
            is_own = np.asarray(rows) == warp
            if not np.count_nonzero(is_own):
                continue
            stamps = self._readers.stamps(plane, granules)
            read = self._read[warp & (_WARPS - 1), granules] if lane < 0 else np.array(lane)
            is_other = is_own & (stamps >> AT_BITS > known[unit])
            is_other = is_other & ((read != lanes) | (read == MANY))
            read = np.broadcast_to(read, is_other.shape)
            packed = unit << _AGENT_SHIFT | stamps
            found = self._first(group.kind, is_other, read, packed, lanes)
            if found is not None:
                return found
        return None

    def left_out(
        self,
        kinds: frozenset[str],
        granules: Granules,
        last: NDArray[np.int64],
        bounds: Bounds,
        rows: NDArray[np.int64],
        warps: frozenset[int],
    ) -> LeftOut | None:
        """
        Return an earlier access by one of `warps` that only another lane's arrival orders before
        now; None if there is none.

        Args:
            kinds: Accesses since the last write that count.
            granules: The accessed granules.
            last: Last writes, packed as in the history [k], or one for all [1].
            bounds: The planes of readers with accesses to them, as `Readers.on` returns them.
            rows: The agents that must be ordered after it: one for all, or for each granule [k], or
                several for all.
            warps: Warps whose lanes are recorded at every access.
        """
        own = warps & self._clocks.representatives.gaps.keys()
        size = len(self._wrote[granules])
        writers = last >> _AGENT_SHIFT
        for agent in own & set(writers.tolist()):
            stamps = np.where(writers == agent, last & (1 << _AGENT_SHIFT) - 1, 0)
            stamps, lanes = np.broadcast_to(stamps, size), self._wrote[granules]
            if found := self._left_out("write", agent, stamps, lanes, rows):
                return found
        for plane in bounds:
            group = self._readers.groups[plane]
            if group.agent in own and group.kind in kinds:
                stamps = self._readers.stamps(plane, granules)
                lanes = self._read[group.agent & (_WARPS - 1), granules]
                if found := self._left_out(group.kind, group.agent, stamps, lanes, rows):
                    return found
        return None

    def _left_out(
        self,
        kind: str,
        agent: int,
        stamps: NDArray[np.int64],
        lanes: NDArray[np.uint8],
        rows: NDArray[np.int64],
    ) -> LeftOut | None:
        """
        Return one of some accesses [k] of a warp that another lane's arrival does not release; None
        if there is none.
        """
        settled = set()
        of_each = rows if len(rows) == len(stamps) else None
        for position in np.flatnonzero(stamps).tolist():
            stamp, lane = int(stamps[position]), int(lanes[position])
            for row in rows.tolist() if of_each is None else (int(of_each[position]),):
                if (stamp, lane, row) in settled:
                    continue
                settled.add((stamp, lane, row))
                at, epoch = stamp & AT_MASK, stamp >> AT_BITS
                earlier = Represented(kind, position, at, agent, epoch, lane)
                found = self._clocks.representatives.find(row, earlier)
                if found is not None:
                    return found
        return None

    def writer(self, granules: Granules, position: int) -> int:
        """Return the lane of the last ordinary write of one of the granules."""
        return int(self._wrote[granules][position])

    def _first(
        self,
        kind: str,
        is_other: NDArray[np.bool_],
        earlier: NDArray[np.uint8],
        packed: NDArray[np.int64],
        lanes: LaneNumbers,
    ) -> Clash | None:
        """Return the worst clash of accesses [k] by two lanes; None if all of them are ordered."""
        found: Clash | None = None
        settled = set()
        for position in np.flatnonzero(is_other).tolist():
            number = int(packed[position])
            unit, epoch = number >> _AGENT_SHIFT, number >> AT_BITS & _EPOCH_MASK
            lane = int(lanes[position] if isinstance(lanes, np.ndarray) else lanes)
            key = (unit, epoch, int(earlier[position]), lane)
            if key in settled:
                continue
            settled.add(key)
            warp = self._clocks.lanes.owner.get(unit, (unit,))[0]
            order = self._order(unit, warp, epoch, (key[2], lane))
            if order == ORDERED:
                continue
            clash = Clash(kind, position, number & AT_MASK, warp, (key[2], lane), order == APART)
            if clash.is_apart:
                return clash
            found = found or clash
        return found

    def _order(self, unit: int, warp: int, epoch: int, lanes: tuple[int, int]) -> str:
        """
        Return how accesses of two lanes are ordered; those of a unit count from when its lane
        waited for it.
        """
        if unit != warp:
            epoch = self._clocks.lanes.waited_for(unit, epoch)
        return self._clocks.lanes.order(warp, epoch, *lanes)


def report(f: Fragment, at: int, what: str, place: str, clash: Clash) -> None:
    """Report a clash; `what` says what the later lane does with `place`."""
    earlier, later = ("several lanes" if x == MANY else f"lane {x}" for x in clash.lanes)
    kind, lacks = ("race", _APART) if clash.is_apart else ("convergence", _CONVERGED)
    warp = f.cluster.clocks.name(clash.warp)
    f.warn(
        at,
        kind,
        f"{what} of {place} by {later} of {warp} comes after the {clash.kind} by {earlier} of the "
        f"same warp: {lacks}\n  at {f.machine.program.place(clash.at)}",
    )
