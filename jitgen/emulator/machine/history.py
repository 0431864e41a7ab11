# SPDX-License-Identifier: Apache-2.0
"""
The happens-before checker: finds two accesses to the same place that are not ordered.

A memory is cut into granules. For each the last write is kept, with agent, epoch and instruction,
and the accesses since (`readers`). A later access that must not run at the same time must be
ordered after them, by the clock of its agent. It does not matter whether two accesses actually
collide in this run. So a missing barrier, fence or wait is found in every schedule in which the
accesses occur.

A write that is ordered after all earlier accesses replaces them from then on, because an access
that is ordered after the write is also ordered after them. PTX ISA, section "Memory Consistency
Model": data races, morally strong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine import representatives
from jitgen.emulator.machine.access import (
    READ,
    RELAXED_READ,
    RELAXED_WRITE,
    WRITE,
    Access,
    StrongKinds,
)
from jitgen.emulator.machine.clocks import Agents, Clock, Clocks
from jitgen.emulator.machine.lane_history import LaneHistory, report
from jitgen.emulator.machine.readers import AT_BITS, AT_MASK, Bounds, Earlier, Granules, Readers

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment


_EXCLUDES = {
    READ: frozenset({RELAXED_WRITE}),
    WRITE: frozenset({READ, RELAXED_READ, RELAXED_WRITE}),
    RELAXED_READ: frozenset[str](),
    RELAXED_WRITE: frozenset({READ}),
}
"""
Which accesses each kind must know of; besides, each must know of the last write, and a relaxed one
of those that are not morally strong with it.
"""

_RELAXED = frozenset({RELAXED_READ, RELAXED_WRITE})

_EPOCH_BITS = 32
_AGENT_SHIFT = AT_BITS + _EPOCH_BITS
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1


class History:
    """
    The accesses of one memory.

    Attributes:
        is_checked: Whether accesses are checked: if not, nothing is noted and nothing found.
        warps: Agents of the warps whose lanes are recorded at every access.
        strong: The kinds of relaxed accesses that occurred, distinguished by scope and CTA.
    """

    def __init__(self, clocks: Clocks, granules: int, describe: Callable[[int], str]) -> None:
        """
        Begin with no access.

        Args:
            clocks: The vector clocks of the cluster.
            granules: Number of granules of the memory.
            describe: Returns the place of a granule in words.
        """
        self.is_checked = True
        self.warps: frozenset[int] = frozenset()
        self.strong = StrongKinds()
        self.readers = Readers(clocks, granules)
        self._clocks = clocks
        self._describe = describe
        self._lanes = LaneHistory(clocks, granules, self.readers)
        self._last: NDArray[np.int64] = np.zeros(granules, np.int64)

    def write(
        self, f: Fragment, at: int, granules: Granules, agents: Agents, epochs: Agents, rows: Agents
    ) -> None:
        """Note an ordinary write of `granules` [k]; see `Access` and `access`."""
        self.access(f, at, granules, Access(WRITE, agents, epochs, rows))

    def read(
        self, f: Fragment, at: int, granules: Granules, agents: Agents, epochs: Agents, rows: Agents
    ) -> None:
        """Note an ordinary read of `granules` [k]; see `Access` and `access`."""
        self.access(f, at, granules, Access(READ, agents, epochs, rows))

    def access(self, f: Fragment, at: int, granules: Granules, access: Access) -> None:
        """
        Note an access, and report an earlier one that must be ordered before it and is not.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            granules: A slice with ends, or numbers [k], in any order, also repeated; for a joint
                access they ascend.
            access: The accessing agents, and the kind of access.
        """
        last = self._last[granules]
        if not self.is_checked or not last.size:
            return
        first = last[0]
        if not np.count_nonzero(last != first):
            last = last[:1]
            earlier = self._find_only_write(int(first), access)
        else:
            earlier = self._find_write(last, access)
        if access.is_async:
            self._check_fenced(f, at, granules, last, access)
        excluded, bounds = self._excluded(access), {}
        if not excluded.isdisjoint(self.readers.kinds):
            bounds = self.readers.on(granules)
            if bounds and earlier is None:
                earlier = self._find_reader(excluded, granules, bounds, access)
        if earlier is not None:
            self._report(f, at, granules, access, earlier)
        elif access.lanes is not None:
            self._check_lanes(f, at, granules, last, bounds, access, excluded)
        if earlier is None and self._clocks.representatives.gaps and self.warps:
            self._check_representatives(f, at, granules, last, bounds, access, excluded)
        self._record(f, at, granules, bounds, access)

    def read_apart(
        self,
        at: int,
        granules: list[slice],
        agents: tuple[int, ...],
        epochs: tuple[int, ...],
        rows: NDArray[np.int64],
    ) -> bool:
        """
        Note asynchronous reads by several units, each of granules of its own, all at once.

        The reads are noted if one write made all of the contents, there were no relaxed writes, and
        all rows are ordered after this write and its fence. Otherwise nothing is noted, the result
        is False, and the caller must use `access`.

        Args:
            at: Index of the instruction.
            granules: The granules that each unit reads.
            agents: The units [m].
            epochs: Epochs of the units [m].
            rows: The agents that must be ordered after that write [m].
        """
        if not self.is_checked:
            return True
        last = self._last[min(x.start for x in granules) : max(x.stop for x in granules)]
        first = int(last[0])
        agent, epoch = first >> _AGENT_SHIFT, (first >> AT_BITS) & _EPOCH_MASK
        shadow = self._clocks.shadow_of[agent]
        known = self._clocks.vector[rows]
        if (
            np.count_nonzero(last != first)
            or not self.strong.named(_EXCLUDES[READ]).isdisjoint(self.readers.kinds)
            or np.count_nonzero(known[:, agent] < epoch)
            or (shadow and np.count_nonzero(known[:, shadow] < epoch))
        ):
            return False
        for some, reader, when in zip(granules, agents, epochs, strict=True):
            self.readers.record(at, READ, some, reader, when)
        return True

    def move(self, granule: int, to: History, granules: slice) -> None:
        """Move the recorded accesses to one granule to `granules` of another memory."""
        to._last[granules] = self._last[granule]
        self._last[granule] = 0
        self.readers.move(granule, to.readers, granules)
        self._lanes.move(granule, to._lanes, granules)

    # --- inside -----------------------------------------------------------------------------------

    def _excluded(self, access: Access) -> frozenset[str]:
        """
        Return the kinds of earlier accesses, besides the last write, that must be ordered before an
        access.
        """
        excluded = self.strong.named(_EXCLUDES[access.kind])
        if access.kind in _RELAXED:
            excluded |= self.strong.unlike(access.kind, access.scope, access.rank)
        return excluded

    def _lowest(self, access: Access) -> Clock:
        """Return a clock that is at most that of each agent in an access's `rows`."""
        rows, vector = access.rows, self._clocks.vector
        lowest: Clock
        if not isinstance(rows, np.ndarray):
            lowest = vector[rows]
        elif access.is_joint:
            lowest = np.minimum.reduce(vector[rows])
        else:
            low, high = np.minimum.reduce(rows), np.maximum.reduce(rows)
            lowest = np.minimum.reduce(vector[low : high + 1])
        return lowest

    def _find_only_write(self, last: int, access: Access) -> Earlier | None:
        """Return the last write, one for all granules; None if it is ordered before the access."""
        agent, epoch = last >> _AGENT_SHIFT, (last >> AT_BITS) & _EPOCH_MASK
        known = self._clocks.vector[access.rows, agent]
        position = 0
        if isinstance(known, np.ndarray):
            lowest = int(known.argmin())
            known = known[lowest]
            position = 0 if access.is_joint else lowest
        return None if known >= epoch else Earlier(WRITE, agent, last & AT_MASK, position)

    def _find_write(self, last: NDArray[np.int64], access: Access) -> Earlier | None:
        """
        Return one of the last writes [k] that is not ordered before the access; None if all are.
        """
        agents, epochs = last >> _AGENT_SHIFT, (last >> AT_BITS) & _EPOCH_MASK
        unknown = self._lowest(access)[agents] < epochs
        if isinstance(access.rows, np.ndarray) and not access.is_joint and unknown.any():
            unknown = self._clocks.vector[access.rows, agents] < epochs
        position = int(unknown.argmax())
        if not unknown[position]:
            return None
        return Earlier(WRITE, int(agents[position]), int(last[position]) & AT_MASK, position)

    def _find_reader(
        self, excluded: frozenset[str], granules: Granules, bounds: Bounds, access: Access
    ) -> Earlier | None:
        """
        Return an access since the last write, of a kind in `excluded`, that is not ordered before
        `access`; None if there is none.
        """
        lowest = self._lowest(access)
        rows: list[int | NDArray[np.int64]] = [access.rows]
        if access.is_joint:
            rows = sorted(set(np.asarray(access.rows).tolist()))
        found = (self.readers.find(excluded, granules, bounds, row, lowest) for row in rows)
        return next((earlier for earlier in found if earlier is not None), None)

    def _check_fenced(
        self,
        f: Fragment,
        at: int,
        granules: Granules,
        last: NDArray[np.int64],
        access: Access,
    ) -> None:
        """
        Report ordinary writes that an asynchronous access need not see, or come after.

        Between the two there must be a fence.proxy.async, executed by an agent that is ordered
        after the write. A write that the access is not ordered after is a race instead. PTX ISA,
        section "Proxies".
        """
        agents = last >> _AGENT_SHIFT
        shadows = self._clocks.shadow_of[agents]
        if not np.count_nonzero(shadows):
            return
        lowest, epochs = self._lowest(access), (last >> AT_BITS) & _EPOCH_MASK
        is_unseen = (lowest[shadows] < epochs) & (lowest[agents] >= epochs)
        if not np.count_nonzero(is_unseen):
            return
        if len(last) == 1:  # of all granules, whose lanes may differ
            last = self._last[granules]
            is_unseen = np.repeat(is_unseen, len(last))
        for position in np.flatnonzero(is_unseen).tolist():
            agent, epoch = int(last[position]) >> _AGENT_SHIFT, int(last[position]) >> AT_BITS
            lane = self._lanes.writer(granules, position)
            if self._clocks.lanes.is_fenced(agent, epoch & _EPOCH_MASK, lane):
                continue
            f.warn(
                at,
                "proxy",
                f"no fence.proxy.async between the write of {self._name(granules, position)} by "
                f"{self._clocks.name(agent)} and its asynchronous {access.kind}\n"
                f"  at {f.machine.program.place(int(last[position]) & AT_MASK)}",
            )
            return

    def _check_lanes(
        self,
        f: Fragment,
        at: int,
        granules: Granules,
        last: NDArray[np.int64],
        bounds: Bounds,
        access: Access,
        excluded: frozenset[str],
    ) -> None:
        """
        Report an earlier access to a granule by another lane of the same warp that is not ordered
        before this lane's.
        """
        assert access.lanes is not None
        clash = self._lanes.after_write(last, granules, access.rows, access.lanes)
        kinds = excluded - self.strong.named(frozenset({RELAXED_WRITE}))
        if clash is None and kinds and bounds:
            clash = self._lanes.after_reads(kinds, granules, bounds, access.rows, access.lanes)
        if clash is not None:
            place = self._name(granules, clash.position)
            report(f, at, access.kind, place, clash)

    def _check_representatives(
        self,
        f: Fragment,
        at: int,
        granules: Granules,
        last: NDArray[np.int64],
        bounds: Bounds,
        access: Access,
        excluded: frozenset[str],
    ) -> None:
        """
        Report an earlier access that only the arrival of another lane of its warp orders before
        this one.
        """
        found = self._lanes.left_out(
            excluded, granules, last, bounds, np.atleast_1d(access.rows), self.warps
        )
        if found is not None:
            representatives.report(
                f, at, f"{access.kind} of {self._name(granules, found.position)}", found
            )

    def _record(
        self, f: Fragment, at: int, granules: Granules, bounds: Bounds, access: Access
    ) -> None:
        agents, epochs = access.agents, access.epochs
        if access.lanes is not None:
            if access.kind == WRITE:
                self._lanes.note_write(granules, access.lanes)
            elif access.is_own:
                self._lanes.note_read(granules, agents, access.lanes)
        if access.kind == WRITE:
            self.readers.clear(granules, bounds)
            packed = agents << _AGENT_SHIFT | epochs << AT_BITS | at
            self._last[granules] = packed
            if isinstance(packed, np.ndarray):
                self._check_collision(f, at, granules, access, packed)
        elif access.is_joint:
            assert isinstance(agents, np.ndarray)
            assert isinstance(epochs, np.ndarray)
            self.readers.record_joint(at, access.kind, granules, agents, epochs)
        else:
            kind = access.kind
            if kind in _RELAXED:
                kind = self.strong.name(kind, access.scope, access.rank)
            self.readers.record(at, kind, granules, agents, epochs)

    def _check_collision(
        self, f: Fragment, at: int, granules: Granules, access: Access, packed: NDArray[np.int64]
    ) -> None:
        """Report two agents that write one granule in one instruction: only one write is left."""
        left = self._last[granules]
        differs = left != packed
        if np.count_nonzero(differs):
            position = int(differs.argmax())
            agent = int(left[position]) >> _AGENT_SHIFT
            self._report(f, at, granules, access, Earlier(WRITE, agent, at, position))

    def _report(
        self, f: Fragment, at: int, granules: Granules, access: Access, earlier: Earlier
    ) -> None:
        position = earlier.position
        who, name = access.agents, self._clocks.name
        if access.is_joint:
            knowledge = self._clocks.vector[access.rows, earlier.agent]
            who = np.asarray(who)[knowledge.argmin()]
        elif isinstance(who, np.ndarray):
            who = who[position]
        f.warn(
            at,
            "race",
            f"{access.kind} of {self._name(granules, position)} by {name(int(who))} is not ordered "
            f"after the {earlier.kind} by {name(earlier.agent)}\n"
            f"  at {f.machine.program.place(earlier.at)}",
        )

    def _name(self, granules: Granules, position: int) -> str:
        """Return the text that names one of `granules`."""
        if isinstance(granules, slice):
            return self._describe(granules.start + position)
        return self._describe(int(granules[position]))
