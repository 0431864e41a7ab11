# SPDX-License-Identifier: Apache-2.0
"""
The clocks of other clusters, as far as a cluster knows them: released and acquired at addresses of
global memory, or handed on by the end of a launch to the next one of its stream.

Clusters have separate clocks, and most never synchronise. If one does, by a flag or a counter, it
acquires what the other released: a clock for each cluster that the other knew of. The agents of the
cluster that are ordered after the acquisition, by its own clocks, know it too.

PTX ISA, section "Memory Consistency Model": release and acquire patterns, causality order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.grids import Stream
from jitgen.emulator.machine.scopes import Scope

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clock, Clocks

ByCluster = dict["Clocks | Stream", "Clock"]
"""
A release: for each cluster, by its `Clocks`, a clock of its agents; for each stream which of its
launches are over.
"""


@dataclass(frozen=True, slots=True)
class Given:
    """
    The clocks released at an address for other clusters.

    Attributes:
        device: Device of the thread that released there last.
        near: The clocks for clusters of the same device.
        far: The clocks for all others; None if the last write there was at ``.gpu``.
    """

    device: int
    near: ByCluster
    far: ByCluster | None

    def followed_by(self, update: Given) -> Given:
        """
        Return what the address releases after an update, which hands on what it released before.
        """
        before = self.near if self.device == update.device else self.far
        near = join_clocks(before, update.near)
        return Given(update.device, near, update.far and join_clocks(self.far, update.far))

    def to(self, device: int, scope: Scope) -> ByCluster | None:
        """Return the clocks that a thread of `device` acquires by a read with `scope`, or None."""
        if device == self.device:
            return self.near if scope >= Scope.GPU else None
        return self.far if scope >= Scope.SYS else None


@dataclass(slots=True)
class Acquired:
    """
    One acquisition of the clocks of other clusters.

    Attributes:
        agent, epoch: The acquiring agent and its epoch then, by the cluster's own clocks.
        released: Clocks that it acquired, by cluster.
        fences: Agent and epoch of each proxy fence of the cluster that came after this.
    """

    agent: int
    epoch: int
    released: ByCluster
    fences: list[tuple[int, int]] = field(default_factory=list)

    def covers(self, other: Clocks, agent: int, epoch: int) -> bool:
        """Return whether what was acquired includes an epoch of an agent of another cluster."""
        return covers(self.released, other, agent, epoch)

    def contains(self, released: ByCluster) -> bool:
        """
        Return whether what was acquired includes all of `released`, as when a flag is polled again.
        """
        return all(
            other in self.released
            and len(clock) <= len(self.released[other])
            and bool((clock <= self.released[other][: len(clock)]).all())
            for other, clock in released.items()
        )


class RemoteClocks:
    """The clocks that the agents of one cluster acquired from other clusters."""

    def __init__(self) -> None:
        self._acquired: list[Acquired] = []
        self._observed: dict[int, list[tuple[Scope, ByCluster]]] = {}

    def acquire(self, own: Clocks, agents: NDArray[np.int64], released: ByCluster) -> None:
        """Join released clocks of other clusters into those of agents."""
        others = {other: clock for other, clock in released.items() if other is not own}
        for agent in np.unique(agents).tolist() if others else ():
            if not any(x.contains(others) for x in self._acquired if x.agent == agent):
                self._acquired.append(Acquired(agent, own.now(agent), others))

    def begin(self, own: Clocks, agent: int, before: ByCluster) -> None:
        """
        Order agents that come after `agent` after all that ended before the launch, as if fenced.
        """
        if before:
            now = own.now(agent)
            self._acquired.append(Acquired(agent, now, before, [(agent, now)]))

    def observe(self, agents: NDArray[np.int64], released: ByCluster, reach: Scope) -> None:
        """
        Note what relaxed loads of agents saw; a fence whose scope includes `reach` acquires it.
        """
        for agent in np.unique(agents).tolist():
            self._observed.setdefault(agent, []).append((reach, released))

    def fence(self, own: Clocks, agent: int, scope: Scope) -> None:
        """Acquire what an agent observed within `scope`."""
        seen = self._observed.pop(agent, ())
        for reach, released in seen:
            if reach <= scope:
                self.acquire(own, np.array([agent]), released)
        if left := [one for one in seen if one[0] > scope]:
            self._observed[agent] = left

    def fence_proxy(self, own: Clocks, agent: int) -> None:
        """Note a proxy fence of an agent, for all acquisitions that it is ordered after."""
        for acquired in self.known(own, agent):
            acquired.fences.append((agent, own.now(agent)))

    def released(self, own: Clocks, clock: Clock) -> ByCluster:
        """
        Return what is released with `clock`: this clock, and the clocks of other clusters that it
        implies.
        """
        from jitgen.emulator.machine.clocks import join  # they know each other

        found: ByCluster = {own: clock}
        for acquired in self._acquired:
            if acquired.agent < len(clock) and clock[acquired.agent] >= acquired.epoch:
                for other, theirs in acquired.released.items():
                    found[other] = join(found[other], theirs) if other in found else theirs
        return without_ended(found) if own.grid.stream.has_peers else found

    def all_known(self, own: Clocks, unknown: int) -> ByCluster:
        """
        Return the clocks of other clusters that the cluster has acquired at its end.

        Args:
            own: The cluster's own clocks.
            unknown: An agent whose acquisitions count only if another agent is ordered after it.
        """
        knows = own.vector[:, unknown] >= own.vector[unknown, unknown]
        knows[unknown] = False
        found: ByCluster = {}
        for acquired in self._acquired:
            if acquired.agent != unknown or knows.any():
                found = join_clocks(found, acquired.released)
        return found

    def knows(self, own: Clocks, row: int, other: Clocks, agent: int, epoch: int) -> bool:
        """Return whether agent `row` is ordered after an epoch of an agent of another cluster."""
        return any(acquired.covers(other, agent, epoch) for acquired in self.known(own, row))

    def is_fenced(
        self, own: Clocks, row: int, other: Clocks, agent: int, epoch: int, shadow: int
    ) -> bool:
        """
        Return whether agent `row` is ordered after a proxy fence that came after an epoch of
        another cluster's agent.
        """
        for acquired in self.known(own, row):
            if acquired.covers(other, agent, epoch) and (
                acquired.covers(other, shadow, epoch)
                or any(own.vector[row, who] >= when for who, when in acquired.fences)
            ):
                return True
        return False

    def known(self, own: Clocks, row: int) -> list[Acquired]:
        """Return the acquisitions that an agent is ordered after."""
        return [x for x in self._acquired if own.vector[row, x.agent] >= x.epoch]


def covers(released: ByCluster, other: Clocks, agent: int, epoch: int) -> bool:
    """Return whether a release includes an epoch of an agent of another cluster."""
    clock = released.get(other)
    if clock is not None and agent < len(clock) and clock[agent] >= epoch:
        return True
    return other.grid.is_over_by(released)


def without_ended(released: ByCluster) -> ByCluster:
    """Return a release without the clusters of launches that it says are over."""
    return {
        who: clock
        for who, clock in released.items()
        if isinstance(who, Stream) or not who.grid.is_over_by(released)
    }


def join_clocks(one: ByCluster | None, other: ByCluster) -> ByCluster:
    """Return what two releases at one address hand on together, as updates do."""
    from jitgen.emulator.machine.clocks import join  # they know each other

    found = dict(one or {})
    for cluster, clock in other.items():
        found[cluster] = join(found[cluster], clock) if cluster in found else clock
    return found
