# SPDX-License-Identifier: Apache-2.0
"""
The clocks of other clusters, as far as a cluster knows them: released and acquired at addresses of
global memory.

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

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clock, Clocks

ByCluster = dict["Clocks", "Clock"]
"""A release: for each cluster, by its `Clocks`, a clock of its agents."""


@dataclass(slots=True)
class Acquired:
    """
    One acquisition.

    Attributes:
        agent, epoch: The acquiring agent and its epoch then, by the cluster's own clocks.
        released: What it acquired.
        fences: Agent and epoch of each proxy fence of the cluster that came after this.
    """

    agent: int
    epoch: int
    released: ByCluster
    fences: list[tuple[int, int]] = field(default_factory=list)

    def covers(self, other: Clocks, agent: int, epoch: int) -> bool:
        """Return whether it includes an epoch of an agent of another cluster."""
        clock = self.released.get(other)
        return clock is not None and agent < len(clock) and bool(clock[agent] >= epoch)

    def contains(self, released: ByCluster) -> bool:
        """Return whether it includes all of `released`, as when a flag is polled again."""
        return all(
            other in self.released
            and len(clock) <= len(self.released[other])
            and bool((clock <= self.released[other][: len(clock)]).all())
            for other, clock in released.items()
        )


class RemoteClocks:
    """What the agents of one cluster acquired from others."""

    def __init__(self) -> None:
        self._acquired: list[Acquired] = []
        self._observed: dict[int, list[ByCluster]] = {}

    def acquire(self, own: Clocks, agents: NDArray[np.int64], released: ByCluster) -> None:
        """Let agents take over what was released elsewhere."""
        others = {other: clock for other, clock in released.items() if other is not own}
        for agent in np.unique(agents).tolist() if others else ():
            if not any(x.contains(others) for x in self._acquired if x.agent == agent):
                self._acquired.append(Acquired(agent, own.now(agent), others))

    def observe(self, agents: NDArray[np.int64], released: ByCluster) -> None:
        """Note what relaxed loads of agents saw; their next fence acquires it."""
        for agent in np.unique(agents).tolist():
            self._observed.setdefault(agent, []).append(released)

    def fence(self, own: Clocks, agent: int) -> None:
        """Acquire what an agent observed."""
        for released in self._observed.pop(agent, ()):
            self.acquire(own, np.array([agent]), released)

    def fence_proxy(self, own: Clocks, agent: int) -> None:
        """Note a proxy fence of an agent, for all that it knows of."""
        for acquired in self.known(own, agent):
            acquired.fences.append((agent, own.now(agent)))

    def released(self, own: Clocks, clock: Clock) -> ByCluster:
        """Return what is released with `clock`: it, and what it implies of other clusters."""
        from jitgen.emulator.machine.clocks import join  # they know each other

        found: ByCluster = {own: clock}
        for acquired in self._acquired:
            if acquired.agent < len(clock) and clock[acquired.agent] >= acquired.epoch:
                for other, theirs in acquired.released.items():
                    found[other] = join(found[other], theirs) if other in found else theirs
        return found

    def knows(self, own: Clocks, row: int, other: Clocks, agent: int, epoch: int) -> bool:
        """Return whether agent `row` knows an epoch of an agent of another cluster."""
        return any(acquired.covers(other, agent, epoch) for acquired in self.known(own, row))

    def is_fenced(
        self, own: Clocks, row: int, other: Clocks, agent: int, epoch: int, shadow: int
    ) -> bool:
        """Return whether a proxy fence that it knows of came after what another cluster did."""
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


def join_clocks(one: ByCluster | None, other: ByCluster) -> ByCluster:
    """Return what two releases at one address hand on together, as updates do."""
    from jitgen.emulator.machine.clocks import join  # they know each other

    found = dict(one or {})
    for cluster, clock in other.items():
        found[cluster] = join(found[cluster], clock) if cluster in found else clock
    return found
