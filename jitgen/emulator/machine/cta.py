# SPDX-License-Identifier: Apache-2.0
"""
A CTA: register files, shared memory, barriers, and which of its threads are alive.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine import exits
from jitgen.emulator.machine.barriers import MBarrier, NamedBarrier
from jitgen.emulator.machine.clocks import AsyncUnit
from jitgen.emulator.machine.fragment import WARP, Fragment, Threads
from jitgen.emulator.machine.in_flight import InFlight
from jitgen.emulator.machine.lanes import ALL_LANES
from jitgen.emulator.machine.lazy_zeros import lazy_zeros
from jitgen.emulator.machine.live_barriers import LiveBarriers
from jitgen.emulator.machine.registers import RegisterPool
from jitgen.emulator.machine.shared_memory import SharedMemory
from jitgen.emulator.machine.tensor_memory import TensorMemory

if TYPE_CHECKING:
    from jitgen.emulator.machine.cluster import Cluster
    from jitgen.emulator.machine.machine import Machine

RANK_SHIFT = 24
"""A shared address is the CTA's rank in its cluster above these bits, and an offset below."""

OFFSET_MASK = (1 << RANK_SHIFT) - 1

NOT_ARRIVED = -1


class Cta:
    """
    One CTA.

    Attributes:
        cluster, machine: The cluster and the machine that run it.
        rank: Its number in the cluster.
        index: Its place in the grid (x, y, z).
        base: The first of its shared addresses: ``rank << 24``.
        num_threads: Threads at the start.
        r, q, h, p: Register files [registers, num_threads] of uint32, uint64, uint16 and bool.
        unwritten: The threads that have not yet written a register, for registers that may be read
            before a write.
        shared: The CTA's shared memory.
        guarded: Objects made by mbarrier.init, and the bytes that they live in.
        barriers: Its mbarriers, by offset in shared memory.
        named: Barriers 0..15 of bar.sync, on first use.
        live: Threads of each warp that have not exited.
        agent0: Clock agent of warp 0; those of the other warps follow.
        agents: Clock agents of all warps.
        cluster_arrivals: Phase of the cluster's barrier at which each thread arrived, or -1.
        reductions: Generation in which each thread arrived at a bar.red, or -1.
        registers: The number of registers of each warp, and of free ones.
        has_exited: Whether all threads have exited.
        known_to: Ranks of other CTAs of which a thread knows that this one has started.
        remote_accesses: By agent of another CTA, epoch and instruction of its latest access here.
    """

    def __init__(self, cluster: Cluster, rank: int, index: tuple[int, int, int]) -> None:
        self.cluster: Cluster = cluster
        self.machine: Machine = cluster.machine
        self.rank: int = rank
        self.index: tuple[int, int, int] = index
        self.base = rank << RANK_SHIFT
        self.num_threads = threads = self.machine.launch.num_threads
        self.name = f"{self.machine.grid.title}CTA {index}" + (
            f" rank {rank}" if self.machine.launch.cluster_size > 1 else ""
        )
        self._make_registers(threads)
        self.num_warps: int = -(-threads // WARP)
        self.live = np.bincount(np.arange(threads) // WARP)
        self.num_alive = threads
        self.has_exited = False
        names = [f"{self.name} warp {warp}" for warp in range(self.num_warps)]
        self.agents = np.array([cluster.clocks.agent(name) for name in names])
        self.agent0: int = int(self.agents[0])
        self.shared = SharedMemory(self, self.machine.shared_end)
        self.guarded = LiveBarriers()
        self.barriers: dict[int, MBarrier] = self.guarded.by_offset
        self.named: dict[int, NamedBarrier] = {}
        self.cluster_arrivals = np.full(threads, NOT_ARRIVED)
        self.reductions = np.full(threads, NOT_ARRIVED)
        self.registers = RegisterPool(self.num_warps, self.machine.launch.registers)
        self.known_to: set[int] = set()
        self.remote_accesses: dict[int, tuple[int, int]] = {}
        self.units: dict[tuple[str, int, int], AsyncUnit] = {}
        self._lane_units: dict[str, dict[tuple[int, int], AsyncUnit]] = {}
        self._threads: dict[bytes, Threads] = {}

    def _make_registers(self, threads: int) -> None:
        """Make the registers, all zeros, though PTX promises no value; see `unwritten`."""
        count = self.machine.program.register_counts
        self.r: NDArray[np.uint32] = lazy_zeros((count["r"], threads), np.uint32)
        self.q: NDArray[np.uint64] = lazy_zeros((count["q"], threads), np.uint64)
        self.h: NDArray[np.uint16] = np.zeros((count["h"], threads), np.uint16)
        self.p: NDArray[np.bool_] = np.zeros((count["p"], threads), np.bool_)
        self.unwritten: NDArray[np.bool_] = np.ones((count.get("unwritten", 0), threads), np.bool_)

    @cached_property
    def tensor(self) -> TensorMemory:
        """Tensor memory, made on first use."""
        return TensorMemory(self)

    @cached_property
    def in_flight(self) -> InFlight:
        """The registers that wgmma uses at present; made on first use."""
        return InFlight(self)

    @cached_property
    def local(self) -> NDArray[np.uint8]:
        """Local memory, made on first use [num_threads, bytes]."""
        return np.zeros((self.num_threads, self.machine.program.local_end), np.uint8)

    @cached_property
    def local_written(self) -> NDArray[np.bool_]:
        """Whether each byte of local memory was written [num_threads, bytes]."""
        return np.zeros(self.local.shape, np.bool_)

    @property
    def has_tensor_memory(self) -> bool:
        """Whether an instruction touched tensor memory."""
        return "tensor" in self.__dict__

    def threads(self, lanes: NDArray[np.int64]) -> Threads:
        """Return the one `Threads` object for thread numbers, ascending [n]."""
        key = lanes.tobytes()
        found = self._threads.get(key)
        if found is None:
            found = self._threads[key] = Threads(self, lanes)
        return found

    def unit(self, kind: str, warp: int, lane: int = ALL_LANES) -> AsyncUnit:
        """
        Return an asynchronous unit, made on first use.

        Args:
            kind: Kind of its work, such as "bulk".
            warp: The warp that it belongs to.
            lane: The lane that it belongs to; `ALL_LANES`: the whole warp. For "cp.async" a bit for
                each of the lanes that copy together.
        """
        found = self.units.get((kind, warp, lane))
        if found is None:
            agent = self.cluster.clocks.agent(f"{self.name} warp {warp} {kind}")
            found = self.units[kind, warp, lane] = AsyncUnit(agent)
            if lane != ALL_LANES:
                self._lane_units.setdefault(kind, {})[warp, lane] = found
        return found

    def lane_units(self, kind: str) -> dict[tuple[int, int], AsyncUnit]:
        """Return the units of a kind that belong to lanes, by warp and lane; see `unit`."""
        return self._lane_units.get(kind, {})

    def note_remote(self, agents: NDArray[np.int64], at: int) -> None:
        """Remember that agents of another CTA access this one's shared memory now."""
        now = self.cluster.clocks.now
        for agent in agents.tolist():
            self.remote_accesses[agent] = (now(agent), at)

    def leave(self, fragment: Fragment) -> None:
        """Let threads exit; barriers that count living threads may be complete without them."""
        threads = fragment.threads
        self.live[threads.warps] -= threads.counts
        self.num_alive -= threads.n
        self.has_exited = self.num_alive == 0
        if self.has_exited:
            exits.check_remote(self)
        for barrier in self.named.values():
            barrier.recount()
        self.cluster.barrier.leave(fragment)
