# SPDX-License-Identifier: Apache-2.0
"""
Waits for mbarriers: try_wait and test_wait.

PTX ISA, sections "mbarrier.test_wait, mbarrier.try_wait". A wait whose phase is not complete
returns false at once. If a thread fails twice and nothing happened in between, it is in a loop, and
is suspended until something happens. So neither a single test nor a loop around a wait needs a
special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread
from jitgen.emulator.isa.mbarrier import PHASE_SHIFT, Group, check_parts, group_threads
from jitgen.emulator.machine.barrier_use import Use
from jitgen.emulator.machine.barriers import MBarrier
from jitgen.emulator.machine.deadlock import name_slot
from jitgen.emulator.machine.fragment import Fragment, Split, Wait, agree
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits

Mask = NDArray[np.bool_] | None


@emits("mbarrier.try_wait", "mbarrier.test_wait", starts_block=True, is_wait=True)
def wait(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``mbarrier.try_wait p, [address], state`` or, with ``.parity``, ``p, [address],
    parity``.

    After a relaxed wait, the waiting threads are ordered after the arrivals only from their next
    fence on.
    """
    check_parts(instruction)
    done, address, awaited = instruction.operands[:3]
    form = Form(is_parity=instruction.has("parity"), is_relaxed=instruction.has("relaxed"))
    arguments = (
        builder.mask(instruction),
        builder.address(address),
        builder.value(awaited, "b32" if form.is_parity else "b64"),
        builder.constant(form, "form"),
    )
    outcome, result = builder.temporary(), builder.temporary()
    builder.do(f"{outcome}, {result} = {builder.call(try_wait, *arguments)}")
    builder.do(f"if {outcome} is not None: return {outcome}")
    builder.define(done, result, "pred", instruction)


@dataclass(frozen=True, slots=True)
class Form:
    """
    The modifiers of a wait.

    Attributes:
        is_parity: Whether the phase is named by its parity; else by the state that an arrival
            returned.
        is_relaxed: Whether the wait orders threads only from their next fence on.
    """

    is_parity: bool
    is_relaxed: bool = False


@dataclass(frozen=True, slots=True)
class _Awaited:
    """
    A phase for which threads wait.

    Attributes:
        barrier: The barrier of the phase.
        number: Its parity, or the state that an arrival returned.
        form: The form of the wait, which says whether the number is a parity.
    """

    barrier: MBarrier
    number: int
    form: Form

    def is_complete(self) -> bool:
        if self.form.is_parity:
            return self.barrier.has_completed(self.number)
        return self.barrier.phase > self.number >> PHASE_SHIFT

    def note(self, f: Fragment, at: int, agents: NDArray[np.int64], *, is_done: bool) -> None:
        """Note a wait of warps, and report warps that may have missed their phase."""
        phases = self.barrier.phases
        if self.form.is_parity:
            phases.note_wait(f, at, self.barrier, agents, is_done=is_done)
        elif is_done:
            if self.barrier.phase > (self.number >> PHASE_SHIFT) + 1:
                phases.warn_missed(f, at, self.barrier, int(agents[0]))
            phases.note_success(self.barrier, agents, at)

    def __str__(self) -> str:
        kind = "parity" if self.form.is_parity else "state"
        return f"{kind} {self.number} of {name_slot(self.barrier)}: {self.barrier.state}"


def try_wait(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, awaited: PerThread, form: Form
) -> tuple[Wait | Split | None, NDArray[np.bool_]]:
    """
    Return whether each thread's phase is complete [n].

    The first of the pair is None, or what the block function is to return at once.
    """
    awaited, observed = f.spread(awaited), f.machine.observed
    done = np.zeros(f.n, np.bool_)
    failures: list[_Awaited] = []
    for group in group_threads(f, at, mask, addresses, Use.WAIT):
        for number, indices in _by_number(awaited, group.indices):
            phase = _Awaited(group.barrier, number, form)
            agents = _agents(f, group, indices)
            is_complete = phase.is_complete()
            observed.note_peek(at)
            if is_complete and observed.puts_off(f.cluster.clocks, at, group.barrier, agents):
                failures.append(phase)  # as if it had asked before
                continue
            phase.note(f, at, agents, is_done=is_complete)
            if is_complete:
                done[indices] = True
                if not observed.ignores(at):
                    _learn(f, group.barrier, agents, form)
            else:
                failures.append(phase)
    if not failures or not _stops(f, at, failures):
        return None, done
    wait = _until_any(f, at, failures)
    goes_on = done if mask is None else done | ~mask
    return [(goes_on, f.block), (~goes_on, wait)] if np.count_nonzero(goes_on) else wait, done


def _by_number(
    awaited: Integers, indices: NDArray[np.int64] | slice
) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Yield the distinct numbers that threads wait for, and the threads."""
    mine = awaited[indices]
    if agree(mine):
        yield int(mine[0]), indices
        return
    where = np.arange(len(awaited))[indices]
    for number in np.unique(mine).tolist():
        yield number, where[mine == number]


def _agents(f: Fragment, group: Group, indices: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    """Return the warps of some threads of a group."""
    if indices is group.indices or isinstance(indices, slice):
        return group.agents
    return f.agents_of(indices)


def _learn(f: Fragment, barrier: MBarrier, agents: NDArray[np.int64], form: Form) -> None:
    """Order warps after the arrivals of the barrier's phase."""
    clock, clocks = barrier.clock, f.cluster.clocks
    if clock is not None and form.is_relaxed:
        clocks.observe(agents, clock)
        clocks.order.learn(agents, clocks.order.of(clock))
    elif clock is not None:
        clocks.acquire(agents, clock)


def _stops(f: Fragment, at: int, failures: list[_Awaited]) -> bool:
    """Return whether the threads failed here before and nothing happened since."""
    found = [(phase.barrier.offset, phase.number) for phase in failures]
    return f.is_spinning(at, f.cluster.events, found)


def _until_any(f: Fragment, at: int, failures: list[_Awaited]) -> Wait:
    """
    Return the wait for one of several phases, or for any event if the threads poll elsewhere too.
    """
    cluster, events = f.cluster, f.cluster.events
    polls = sum(stamp == events for stamp, _ in f.seen.values())

    def is_over() -> bool:
        is_any_complete = any(phase.is_complete() for phase in failures)
        return is_any_complete or (polls > 1 and cluster.events != events)

    return Wait(at, is_over, describe=lambda: "; ".join(map(str, failures)))
