# SPDX-License-Identifier: Apache-2.0
"""
The order between lanes of one warp.

A warp is one agent of the clocks, but what one lane writes another may read only if something
between them orders memory. So each agent has, beside its epoch, the epoch up to which *all* lanes
of its warp are ordered after its work. ``bar.warp.sync`` of the whole warp brings it up to now, and
so does a barrier that the warp arrived at and waits for, which hands its own work back to it.

Units that one lane waits for, such as its bulk groups, belong to that lane: others are ordered
after their work only after they have been brought together with it.

PTX ISA, section "bar.warp.sync": it orders the memory accesses of the threads that take part.
Sections "shfl.sync", "vote.sync", "match.sync", "redux.sync" and "elect.sync" only say that the
executing thread waits for the others, nothing about memory. Whether lanes that came together so see
each other's data is left open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDERED, CONVERGED, APART = "ordered", "converged", "apart"
"""How two accesses of two lanes stand to each other: by memory, by waiting only, not at all."""

MANY = 32
"""Stands for the lane of what several lanes access together; no lane is the same as it."""

ALL_LANES = -1
"""The lane of a unit that belongs to a whole warp."""

EVERYONE = 0xFFFFFFFF

FOREVER = 2**62
"""Later than any epoch."""

_MAX_MEETINGS = 128


@dataclass(frozen=True, slots=True)
class Meeting:
    """
    Some lanes of a warp that waited for each other.

    Attributes:
        epoch: The warp's: accesses up to it came before.
        members: A bit for each lane.
        orders: Whether it orders memory, too.
    """

    epoch: int
    members: int
    orders: bool


class Lanes:
    """
    The lanes of the warps of one cluster.

    Attributes:
        known: For each agent [capacity] the epoch up to which its work is ordered before all lanes
            of its warp.
        owner: For each unit for which only one lane waits, the agent of the warp, and the lane.
    """

    def __init__(self, capacity: int) -> None:
        self.known: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.owner: dict[int, tuple[int, int]] = {}
        self._units: dict[int, list[int]] = {}
        self._writers: NDArray[np.int64] | None = None
        self._waited: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._meetings: dict[int, list[Meeting]] = {}
        self._fences: dict[int, NDArray[np.int64]] = {}
        self._ends: dict[int, list[tuple[int, int]]] = {}

    def grow(self, more: int) -> None:
        """Make room for `more` agents."""
        self.known = np.pad(self.known, (0, more))
        self._waited = np.pad(self._waited, (0, more))
        if self._writers is not None:
            first = len(self._writers)
            self._writers = np.append(self._writers, np.arange(first, first + more))

    def own(self, unit: int, warp: int, lane: int, *, writes: bool = False) -> None:
        """
        Assign a unit to a lane of a warp.

        Args:
            unit: Agent of the unit.
            warp: The warp's agent.
            lane: The lane; `MANY` for several.
            writes: Whether it writes to shared memory by ordinary accesses of its lanes.
        """
        self.owner[unit] = (warp, lane)
        self._units.setdefault(warp, []).append(unit)
        if writes:
            if self._writers is None:
                self._writers = np.arange(len(self.known))
            self._writers[unit] = warp

    def writers_of(self, agents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each agent the warp whose lanes it writes for, or the agent itself."""
        return agents if self._writers is None else self._writers[agents]

    def complete(self, vector: NDArray[np.int64], unit: int) -> None:
        """Note that a unit's lane has waited for the unit's work that its warp is ordered after."""
        warp = self.owner[unit][0]
        ends = self._ends.setdefault(unit, [])
        ends.append((int(vector[warp, unit]), int(vector[warp, warp])))
        del ends[:-_MAX_MEETINGS]

    # --- who comes together -----------------------------------------------------------------------

    def bring(self, vector: NDArray[np.int64], agents: NDArray[np.int64]) -> None:
        """Order all lanes of the warps of `agents` [k] after each other's work."""
        self.known[agents] = vector[agents, agents]
        vector[agents, agents] += 1
        for agent in agents.tolist() if self._units else ():
            for unit in self._units.get(agent, ()):
                self.known[unit] = vector[agent, unit]

    def take_back(self, agents: int | NDArray[np.int64], clock: NDArray[np.int64]) -> None:
        """
        Note that warps acquire `clock`: all lanes of each warp are ordered after the warp's own
        work that the clock includes.
        """
        known = self.known
        if isinstance(agents, np.ndarray):
            mine = agents if agents[-1] < len(clock) else agents[agents < len(clock)]
            known[mine] = np.maximum(known[mine], clock[mine])
        elif agents < len(clock) and clock[agents] > known[agents]:
            known[agents] = clock[agents]
        if self._units:
            for agent in agents.tolist() if isinstance(agents, np.ndarray) else (agents,):
                for unit in self._units.get(agent, ()):
                    if unit < len(clock) and clock[unit] > known[unit]:
                        known[unit] = clock[unit]

    def wait(self, vector: NDArray[np.int64], agents: NDArray[np.int64]) -> None:
        """Note that all lanes of warps [k] waited for each other, which does not order memory."""
        if len(agents) == 1:  # as nearly always, and ten times as fast
            agent = int(agents[0])
            self._waited[agent] = epoch = vector[agent, agent]
            vector[agent, agent] = epoch + 1
            return
        self._waited[agents] = vector[agents, agents]
        vector[agents, agents] += 1

    def meet(self, vector: NDArray[np.int64], agent: int, members: int, *, orders: bool) -> None:
        """Note that lanes of a warp waited for each other; `orders`: that orders memory, too."""
        found = self._meetings.setdefault(agent, [])
        found.append(Meeting(int(vector[agent, agent]), members, orders))
        vector[agent, agent] += 1
        if len(found) > _MAX_MEETINGS:
            forgotten = found.pop(0)
            self.known[agent] = max(self.known[agent], forgotten.epoch)

    def order(self, agent: int, epoch: int, lane: int, other: int) -> str:
        """
        Return how an access of `lane` in an epoch of its warp is ordered with one of `other` now.

        Args:
            agent: The warp.
            epoch: Epoch of the earlier access, which not all lanes are ordered after.
            lane: The lane that made it; `MANY` for several lanes.
            other: The lane that makes the later one; `MANY` for several lanes.
        """
        meetings = [x for x in self._meetings.get(agent, ()) if x.epoch >= epoch]
        if _reaches(lane, other, [x for x in meetings if x.orders]):
            return ORDERED
        if self._waited[agent] >= epoch or _reaches(lane, other, meetings):
            return CONVERGED
        return APART

    def waited(self, agent: int) -> int:
        """Return the epoch in which all lanes of a warp last waited for each other."""
        return int(self._waited[agent])

    def order_until(self, agent: int, epoch: int, lane: int, other: int, until: int) -> str:
        """
        Return how an access of `lane` is ordered with `other` by meetings before epoch `until`.

        As `order`, but without the waits of all lanes of the warp for each other.
        """
        meetings = [x for x in self._meetings.get(agent, ()) if epoch <= x.epoch < until]
        if _reaches(lane, other, [x for x in meetings if x.orders]):
            return ORDERED
        return CONVERGED if _reaches(lane, other, meetings) else APART

    def waited_for(self, unit: int, epoch: int) -> int:
        """
        Return the warp's epoch at which a unit's lane had waited for work of `epoch`, or `FOREVER`.
        """
        return next((warp for last, warp in self._ends.get(unit, ()) if last >= epoch), FOREVER)

    # --- proxy fences -----------------------------------------------------------------------------

    def fence(self, agent: int, epoch: int, members: int) -> None:
        """Note that some lanes of a warp executed a proxy fence in an epoch of the warp."""
        fences = self._fences.setdefault(agent, np.zeros(MANY + 1, np.int64))
        fences[[lane for lane in range(MANY) if members >> lane & 1]] = epoch

    def is_fenced(self, agent: int, epoch: int, lane: int) -> bool:
        """Return whether a lane executed a proxy fence after its write in an epoch of its warp."""
        fences = self._fences.get(agent)
        return fences is not None and bool(fences[lane] >= epoch)


def _reaches(lane: int, other: int, meetings: list[Meeting]) -> bool:
    """Return whether a chain of meetings, in their order, leads from one lane to the other."""
    reached, wanted = _bits(lane), _bits(other)
    for meeting in meetings:
        if reached & meeting.members:
            reached |= meeting.members
    return lane < MANY and wanted & ~reached == 0


def _bits(lane: int) -> int:
    return EVERYONE if lane >= MANY else 1 << lane
