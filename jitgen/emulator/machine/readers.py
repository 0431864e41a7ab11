# SPDX-License-Identifier: Apache-2.0
"""
The agents that read each granule of a memory since it was last written.

Readers need not be ordered among themselves, so all of them are kept: a plane of stamps for each
group of agents that reads together, such as the eight warps whose matrix instruction reads one
operand. Stamps of a plane only grow, so an agent that is ordered after the latest is ordered after
all. The latest of each page is stored beside them, and a write checks single granules only where it
is not ordered after that.

Relaxed accesses are kept here too: they do not exclude each other, so there are several at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Agents, Clock, Clocks
from jitgen.emulator.machine.lazy_zeros import lazy_zeros

Bounds = dict[int, int]
"""Planes with accesses, each with a stamp that is not below any of them."""

Granules = slice | NDArray[np.int64]
"""Granules of a memory: adjacent ones, or their numbers [k]."""

AT_BITS = 18
"""A stamp holds the instruction in its lower bits, and an epoch or a number of epochs above."""

AT_MASK = (1 << AT_BITS) - 1

_PAGE_SHIFT = 8
_FIRST_CAPACITY = 32

_FEW = 2
"""Planes that are searched one by one."""


@dataclass(slots=True)
class Group:
    """
    Agents that access the same granules at the same time, in one way.

    Attributes:
        kind: How they access; see `history`.
        agents: Who [m].
        agent: The only one, or -1.
        epochs: Those of the agents [m], by the number in a stamp. For a single agent the epoch
            itself is in the stamp.
    """

    kind: str
    agents: NDArray[np.int64]
    agent: int
    epochs: list[NDArray[np.int64]] = field(default_factory=lambda: [np.zeros(0, np.int64)])

    def number(self, epochs: NDArray[np.int64]) -> int:
        """Return the number for the agents' epochs [m], the last one again if they are the same."""
        if not np.array_equal(self.epochs[-1], epochs):
            self.epochs.append(epochs)
        return len(self.epochs) - 1

    def members(self, stamp: int) -> list[tuple[int, int]]:
        """Return each agent with its epoch of the access with this stamp."""
        number = stamp >> AT_BITS
        if self.agent >= 0:
            return [(self.agent, number)]
        return list(zip(self.agents.tolist(), self.epochs[number].tolist(), strict=True))

    def stranger(self, clock: Clock, stamp: int) -> int:
        """Return an agent whose access with this stamp is not within `clock`; -1: there is none."""
        number = stamp >> AT_BITS
        if self.agent >= 0:
            return -1 if clock[self.agent] >= number else self.agent
        unknown = clock[self.agents] < self.epochs[number]
        return int(self.agents[unknown.argmax()]) if np.count_nonzero(unknown) else -1


@dataclass(frozen=True, slots=True)
class Earlier:
    """
    An earlier access that a later one is not ordered after.

    Attributes:
        kind: How the earlier one accessed.
        agent: The agent that did.
        at: The instruction.
        position: Index, among the granules of the later one, of a granule of both.
    """

    kind: str
    agent: int
    at: int
    position: int


