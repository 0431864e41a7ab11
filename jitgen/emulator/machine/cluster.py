# SPDX-License-Identifier: Apache-2.0
"""
A cluster: the CTAs that run together, what they know of each other, and their asynchronous work.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jitgen.emulator.machine import exits
from jitgen.emulator.machine.barriers import ClusterBarrier
from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.cta import RANK_SHIFT, Cta
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.schedule import Schedule

if TYPE_CHECKING:
    from jitgen.emulator.machine.machine import Machine
    from jitgen.emulator.modes import Mode


Action = Callable[[], None]

KINDS = ("load", "matrix", "store")


class Queues:
    """
    Work that is put off, in order of issue within each kind, so that threads that do not wait for
    it are found.

    Hardware may do a bulk load or a tcgen05 instruction at any time between its issue and the wait
    for it. A mode takes one end: at once, or as late as possible, when no thread can go on without
    it.
    """

    def __init__(self, mode: Mode, chance: random.Random | None = None) -> None:
        self._mode = mode
        self._chance = chance
        self._queues: dict[str, deque[Action]] = {kind: deque() for kind in KINDS}

    def issue(self, kind: str, action: Action) -> None:
        """Do `action` now, or keep it for later if the mode defers work of this kind."""
        if self._mode.defers(kind):
            self._queues[kind].append(action)
        else:
            action()

    def is_empty(self) -> bool:
        """Return whether there is no work."""
        return not any(self._queues.values())

    def run_one(self) -> bool:
        """Do the oldest work of one kind, of a random one in random modes; False: there is none."""
        waiting = [queue for queue in self._queues.values() if queue]
        if not waiting:
            return False
        queue = waiting[0] if self._chance is None else self._chance.choice(waiting)
        queue.popleft()()
        return True

    def run_all(self) -> None:
        """Do the remaining work, in order of issue within each kind."""
        while self.run_one():
            pass


class Cluster:
    """
    One cluster; a single CTA where the launch names no cluster.

    Attributes:
        machine: The machine that runs it.
        origin: Grid index (x, y, z) of its first CTA.
        place: Number of its place, the SMs that it runs on.
        clocks: The vector clocks of its agents.
        previous_grid: The agent of the grids launched before this one.
        events: Bumped by everything that may wake a waiting thread of the cluster.
        queues: Asynchronous work that is put off.
        barrier: The barrier of barrier.cluster.
        ctas: The CTAs by rank.
        schedule: Its fragments.
    """

    def __init__(self, machine: Machine, origin: tuple[int, int, int]) -> None:
        self.machine = machine
        self.origin = origin
        self.place: int = machine.sms.enter()
        self.clocks: Clocks = Clocks(machine.grid)
        self.previous_grid = self.clocks.agent("the previous grid")
        self.clocks.remote.begin(self.clocks, self.previous_grid, machine.grid.before)
        self.events = 0
        self.queues = Queues(machine.mode, machine.chance)
        self.barrier = ClusterBarrier(self)
        self.ctas: list[Cta] = []
        for offset in machine.launch.cluster_offsets:
            x, y, z = (first + more for first, more in zip(origin, offset, strict=True))
            self.ctas.append(Cta(self, len(self.ctas), (x, y, z)))
        if not machine.launch.is_dependent:
            warps = np.concatenate([cta.agents for cta in self.ctas])
            self.clocks.learn(warps, self.previous_grid, 1)
        self.schedule = Schedule(self)

    def cta(self, fragment: Fragment, at: int, address: int) -> Cta:
        """
        Return the CTA that a shared address names.

        A CTA that has exited is a finding, since its shared memory may belong to another CTA by
        then. So is one that the threads do not know to have started. Most kernels learn of it by a
        barrier of the cluster. CUDA C++ Programming Guide, "Distributed Shared Memory".

        Raises:
            MachineFault: The cluster has no such CTA.
        """
        rank = int(address) >> RANK_SHIFT
        if rank >= len(self.ctas):
            fragment.fault(at, f"shared address {address:#x} is of CTA {rank} of {len(self.ctas)}")
        cta = self.ctas[rank]
        if cta is not fragment.cta:
            self._check_runs(fragment, at, cta)
        return cta

    def _check_runs(self, fragment: Fragment, at: int, cta: Cta) -> None:
        """Report accesses to a CTA that has exited, or that is not known to have started."""
        if cta.has_exited:
            message = f"access to the shared memory of {cta.name}, which has exited"
            fragment.warn(at, "exit", message)
        if fragment.cta.rank in cta.known_to:
            return
        if self.clocks.vector[fragment.agents, cta.agent0 : cta.agent0 + cta.num_warps].any():
            cta.known_to.add(fragment.cta.rank)
        else:
            message = f"access to the shared memory of {cta.name}, which may not have started"
            fragment.warn(at, "start", message)

    def finish(self) -> None:
        """Do the remaining asynchronous work, after the last thread; report what is left undone."""
        self.queues.run_all()
        self.machine.sms.leave(self.place)
        exits.check(self)
        for cta in self.ctas:
            for unit in cta.units.values():
                unit.drain()

    def free(self) -> None:
        """
        Give the memory of the CTAs back. Objects of a cluster refer to each other, so that without
        this they would live on for a while.
        """
        for cta in self.ctas:
            cta.shared.free()
