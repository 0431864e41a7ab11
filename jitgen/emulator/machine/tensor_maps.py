# SPDX-License-Identifier: Apache-2.0
"""
Tensor maps that a kernel changes: which version of a map the tensor map proxy may see.

A map in global memory is written by ordinary accesses and read, by every copy through it, by a
proxy of its own. Between the two there must be a release, by an agent that is ordered after the
write, and then an acquire of that address, by an agent that is ordered after it too and before the
copy.

PTX ISA, sections "membar, fence": ``fence.proxy.tensormap::generic``, a release and an acquire of
one direction; "tensormap.cp_fenceproxy", a copy with such a release; "Proxies".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clock, Clocks
    from jitgen.emulator.machine.remote_clocks import Acquired
    from jitgen.emulator.machine.track import Stamp

_KEPT = 256
"""Acquires of one address by one agent that are remembered."""


@dataclass(frozen=True, slots=True)
class Fence:
    """
    A release, or an acquire.

    Attributes:
        clocks: The vector clocks of the cluster.
        agent, epoch: The agent that executed it, and its epoch then.
        known: The clock of that agent then.
        acquired: Its acquisitions from other clusters until then.
    """

    clocks: Clocks
    agent: int
    epoch: int
    known: Clock
    acquired: tuple[Acquired, ...]

    def knows(self, write: Stamp) -> bool:
        """Return whether the agent of the fence was ordered after a write."""
        if write.clocks is self.clocks:
            return bool(self.known[write.agent] >= write.epoch)
        return any(x.covers(write.clocks, write.agent, write.epoch) for x in self.acquired)


class TensorMaps:
    """The fences of the tensor map proxy in one launch."""

    def __init__(self) -> None:
        # The last release of each agent is ordered after all that its earlier ones are.
        self._releases: dict[tuple[Clocks, int], Fence] = {}
        self._acquires: dict[tuple[Clocks, int], dict[int, deque[Fence]]] = {}

    def release(self, clocks: Clocks, agent: int) -> None:
        """Execute a release by an agent."""
        self._releases[clocks, agent] = _fence(clocks, agent)

    def acquire(self, clocks: Clocks, agent: int, address: int) -> None:
        """Execute an acquire of the map at an address by an agent."""
        of_agents = self._acquires.setdefault((clocks, address), {})
        of_agents.setdefault(agent, deque(maxlen=_KEPT)).append(_fence(clocks, agent))

    def lacking(self, write: Stamp, clocks: Clocks, row: int, address: int) -> str:
        """
        Return which fence is missing before a copy through a map: "release" or "acquire"; "" if
        none is.

        Args:
            write: A write of the map that the copy is ordered after.
            clocks: The vector clocks of the copy's cluster.
            row: The agent that issues it.
            address: Address of the map.
        """
        if not any(fence.knows(write) for fence in self._releases.values()):
            return "release"
        is_acquired = any(
            clocks.vector[row, agent] >= fence.epoch and fence.knows(write)
            for agent, fences in self._acquires.get((clocks, address), {}).items()
            for fence in fences
        )
        return "" if is_acquired else "acquire"


def _fence(clocks: Clocks, agent: int) -> Fence:
    """Return a fence that an agent executes now; a new epoch of it begins."""
    known = clocks.vector[agent].copy()
    acquired = tuple(clocks.remote.known(clocks, agent))
    clocks.vector[agent, agent] += 1
    return Fence(clocks, agent, int(known[agent]), known, acquired)
