# SPDX-License-Identifier: Apache-2.0
"""
The machine: runs one launch of a compiled kernel.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine import deadlock
from jitgen.emulator.machine.cluster import Cluster
from jitgen.emulator.machine.faults import Finding
from jitgen.emulator.machine.grids import Grid
from jitgen.emulator.machine.observed import Observed
from jitgen.emulator.machine.tensor_columns import Sms
from jitgen.emulator.machine.timeline import Timeline
from jitgen.errors import MachineFault

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clocks
    from jitgen.emulator.machine.global_memory import GlobalMemory
    from jitgen.emulator.modes import Mode
    from jitgen.emulator.program.translate import Program

Index = tuple[int, int, int]

NUM_SMS = 132
"""SMs of an H200, which is also the number of CTAs that are resident at once; see `Sms`."""

_STEPS_BETWEEN_CLOCKS = 256

_TURN = 1 << 9
"""Blocks of a cluster until peers have their turn, so that polls by weak loads end."""

_FORCED_ROUNDS = 64
"""Rounds in which all spinning threads change nothing before that is a deadlock."""

_ROUNDS_WITHOUT_TIME = 8
"""Rounds in which all spinning threads change nothing before time leaps ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    The parameters of a launch.

    Attributes:
        grid, block: CTAs of the grid and threads of a CTA (x, y, z).
        cluster: CTAs of a cluster (x, y, z).
        shared_bytes: Dynamic shared memory of a CTA.
        params: The kernel's arguments as they lie in memory, one each.
        is_dependent: Whether it may start before the previous grid ends (programmatic stream
            serialization), so that it must execute griddepcontrol.wait.
        names_cluster: Whether the launch itself says what a cluster is.
        is_nonportable: Whether the kernel consents to clusters that are larger than portable.
        most_shared_bytes: Dynamic shared memory that the kernel consents to; None: it does not say.
        registers: Registers of a thread at the start; 0 where neither machine code nor PTX say.
        ignores_setmaxnreg: Whether the compiler left setmaxnreg out of the machine code.
    """

    grid: Index
    block: Index
    cluster: Index = (1, 1, 1)
    shared_bytes: int = 0
    params: tuple[bytes, ...] = ()
    is_dependent: bool = False
    names_cluster: bool = False
    is_nonportable: bool = False
    most_shared_bytes: int | None = None
    registers: int = 0
    ignores_setmaxnreg: bool = False

    @property
    def num_threads(self) -> int:
        """Threads of a CTA."""
        return math.prod(self.block)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def cluster_offsets(self) -> list[Index]:
        """Grid index of each CTA of a cluster, by rank, relative to its first."""
        return _indices((0, 0, 0), self.cluster, (1, 1, 1))

    @property
    def origins(self) -> list[Index]:
        """Grid index of the first CTA of each cluster, x fastest."""
        return _indices((0, 0, 0), self.grid, self.cluster)


def _indices(start: Index, stop: Index, step: Index) -> list[Index]:
    """Return the indices (x, y, z) of a box, x fastest."""
    x, y, z = (range(*bounds) for bounds in zip(start, stop, step, strict=True))
    return [(i, j, k) for k in z for j in y for i in x]


def _started(origins: list[Index], mode: Mode) -> list[Index]:
    """Return the clusters of a launch in the order in which a mode starts them."""
    if mode.is_reversed:
        return origins[::-1]
    if 0 <= mode.last < len(origins):
        return [*origins[: mode.last], *origins[mode.last + 1 :], origins[mode.last]]
    return origins


class Machine:
    """
    A launch and everything that it changes.

    As many clusters as the mode says start at once; the next starts when one has ended, or when all
    that run wait, or spin on global memory.

    Attributes:
        program: The kernel.
        memory: Global memory.
        launch: The launch of the host.
        mode: When asynchronous work is done and which threads run first.
        chance: The source of every random choice; None in modes without.
        counts: Numbers of executed operations and of their bytes, by name ("bulk_loads",
            "bulk_load_bytes", ...).
        block_counts: Executions of each basic block, times the warps that took part [blocks].
        held: Instructions with a guard that held for some thread; see `program.coverage`.
        ways: How threads left each block that ends with a branch: `TAKEN`, `PASSED`, or both.
        findings: Mistakes, by kind and instruction.
        observed: The observed values that depend on the schedule.
        grid: The launch and its device.
        timeline: The time, and the count of writes to global memory.
        is_busy: Whether a cluster of the machine did not come to a wait in its turn, as it may poll
            by weak loads.
        is_early: Whether the launch may start before a grid ends of which nothing is known.
        num_sms: SMs of the device.
        sms: The SMs of each cluster.
        resident: Clusters that run at once, at most.
        running: Clusters that run at present.
        ended: The clocks of clusters that ended, and their agent of earlier launches; kept where
            there are several devices.
        not_started: Grid index of the clusters that have not started.
    """

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        launch: Launch,
        mode: Mode,
        *,
        time_limit_s: float = math.inf,
        num_sms: int = NUM_SMS,
        grid: Grid | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.program: Program = program
        self.grid: Grid = grid or Grid(program=program)
        self.memory: GlobalMemory = memory
        self.launch: Launch = launch
        self.mode: Mode = mode
        self.chance = None if mode.seed is None else random.Random(mode.seed)
        self.counts: Counter[str] = Counter()
        self.block_counts: NDArray[np.int64] = np.zeros(len(program.blocks), np.int64)
        self.held: set[int] = set()
        self.ways = bytearray(len(program.blocks))
        self.findings: dict[tuple[str, int], Finding] = {}
        self.observed: Observed = Observed(self)
        self.timeline: Timeline = timeline or Timeline()
        self.is_early = launch.is_dependent and not self.grid.follows
        self.num_sms: int = num_sms
        self.sms: Sms = Sms(self, num_sms)
        self.resident = self.sms.resident
        self.running: list[Cluster] = []
        self.ended: list[tuple[Clocks, int]] = []
        self.not_started: deque[Index] = deque(_started(launch.origins, mode))
        self.deadline = time.monotonic() + time_limit_s
        self._time_limit_s = time_limit_s
        self._standstill = Standstill(self.timeline)
        self.is_busy = False
        self._turn = _TURN if self.grid.stream.has_peers else -1

    @cached_property
    def shared_end(self) -> int:
        """Offset at which the shared memory of a CTA ends."""
        return self.program.shared_end + self.launch.shared_bytes

    @property
    def firsts(self) -> list[int]:
        """The clusters, by number, that were first where the schedule is observed."""
        origins = self.launch.origins
        return [origins.index(origin) for origin in self.observed.firsts]

    @cached_property
    def tensor_opcodes(self) -> frozenset[str]:
        """The tcgen05 instructions of the kernel: "mma", "wait::ld", ..."""
        code = self.program.code
        return frozenset(x.parts[1] for x in code if x.parts[0] == "tcgen05")

    @cached_property
    def ends_barriers(self) -> bool:
        """Whether the kernel has an mbarrier.inval."""
        return any("inval" in instruction.parts for instruction in self.program.code)

    def run(self) -> None:
        """
        Run the launch to its end.

        Raises:
            MachineFault: An instruction did what hardware would not survive, or time is over.
            Deadlock: No thread can go on.
        """
        with np.errstate(all="ignore"):
            self.start(self.mode.clusters)
            while self.running:
                if not (self._run() or self.do_deferred() or self.start(1) or self._force()):
                    raise deadlock.report([self])
        self.observed.finish()

    def take_cluster(self) -> Index | None:
        """Return the grid index of a cluster that now will never start; None: all have started."""
        return self.not_started.popleft() if self.not_started else None

    def start(self, number: int) -> bool:
        """Start clusters; return whether there was one to start and room for it."""
        room = min(number, self.resident - len(self.running), len(self.not_started))
        for _ in range(room):
            self.running.append(Cluster(self, self.not_started.popleft()))
        return room > 0

    def _run(self) -> bool:
        """Run clusters until each waits; return whether any block was executed."""
        if self.chance is None:
            return self.run_in_order()
        return run_mixed([self], self.chance)

    def run_in_order(self) -> bool:
        """Run one cluster after the other until it waits; return whether anything was executed."""
        before, self.is_busy = self.timeline.steps, False
        for cluster in list(self.running):
            left = self._turn
            while left and self.step(cluster):
                left -= 1
            self.is_busy |= not left
        return self.timeline.steps > before

    def step(self, cluster: Cluster) -> bool:
        """Run a block or more of a cluster; else return False, and retire it if it ended."""
        if not cluster.schedule.step():
            self._retire(cluster)
            return False
        timeline = self.timeline
        timeline.steps += 1
        if timeline.steps % _STEPS_BETWEEN_CLOCKS == 0 and time.monotonic() > self.deadline:
            places = deadlock.describe([self])
            raise MachineFault(f"time limit of {self._time_limit_s:g} s exceeded\n{places}")
        return True

    def _retire(self, cluster: Cluster) -> None:
        """End a cluster if all of its threads have exited, and start another in its place."""
        if cluster.schedule.is_empty():
            self.running.remove(cluster)
            cluster.finish()
            if self.grid.stream.has_peers:
                self.ended.append((cluster.clocks, cluster.previous_grid))
            if self.not_started:
                cluster.free()
            if len(self.running) < self.mode.clusters:
                self.start(1)

    def do_deferred(self) -> bool:
        """Do one piece of asynchronous work that was put off; return whether there was one."""
        return any(cluster.queues.run_one() for cluster in self.running)

    def _force(self) -> bool:
        """
        Let spinning threads go round again; False if none spins, or too often nothing changed.
        """
        return self._standstill.force([self])


class Standstill:
    """
    Decides whether launches in which all threads wait can go on.

    Some threads may wait in loops that poll, count rounds, or read the time. They go round once
    more, later with a leap of the time, until nothing has changed in a number of rounds.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._events, self._rounds = -1, 0

    def force(self, machines: Sequence[Machine]) -> bool:
        """
        Let spinning threads go round again; False if none spins, or too often nothing changed.
        """
        running = [cluster for machine in machines for cluster in machine.running]
        events = self._timeline.events + sum(cluster.events for cluster in running)
        if events != self._events:
            self._events, self._rounds = events, 0
            self._timeline.walk()
        else:
            self._rounds += 1
        if self._rounds >= _FORCED_ROUNDS:
            return False
        if self._rounds >= _ROUNDS_WITHOUT_TIME:
            self._timeline.leap()
        forced = [cluster.schedule.force() for cluster in running]
        return any(forced)


def run_mixed(machines: Sequence[Machine], chance: random.Random) -> bool:
    """Run a block of a random cluster at a time until all wait; return whether any was executed."""
    able = [(machine, cluster) for machine in machines for cluster in machine.running]
    has_run = False
    while able:
        machine, cluster = chosen = chance.choice(able)
        if machine.step(cluster):
            has_run = True
        else:
            able.remove(chosen)
    return has_run
