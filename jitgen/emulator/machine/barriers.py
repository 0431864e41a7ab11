# SPDX-License-Identifier: Apache-2.0
"""
The three kinds of barriers, and what threads learn from them.

A thread that arrives gives its clock to the barrier; a thread that leaves takes over the clocks of
all that arrived in the phase. PTX ISA, sections "mbarrier", "bar, barrier" and "barrier.cluster".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Clock, join
from jitgen.emulator.machine.observed import MIXED
from jitgen.emulator.machine.phases import Phases, Signaller
from jitgen.emulator.machine.users import Users

if TYPE_CHECKING:
    from jitgen.emulator.machine.cluster import Cluster
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment

MAX_COUNT = 2**20 - 1
"""The largest arrival count, and the largest transaction count, of an mbarrier."""

_Arrival = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Warps that arrived together, and the epoch of each then."""


def together(one: Clock | None, other: Clock | None) -> Clock | None:
    """Return the join of two clocks, of which None is the smallest. Neither is changed."""
    if one is None or other is None:
        return other if one is None else one
    return join(one, other)


class MBarrier:
    """
    An mbarrier: the state of eight bytes of shared memory after mbarrier.init.

    A phase is complete when no arrival and no transaction is pending. Instructions get mbarriers
    from `jitgen.emulator.machine.barrier_use`, which checks the rules.

    Attributes:
        cta, offset: Its CTA, and its offset in shared memory.
        count: Arrivals of a phase.
        pending: Arrivals that this phase lacks.
        transactions: Bytes that this phase expects and has not got; may be negative for a while.
        phase: Number of completed phases.
        transfer_phase: Number of phases that were complete after the last one that got bytes; 0 if
            none did.
        agent: The clock agent of the bulk copies which signal it: what they write in the phase
            `phase` has the epoch ``phase + 1``.
        clock: The clock that a successful wait acquires.
        at: Index of the instruction that initialised it.
        initialised_by: Agent of the warp that initialised it, and its epoch then.
        fences: Epochs of the first fences after that, by the agents that executed them: what the
            async proxy needs to see a barrier.
        phases: The phases that agents have seen complete.
        users: The agents that used it, with the epoch of their last use.
    """

    __slots__ = (
        "_arriving", "_has_transfer", "agent", "at", "clock", "count", "cta", "fences",
        "initialised_by", "offset", "pending", "phase", "phases", "transactions", "transfer_phase",
        "users",
    )  # fmt: skip

    def __init__(
        self, cta: Cta, offset: int, count: int, at: int, initialised_by: tuple[int, int]
    ) -> None:
        self.cta, self.offset, self.count = cta, offset, count
        self.pending = count
        self.transactions = self.phase = self.transfer_phase = 0
        clocks = cta.cluster.clocks
        self.agent = clocks.agent(f"{cta.name} copies signalling mbarrier {offset:#x}")
        self.phases = Phases(clocks, self.name)
        self.clock: Clock | None = None
        self.at = at
        self.initialised_by = initialised_by
        self.fences: dict[int, int] = {}
        self.users = Users(clocks, initialised_by, ends=cta.machine.ends_barriers)
        self._arriving: Clock | None = None
        self._has_transfer = False

    def arrive(
        self,
        f: Fragment,
        at: int,
        number: int,
        clock: Clock | None,
        by: Signaller,
        direct: NDArray[np.int64] | None = None,
    ) -> None:
        """
        Count `number` arrivals, which release `clock`.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            number: Number of arrivals.
            clock: The clock that they release; None if there is none.
            by: The `Signaller` of their issuer at the issue.
            direct: The warps whose threads arrive [k]; None: work that they started does.

        Raises:
            MachineFault: The phase does not expect as many.
        """
        if number > self.pending:
            lacks = f"of {self.count} only {self.pending} lack"
            f.fault(at, f"{self.name} gets {number} arrivals, {lacks}")
        known = None if direct is None or clock is None else (direct, clock)
        self.phases.note_arrival(f, at, self, by, known)
        self.pending -= number
        self._arriving = together(self._arriving, clock)
        self._advance(f, at)

    def expect_arrivals(self, f: Fragment, at: int, number: int) -> None:
        """Let the phase expect `number` arrivals in addition to the barrier's count."""
        self.pending += number
        if self.pending > MAX_COUNT:
            f.fault(at, f"{self.name} lacks {self.pending} arrivals, beyond its range")

    def expect(self, f: Fragment, at: int, number: int) -> None:
        """Add `number` to the bytes that the phase expects."""
        self._transact(f, at, number)
        self._advance(f, at)

    def complete(self, f: Fragment, at: int, number: int, by: Signaller, times: int = 1) -> None:
        """
        Count `number` bytes as arrived, `times` times; `by` is the `Signaller` of their issuer at
        the issue.
        """
        if times > 1 and not self.ends_within(number, times):
            number, times = number * times, 1
        for _ in range(times):
            self._has_transfer = True
            self.phases.note_bytes(f, at, self, by)
            self._transact(f, at, -number)
            self._advance(f, at)

    def ends_within(self, number: int, times: int) -> bool:
        """
        Return whether counting `number` bytes `times` times completes the phase before the last
        time.
        """
        lacking = self.transactions
        return self.pending == 0 and 0 < lacking < number * times and lacking % number == 0

    def _transact(self, f: Fragment, at: int, number: int) -> None:
        self.transactions += number
        if abs(self.transactions) > MAX_COUNT:
            f.fault(at, f"{self.name} expects {self.transactions} bytes, beyond its range")

    def _advance(self, f: Fragment, at: int) -> None:
        """Complete the phase if nothing is pending; wake the waiting threads."""
        if self.pending == 0 and self.transactions == 0:
            self.clock = self.phases.complete(f, at, self, self._completed_clock())
            self.phase += 1
            self.pending = self.count
            self._arriving = None
            if self._has_transfer:
                self._has_transfer, self.transfer_phase = False, self.phase
        self.cta.cluster.events += 1

    def _completed_clock(self) -> Clock:
        """
        Return the clock that a wait for this phase acquires: of the phases before, the arrivals and
        the copies.
        """
        clock = np.zeros(self.agent + 1, np.int64)
        clock[self.agent] = self.phase + 1
        for known in (self.clock, self._arriving):
            clock = clock if known is None else join(clock, known)
        return clock

    def has_completed(self, parity: int) -> bool:
        """Return whether the latest phase of this parity is complete, as try_wait.parity asks."""
        return self.phase & 1 != parity & 1

    @property
    def is_idle(self) -> bool:
        """Whether the phase has had no arrival and expects no bytes."""
        return self.pending == self.count and self.transactions == 0

    @property
    def name(self) -> str:
        """Text that names the barrier and its CTA."""
        return f"mbarrier {self.offset:#x} of {self.cta.name}"

    @property
    def state(self) -> str:
        """Text of the completed phases, the arrivals, and the pending bytes."""
        arrived = self.count - self.pending
        bytes_ = f", {self.transactions} bytes pending" if self.transactions else ""
        return f"{self.phase} phases complete, {arrived} of {self.count} arrived{bytes_}"