class Readers:
    """
    The accesses to one memory since its last writes, in planes.

    Attributes:
        kinds: The kinds of accesses that there ever were.
        groups: The group of agents of each plane, which access together.
    """

    def __init__(self, clocks: Clocks, granules: int) -> None:
        self.kinds: set[str] = set()
        self._clocks = clocks
        self._num_granules = granules
        self._num_pages = (granules >> _PAGE_SHIFT) + 1
        self._stamps: NDArray[np.int64] = lazy_zeros((_FIRST_CAPACITY, granules), np.int64)
        self._latest = np.zeros((_FIRST_CAPACITY, self._num_pages), np.int64)
        self.groups: list[Group] = []
        self._planes: dict[tuple[str, bytes], int] = {}
        self._single: dict[tuple[str, int], int] = {}
        self._plane_of: dict[str, NDArray[np.int64]] = {}

    # --- recording --------------------------------------------------------------------------------

    def record(
        self, at: int, kind: str, granules: Granules, agents: Agents, epochs: Agents
    ) -> None:
        """
        Note an access.

        Args:
            at: The instruction.
            kind: Any word.
            granules: Granules [k].
            agents: The agents: one for all granules, or one for each [k].
            epochs: When, by the agents' clocks; as `agents`.
        """
        stamps = epochs << AT_BITS | at
        if not isinstance(agents, np.ndarray):
            plane = self._single.get((kind, agents))
            if plane is None:
                plane = self._single[kind, agents] = self._plane(kind, np.array([agents]))
            self._put(plane, granules, int(stamps))
            return
        assert isinstance(granules, np.ndarray)
        planes = self._planes_of(kind, agents)
        self._stamps.reshape(-1)[planes * self._num_granules + granules] = stamps
        pages = planes * self._num_pages + (granules >> _PAGE_SHIFT)
        self._latest.reshape(-1)[pages] = stamps

    def record_joint(
        self,
        at: int,
        kind: str,
        granules: Granules,
        agents: NDArray[np.int64],
        epochs: NDArray[np.int64],
    ) -> None:
        """
        Note that each of several agents accesses every granule.

        Args:
            at: The instruction.
            kind: Any word.
            granules: Granules [k], ascending.
            agents: The agents [m], ascending.
            epochs: When, by the agents' clocks [m].
        """
        plane = self._plane(kind, agents)
        stamp = self.groups[plane].number(epochs) << AT_BITS | at
        self._stamps[plane, granules] = stamp
        if not isinstance(granules, slice):
            granules = slice(int(granules[0]), int(granules[-1]) + 1)
        self._latest[plane, _pages(granules)] = stamp

    def _add(self, kind: str, granules: slice, agent: int, stamp: int) -> None:
        """Note an access of one agent; accesses of it that were noted before may be later ones."""
        plane = self._plane(kind, np.array([agent]))
        for array, where in ((self._stamps, granules), (self._latest, _pages(granules))):
            array[plane, where] = np.maximum(array[plane, where], stamp)

    def _put(self, plane: int, granules: Granules, stamp: int) -> None:
        self._stamps[plane, granules] = stamp
        if isinstance(granules, slice):
            self._latest[plane, _pages(granules)] = stamp
        else:
            self._latest[plane, granules >> _PAGE_SHIFT] = stamp

    def _plane(self, kind: str, agents: NDArray[np.int64]) -> int:
        """Return the plane of a group; a new one gets the next."""
        self.kinds.add(kind)
        key = (kind, agents.tobytes())
        plane = self._planes.get(key)
        if plane is None:
            plane = self._planes[key] = len(self.groups)
            self.groups.append(Group(kind, agents, int(agents[0]) if len(agents) == 1 else -1))
            if len(self.groups) > len(self._stamps):
                more = ((0, len(self._stamps)), (0, 0))
                self._stamps = np.pad(self._stamps, more)
                self._latest = np.pad(self._latest, more)
        return plane

    def _planes_of(self, kind: str, agents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the plane of each of `agents` [k] as a group of its own."""
        table = self._plane_of.get(kind)
        if table is None or len(table) < len(self._clocks.vector):
            table = self._plane_of[kind] = np.full(len(self._clocks.vector), -1)
        planes = table[agents]
        if np.minimum.reduce(planes) < 0:
            for agent in np.unique(agents):
                table[agent] = self._plane(kind, np.array([agent]))
            planes = table[agents]
        return planes

    # --- asking -----------------------------------------------------------------------------------

    def on(self, granules: Granules) -> Bounds:
        """Return the planes with accesses near `granules`, each with its latest stamp there."""
        if not self.groups:
            return {}
        if not isinstance(granules, slice):
            low, high = np.minimum.reduce(granules), np.maximum.reduce(granules)
            granules = slice(int(low), int(high) + 1)
        latest = np.maximum.reduce(self._latest[: len(self.groups), _pages(granules)], axis=1)
        return {plane: stamp for plane, stamp in enumerate(latest.tolist()) if stamp}

    def find(
        self,
        kinds: frozenset[str],
        granules: Granules,
        bounds: Bounds,
        rows: Agents,
        lowest: Clock,
    ) -> Earlier | None:
        """
        Return an access of `kinds` to one of `granules` [k] that is not ordered before now, or
        None.

        Args:
            kinds: Which kinds count.
            granules: Where.
            bounds: As `on` returns them for `granules`.
            rows: The agents that must be ordered after it: one for all granules, or one for each
                [k].
            lowest: A clock that is at most that of each of them.
        """
        groups = self.groups
        planes = [
            plane
            for plane, latest in bounds.items()
            if groups[plane].kind in kinds and groups[plane].stranger(lowest, latest) >= 0
        ]
        if len(planes) > _FEW and isinstance(rows, np.ndarray):
            planes = self._unknown(planes, granules, rows)
        found = (self._search(plane, granules, rows) for plane in planes)
        return next((earlier for earlier in found if earlier is not None), None)

    def _unknown(self, planes: list[int], granules: Granules, rows: NDArray[np.int64]) -> list[int]:
        """
        Return those of `planes` that may have an access which rows [k] are not ordered after.

        Planes of single agents are searched; planes of several agents are returned in any case.
        """
        single = np.array([plane for plane in planes if self.groups[plane].agent >= 0], np.int64)
        numbers = (
            np.arange(granules.start, granules.stop) if isinstance(granules, slice) else granules
        )
        stamps = self._stamps[single[:, None], numbers]
        which, where = stamps.nonzero()
        agents = np.array([self.groups[plane].agent for plane in single.tolist()], np.int64)
        epochs = stamps[which, where] >> AT_BITS
        is_unknown = self._clocks.vector[rows[where], agents[which]] < epochs
        known = set(single.tolist()) - set(single[which[is_unknown]].tolist())
        return [plane for plane in planes if plane not in known]

    def stamps(self, plane: int, granules: Granules) -> NDArray[np.int64]:
        """Return the stamps of a plane; 0 where there was no access."""
        return self._stamps[plane, granules]

    def clear(self, granules: Granules, bounds: Bounds) -> None:
        """Forget all accesses to `granules`: what follows their next write follows these, too."""
        for plane in bounds:
            self._stamps[plane, granules] = 0
        if bounds and isinstance(granules, slice):
            whole = slice(-(-granules.start >> _PAGE_SHIFT), granules.stop >> _PAGE_SHIFT)
            self._latest[: len(self.groups), whole] = 0

    def move(self, granule: int, to: Readers, granules: slice) -> None:
        """Move the accesses to one granule to `granules` of another memory."""
        for plane, group in enumerate(self.groups):
            stamp = int(self._stamps[plane, granule])
            if stamp:
                for agent, epoch in group.members(stamp):
                    to._add(group.kind, granules, agent, epoch << AT_BITS | stamp & AT_MASK)
                self._stamps[plane, granule] = 0

    def _search(self, plane: int, granules: Granules, rows: Agents) -> Earlier | None:
        """Return an access of one plane that `rows` are not ordered after; None: there is none."""
        stamps = self._stamps[plane, granules]
        group, vector = self.groups[plane], self._clocks.vector
        if group.agent >= 0:
            unknown = vector[rows, group.agent] < stamps >> AT_BITS
            position = int(unknown.argmax())
            if not unknown[position]:
                return None
            return Earlier(group.kind, group.agent, int(stamps[position]) & AT_MASK, position)
        pairs = np.stack([stamps, np.broadcast_to(rows, stamps.shape)])[:, stamps > 0]
        for stamp, row in np.unique(pairs, axis=1).T.tolist():
            stranger = group.stranger(vector[row], stamp)
            if stranger >= 0:
                position = int(((stamps == stamp) & (rows == row)).argmax())
                return Earlier(group.kind, stranger, stamp & AT_MASK, position)
        return None


def as_slice(numbers: NDArray[np.int64]) -> Granules:
    """Return ascending numbers, at least one, as a slice where they are adjacent."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


def _pages(granules: slice) -> slice:
    """Return the pages that adjacent granules lie on."""
    return slice(granules.start >> _PAGE_SHIFT, ((granules.stop - 1) >> _PAGE_SHIFT) + 1)
