# SPDX-License-Identifier: Apache-2.0
"""
Arrivals of one lane at an mbarrier on behalf of its warp, and the accesses of the other lanes that
such an arrival orders.

An arrival releases the accesses of its thread and those that were ordered before it. Accesses of
other lanes of the warp to shared memory are among these only if bar.warp.sync, or a barrier, is
between them and the arrival. Such arrivals are common and nearly always right, so only those that
leave accesses out are stored: each is a gap in what other agents know of the warp, which counts
when an agent's knowledge of the warp ends there.

If all lanes waited for each other in between, for example at a vote or a matrix instruction, reads
count as complete, because pipelines of CUTLASS release slots in this way; writes give a warning.

PTX ISA, sections "mbarrier.arrive" (.release) and "bar.warp.sync"; for what only waiting for each
other means see `jitgen.emulator.machine.lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.lanes import APART, MANY, ORDERED

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clocks
    from jitgen.emulator.machine.fragment import Fragment

_READS = frozenset({"read", "relaxed read"})
_TOGETHER = frozenset({"ldmatrix", "stmatrix"})
_APART = "nothing orders the two"
_CONVERGED = "that the lanes waited for each other need not order memory"


@dataclass(frozen=True, slots=True)
class Gap:
    """
    An arrival of some lanes of a warp, when other lanes had accessed shared memory.

    Attributes:
        known: All lanes' accesses up to this epoch of the warp are part of what was released.
        epoch: The warp's at the arrival; an agent that acquires no more is ordered after the warp
            up to here.
        waited: Its last epoch after which all lanes waited for each other.
        members: A bit for each lane that arrived.
    """

    known: int
    epoch: int
    waited: int
    members: int


@dataclass(frozen=True, slots=True)
class Represented:
    """
    An earlier access of a lane, which an arrival of another lane may represent.

    Attributes:
        kind: Kind of its access.
        position: Index of the granule among those of the later access.
        at: Index of the instruction.
        agent, epoch: The warp, and its epoch then.
        lane: The lane; `MANY` or more for several.
    """

    kind: str
    position: int
    at: int
    agent: int
    epoch: int
    lane: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """
    An access that no arrival represents.

    Attributes:
        earlier: The access, which is earlier than the one that is checked.
        gap: The arrival that does not release it.
        is_apart: Whether nothing is between the two; otherwise the lanes waited for each other
            there.
    """

    earlier: Represented
    gap: Gap
    is_apart: bool

    @property
    def position(self) -> int:
        """Index of the granule among those of the later access."""
        return self.earlier.position


class Representatives:
    """
    The arrivals of single lanes in one cluster.

    Attributes:
        read, wrote: For each agent [capacity] the epoch in which several lanes of its warp last
            read or wrote shared memory.
        handed: For each agent [capacity] the epoch of its last release by all lanes.
        gaps: The gaps of each warp that has some, by their epochs.
        met: For each agent [capacity] the epoch of the last matrix instruction that waits for
            products and that all lanes executed together.
    """

    def __init__(self, clocks: Clocks, capacity: int) -> None:
        self.read: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.wrote: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.handed: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.met: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.gaps: dict[int, dict[int, Gap]] = {}
        self._clocks = clocks
        self._alone: dict[tuple[int, bool], tuple[int, int]] = {}
        self._arrived: dict[int, dict[int, int]] = {}

    def grow(self, more: int) -> None:
        """Make room for `more` agents."""
        self.read, self.wrote = np.pad(self.read, (0, more)), np.pad(self.wrote, (0, more))
        self.handed, self.met = np.pad(self.handed, (0, more)), np.pad(self.met, (0, more))

    def meet(self, agents: NDArray[np.int64]) -> None:
        """Note that all lanes of warps [k] execute a matrix instruction together."""
        vector = self._clocks.vector
        self.met[agents] = now = vector[agents, agents]
        vector[agents, agents] = now + 1

    def touch_alone(self, agent: int, epoch: int, lane: int, *, writes: bool) -> None:
        """Note that one lane of a warp accesses shared memory."""
        other, when = self._alone.get((agent, writes), (lane, 0))
        if other != lane and when > self._clocks.lanes.known[agent]:
            (self.wrote if writes else self.read)[agent] = epoch
        self._alone[agent, writes] = (lane, epoch)

    def arrive(self, agent: int, members: int) -> None:
        """Note that some lanes of a warp arrive and others do not; call it before they release."""
        known = int(self._clocks.lanes.known[agent])
        waited = max(known, self._clocks.lanes.waited(agent), int(self.met[agent]))
        if not (
            self._is_left_out(agent, members, known, writes=True)
            or self._is_left_out(agent, members, waited, writes=False)
        ):
            return
        epoch = self._clocks.now(agent)
        shared = max(known, int(self.handed[agent]))
        self.gaps.setdefault(agent, {})[epoch] = Gap(shared, epoch, waited, members)
        arrived = self._arrived.setdefault(agent, {})
        for lane in range(MANY):
            if members >> lane & 1:
                if lane not in arrived:
                    name = f"lane {lane} of {self._clocks.name(agent)}"
                    arrived[lane] = self._clocks.agent(name)
                self._clocks.vector[agent, arrived[lane]] = epoch

    def _is_left_out(self, agent: int, members: int, since: int, *, writes: bool) -> bool:
        """Return whether other lanes of a warp accessed shared memory after an epoch."""
        lane, when = self._alone.get((agent, writes), (0, 0))
        touched = (self.wrote if writes else self.read)[agent]
        return bool(touched > since or (when > since and not members >> lane & 1))

    def find(self, row: int, earlier: Represented) -> LeftOut | None:
        """
        Return `earlier` with the arrival that does not release it, if agent `row` is ordered after
        its warp by that arrival only; else None.
        """
        agent, epoch, lane = earlier.agent, earlier.epoch, earlier.lane
        knows = self._clocks.vector[row]
        gap = self.gaps[agent].get(int(knows[agent]))
        if gap is None or epoch <= gap.known or row == agent:
            return None
        arrived = self._arrived[agent]
        if lane in arrived and knows[arrived[lane]] >= epoch:
            return None
        lanes, is_apart = self._clocks.lanes, gap.waited < epoch
        for other, shadow in arrived.items():
            if knows[shadow] >= epoch:
                order = lanes.order_until(agent, epoch, lane, other, int(knows[shadow]))
                if order == ORDERED:
                    return None
                is_apart = is_apart and order == APART
        is_open = not is_apart and earlier.kind in _READS
        return None if is_open else LeftOut(earlier, gap, is_apart)


def report(f: Fragment, at: int, what: str, found: LeftOut) -> None:
    """
    Report what an arrival leaves out; `what` says what the later access does, and to which place.

    An instruction that all lanes execute together, such as ldmatrix, is over for all or for none:
    whether an arrival of one says so is left open.
    """
    earlier, program = found.earlier, f.machine.program
    is_apart = found.is_apart and program.code[earlier.at].parts[0] not in _TOGETHER
    members = [lane for lane in range(MANY) if found.gap.members >> lane & 1]
    who = f"lane {members[0]}" if len(members) == 1 else f"{len(members)} lanes"
    other = "several lanes" if earlier.lane >= MANY else f"lane {earlier.lane}"
    warp = f.cluster.clocks.name(earlier.agent)
    kind, lacks = ("race", _APART) if is_apart else ("convergence", _CONVERGED)
    f.warn(
        at,
        kind,
        f"{what} comes after the {earlier.kind} by {other} of {warp} because of an arrival of "
        f"{who} of that warp alone: {lacks}, bar.warp.sync before the arrival does\n"
        f"  at {program.place(earlier.at)}",
    )