class NamedBarrier:
    """
    One of a CTA's 16 barriers of bar.sync.

    Attributes:
        number: Its number, 0 to 15.
        generation: Number of times that it was complete.
        arrived: Threads that arrived since then.
        expected: Threads that make it complete; None: all that are alive.
        at: The instruction of the first arrival.
        values: For bar.red: the values of the threads that arrived.
        result: For bar.red: the values of the last generation.
    """

    def __init__(self, cta: Cta, number: int) -> None:
        self._cta = cta
        self.number = number
        self.generation = self.arrived = 0
        self.expected: int | None = None
        self.at = -1
        self.values: list[NDArray[np.bool_]] = []
        self.result: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._arriving: Clock | None = None
        self._waiters: list[NDArray[np.int64]] = []
        self._arrivals: list[_Arrival] = []
        self._arrivals_before: list[_Arrival] = []

    def arrive(
        self, fragment: Fragment, at: int, number: int, expected: int | None, *, waits: bool
    ) -> int:
        """
        Arrive at the barrier with the threads of a fragment.

        Args:
            fragment: Its warps wait, if `waits`, until the barrier is complete.
            at: Index of the instruction.
            number: Threads it counts for.
            expected: Threads that the instruction names; None if it names none.
            waits: Whether the threads wait until the barrier is complete.

        Returns:
            The generation that the threads wait for.

        Raises:
            MachineFault: Too many arrive, or the threads do not agree how many.
        """
        if self.arrived == 0:
            self.expected, self.at = expected, at
        if expected != self.expected:
            first = self._cta.machine.program.place(self.at)
            fragment.fault(
                at, f"{self.name} is used with {expected} threads, but before by {first}"
            )
        self.arrived += number
        if self.arrived > self._target:
            fragment.fault(at, f"{self.name}: {self.arrived} threads arrive of {self._target}")
        clocks = self._cta.cluster.clocks
        self._note_arrival(fragment, at)
        self._arriving = together(self._arriving, clocks.release(fragment.agents))
        if waits:
            self._waiters.append(fragment.agents)
        generation = self.generation
        self.recount()
        return generation

    def _note_arrival(self, fragment: Fragment, at: int) -> None:
        """
        Note warps that arrive, and report those that may arrive in the generation before.

        They may if nothing orders them after all its arrivals: then which warps meet is a matter of
        the schedule, for the barrier only counts them.
        """
        clocks, agents = self._cta.cluster.clocks, fragment.agents
        for others, epochs in self._arrivals_before:
            if (clocks.vector[agents[:, None], others] < epochs).any():
                fragment.machine.observed.note(MIXED, at)
        self._arrivals.append((agents, clocks.vector[agents, agents]))

    @property
    def _target(self) -> int:
        return self._cta.num_alive if self.expected is None else self.expected

    def recount(self) -> None:
        """Complete the barrier if all have arrived."""
        if self.arrived == 0 or self.arrived < self._target:
            return
        self.generation += 1
        self.arrived = 0
        if self._arriving is not None:
            for agents in self._waiters:
                self._cta.cluster.clocks.acquire(agents, self._arriving)
        self._arriving, self._waiters = None, []
        self._arrivals, self._arrivals_before = [], self._arrivals
        if self.values:
            self.result, self.values = np.concatenate(self.values), []
        self._cta.cluster.events += 1

    @property
    def name(self) -> str:
        """Text that names the barrier and its CTA."""
        return f"barrier {self.number} of {self._cta.name}"

    @property
    def state(self) -> str:
        """Text that says how many threads have arrived, and of how many."""
        return f"{self.arrived} of {self._target} threads arrived"


class ClusterBarrier:
    """
    The one barrier of a cluster; all threads of it that are alive arrive, then wait.

    Attributes:
        phase: Number of completed phases.
        arrived: Living threads that arrived in this phase.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.phase = self.arrived = 0
        self.clock: Clock | None = None
        self._arriving: Clock | None = None

    def arrive(self, number: int, clock: Clock) -> None:
        """Arrive with `number` threads that release `clock`."""
        self.arrived += number
        self._arriving = together(self._arriving, clock)
        self._recount()

    def leave(self, fragment: Fragment) -> None:
        """Remove exiting threads from those that the barrier waits for."""
        self.arrived -= int((fragment.cta.cluster_arrivals[fragment.s] == self.phase).sum())
        self._recount()

    @property
    def _target(self) -> int:
        return sum(cta.num_alive for cta in self._cluster.ctas)

    def _recount(self) -> None:
        if 0 < self.arrived == self._target:
            self.phase += 1
            self.arrived = 0
            self.clock, self._arriving = self._arriving, None
            self._cluster.events += 1

    @property
    def state(self) -> str:
        """Text that says how many threads have arrived, and of how many."""
        return f"{self.arrived} of {self._target} threads of the cluster arrived"
