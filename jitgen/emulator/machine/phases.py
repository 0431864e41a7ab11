# SPDX-License-Identifier: Apache-2.0
"""
The phases of an mbarrier: who has seen which, and what must not happen before.

Three rules, each decided by what is ordered before what, not by what came first in this run:

- An arrival in a phase comes after a wait that saw the phase before complete. PTX ISA, section
  "Phase of the mbarrier object": "For each phase of the mbarrier object, at least one test_wait or
  try_wait operation must be performed which returns True for waitComplete before an arrive-on
  operation in the subsequent phase." If none of the phase's arrivals does, a phase may pass that
  nothing sees: an error. If another one does, the phase cannot end too early, and what the section
  "Phase Completion of the mbarrier object" says still has one meaning: a warning. Slots of a
  pipeline that two CTAs give back to each other, and fill alone at times, are such a case.
- A wait names the current phase or the one before it, so a phase must not become complete while a
  wait for the phase before it may still come. PTX ISA, section "mbarrier.test_wait,
  mbarrier.try_wait" (phaseParity, state).
- A signal counts for the current phase, so it comes after the phase before is known to be complete.
  PTX ISA, sections "Arrive-on operation on mbarrier object" and "complete-tx operation".

A thread that knows how many phases were seen means, by a parity, the next one or the last one. If
it does not know that more have passed, the parity may name another phase than it means. The PTX ISA
gives that a meaning all the same, and threads that wait for nothing may do so: a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.observed import EARLY_ARRIVAL, MISSED_PHASE

if TYPE_CHECKING:
    from jitgen.emulator.machine.barriers import MBarrier
    from jitgen.emulator.machine.clocks import Agents, Clock, Clocks
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.order import Times

Direct = tuple[NDArray[np.int64], "Clock"]
"""Warps that arrive [k], and the clock that they release."""


@dataclass(frozen=True, slots=True)
class Signaller:
    """
    What the issuer of a signal is ordered after: phases that were seen complete, waits, signals.

    Attributes:
        seen: How many phases of the barrier were seen complete by waits that each signalling agent
            is ordered after.
        times: The issuers' entries in the columns of `Order`; None if the clock that they release
            has them.
    """

    seen: int
    times: Times | None


@dataclass(frozen=True, slots=True)
class Poll:
    """
    Waits of some warps that were successful.

    Attributes:
        agents: The warps [k].
        columns, times: A step of each, as `Order.tick` returns it.
        at: Index of the instruction.
    """

    agents: NDArray[np.int64]
    columns: NDArray[np.int64]
    times: Times
    at: int


class Phases:
    """
    How many phases of one barrier were seen complete by waits that each agent is ordered after.

    Attributes:
        column: The column of the clocks with this number for each agent; see `Order`.
    """

    __slots__ = ("_arrivals", "_clocks", "_last_arrivals", "_polls", "_times", "column")

    def __init__(self, clocks: Clocks, name: str) -> None:
        self._clocks = clocks
        self.column = clocks.order.column(f"phases of {name} that were seen")
        self._polls: dict[bytes, Poll] = {}
        self._times: Times | None = None
        self._arrivals: list[Direct] | None = []
        self._last_arrivals: list[Direct] | None = None

    # --- signals ----------------------------------------------------------------------------------

    def signaller(self, agents: Agents) -> Signaller:
        """Return the `Signaller` of agents that signal now, or start work which will signal."""
        return Signaller(self._seen_by(agents), self._clocks.order.times(agents))

    def releaser(self, agents: NDArray[np.int64]) -> Signaller:
        """Return the `Signaller` of agents [k] whose signal releases their whole clocks."""
        return Signaller(self._seen_by(agents), None)

    def _seen_by(self, agents: Agents) -> int:
        """
        Return how many phases were seen complete by waits that one agent, or each of several, is
        ordered after.
        """
        seen = self._clocks.vector[agents, self.column]
        if isinstance(agents, np.ndarray):
            seen = seen[0] if len(agents) == 1 else np.minimum.reduce(seen)
        return int(seen)

    def note_arrival(
        self, f: Fragment, at: int, barrier: MBarrier, by: Signaller, direct: Direct | None
    ) -> None:
        """
        Note an arrival in the phase that is not complete yet, before it counts.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            barrier: The barrier.
            by: The `Signaller` of the issuer at the issue.
            direct: For an arrival of threads, their warps and the clock that it releases; None for
                work that they started.
        """
        if by.seen < barrier.phase:
            f.warn(
                at,
                "early arrival",
                f"arrival in phase {barrier.phase} of {barrier.name}: nothing orders it after a "
                f"successful wait for phase {barrier.phase - 1}",
            )
            if direct is None or not self._follows_completion(direct[1]):
                f.machine.observed.note(EARLY_ARRIVAL, at)
        self._note_signal(by)
        if direct is None:
            self._arrivals = None
        elif self._arrivals is not None:
            self._arrivals.append(direct)

    def note_bytes(self, f: Fragment, at: int, barrier: MBarrier, by: Signaller) -> None:
        """Note bytes that come in the phase that is not complete yet; see `note_arrival`."""
        if by.seen < barrier.phase:
            f.warn(
                at,
                "phase",
                f"bytes of phase {barrier.phase} of {barrier.name} may come in the phase before: "
                f"nothing orders what brings them after a wait for phase {barrier.phase - 1}",
            )
        self._note_signal(by)

    def _note_signal(self, by: Signaller) -> None:
        """Join the times of the issuer of a signal into those of all signals of this phase."""
        if self._times is None:
            self._times = by.times
        elif by.times is not None:
            self._times = _latest(self._times, by.times)

    def complete(self, f: Fragment, at: int, barrier: MBarrier, clock: Clock) -> Clock:
        """
        Note that the phase becomes complete; return the clock that a wait for it acquires.

        Args:
            f: The fragment that executes the instruction `at`, which completes the phase.
            at: The index of that instruction.
            barrier: The barrier, in the phase that becomes complete.
            clock: The clock that the wait acquires, without the order of waits and signals.
        """
        order = self._clocks.order
        if self._times is not None:
            clock = order.added(clock, self._times)
        if barrier.phase and (self.column >= len(clock) or clock[self.column] < barrier.phase):
            f.warn(
                at,
                "phase",
                f"phase {barrier.phase} of {barrier.name} ends here: nothing orders that after a "
                f"successful wait for phase {barrier.phase - 1}",
            )
        for poll in self._polls.values():
            self._check_poll(f, at, barrier, poll, clock)
        self._polls, self._times = {}, None
        self._arrivals, self._last_arrivals = [], self._arrivals
        return clock

    def _check_poll(
        self, f: Fragment, at: int, barrier: MBarrier, poll: Poll, clock: Clock
    ) -> None:
        """Report a warp that may poll for the phase before when this one is complete already."""
        columns = poll.columns
        if columns.max() < len(clock) and (clock[columns] >= poll.times).all():
            return
        for agent, column, time in zip(
            poll.agents.tolist(), poll.columns.tolist(), poll.times.tolist(), strict=True
        ):
            if column < len(clock) and clock[column] >= time:
                continue
            f.warn(
                at,
                "phase",
                f"phase {barrier.phase} of {barrier.name} may be complete before "
                f"{self._clocks.name(agent)} sees phase {barrier.phase - 1}: nothing orders this "
                f"signal, or another of the phase, after its wait\n"
                f"  at {f.machine.program.place(poll.at)}",
            )
            return

    # --- waits ------------------------------------------------------------------------------------

    def note_wait(
        self, f: Fragment, at: int, barrier: MBarrier, agents: NDArray[np.int64], *, is_done: bool
    ) -> None:
        """
        Note a wait by parity of warps [k] and report those that may have missed a phase.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            barrier: The barrier.
            agents: The warps.
            is_done: Whether it is successful: then its parity is that of the phase before the
                current one.
        """
        lag = barrier.phase - self._clocks.vector[agents, self.column]
        is_missed = lag > (1 if is_done else 0)
        if np.count_nonzero(is_missed):
            for agent in agents[is_missed].tolist():
                if not self._knows_completion(agent):
                    f.warn(at, "parity", self._missed(barrier, agent))
                    f.machine.observed.note(MISSED_PHASE, at)
                    break
        if is_done:
            self.note_success(barrier, agents, at)

    def note_success(self, barrier: MBarrier, agents: NDArray[np.int64], at: int) -> None:
        """Note that warps [k] see that the phase before the current one is complete."""
        order = self._clocks.order
        self._clocks.vector[agents, self.column] = barrier.phase
        columns, times = order.tick(agents)
        self._polls[agents.tobytes()] = Poll(agents, columns, times, at)

    def warn_missed(self, f: Fragment, at: int, barrier: MBarrier, agent: int) -> None:
        """Report a wait, by its state, for neither the current phase nor the one before."""
        f.warn(at, "phase", self._missed(barrier, agent))

    def _missed(self, barrier: MBarrier, agent: int) -> str:
        """Return the text of a finding: phases are complete that a waiting warp saw nothing of."""
        seen = int(self._clocks.vector[agent, self.column])
        return (
            f"{self._clocks.name(agent)} waits for {barrier.name}, of which it knows {seen} phases "
            f"to be complete, but {barrier.phase} are: phases have passed by"
        )

    def _knows_completion(self, row: int) -> bool:
        """Return whether an agent comes after all arrivals of the phase before the current one."""
        return self._follows_completion(self._clocks.vector[row])

    def _follows_completion(self, known: Clock) -> bool:
        """Return whether a clock includes all arrivals of the phase before the current one."""
        return self._last_arrivals is not None and all(
            agents.max() < len(known) and bool((known[agents] >= clock[agents]).all())
            for agents, clock in self._last_arrivals
        )


def _latest(one: Times, other: Times) -> Times:
    """Return the larger entry of each column; where one is shorter, the entry of the other."""
    if len(one) < len(other):
        one, other = other, one
    joined = one.copy()
    np.maximum(joined[: len(other)], other, out=joined[: len(other)])
    return joined
