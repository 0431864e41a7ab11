# SPDX-License-Identifier: Apache-2.0
"""
What a launch observed of its schedule: values that another order of its threads may change.

A run without races and without such an observation stands for every schedule: in each of them every
thread reads the same values, takes the same branches and waits for the same events.

An answer counts where another agent wrote the word and nothing orders the two, whichever came
first. A loop that asks for a word until it holds a fixed value observes nothing if every write
raised the word and the last of them ended the loop, for then it learns of all of them.

If several devices run, words of memory are not watched, and a run proves nothing about other
schedules.

PTX ISA, section "Memory Consistency Model": release and acquire patterns, causality order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.program.observers import COMMUTING, STORE, Kind, Observer, Use
from jitgen.emulator.program.parse import SHARED_WINDOW

if TYPE_CHECKING:
    from jitgen.emulator.arrays import Integers
    from jitgen.emulator.machine.barriers import MBarrier
    from jitgen.emulator.machine.clocks import Clocks
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.machine import Index, Machine

Key = tuple["Clocks | None", int]
"""A word: its address, and the cluster if it lies in shared memory."""

Asker = tuple["Clocks", int, int]
"""An agent of a cluster, and the instruction by which it asks."""

_WORD = 4
"""Bytes of a word."""

EARLY_ARRIVAL, MIXED = "arrival that may count for an earlier phase", "warps that a barrier mixes"
MISSED_PHASE = "wait by parity that phases have passed by"


@dataclass(slots=True)
class Observation:
    """
    An instruction that observed the schedule.

    Attributes:
        what: A text of what it observed.
        at: Its index.
        count: Number of times that it did.
    """

    what: str
    at: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Done:
    """
    An access of an agent to a word.

    Attributes:
        epoch: Epoch of its agent.
        origin: Grid index of the first CTA of its cluster.
        order: Of a write, its kind, such as `add`, `max` or `store`: it says which writes commute.
            Empty for a read.
    """

    epoch: int
    origin: Index
    order: str = ""


@dataclass(slots=True)
class _Word:
    """
    One word of memory that threads ask for.

    Attributes:
        first: Its value before the first write.
        last: Its present value.
        is_rising: Whether every write raised it.
        number: Number of writes that changed it, at most one for each instruction.
        writes: The last write of each agent.
        reads: The last read of each agent that uses what it reads, by instruction.
        polls: The value that each loop read last.
    """

    first: int
    last: int
    is_rising: bool = True
    number: int = 0
    writes: dict[tuple[Clocks, int], _Done] = field(default_factory=dict)
    reads: dict[Asker, _Done] = field(default_factory=dict)
    polls: dict[Asker, int] = field(default_factory=dict)


class Observed:
    """
    The observations of one launch.

    Attributes:
        found: The observations, by index of the instruction.
        watches: Whether accesses of words of memory are to be noted.
        firsts: Clusters that came before another one where the order is observed, by the grid index
            of their first CTA, in the order in which they were found.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._observers = machine.program.observers
        self._words: dict[Key, _Word] = {}
        self._told: set[tuple[int, int, MBarrier, int]] = set()
        self.found: dict[int, Observation] = {}
        self.firsts: dict[Index, None] = {}
        orders = {one.order for one in self._observers.values() if one.order}
        self._asks = any(one.asks_memory for one in self._observers.values())
        is_alone = not machine.grid.stream.has_peers
        self.watches = is_alone and (self._asks or len(orders) > 1 or not orders <= COMMUTING)

    def ignores(self, at: int) -> bool:
        """Return whether nothing depends on what an instruction returns."""
        observer = self._observers.get(at)
        return observer is not None and observer.use is Use.IGNORED

    def note(self, what: str, at: int) -> None:
        """Note that an instruction observed the schedule."""
        known = self.found.get(at)
        if known is None:
            self.found[at] = Observation(what, at)
        else:
            known.count += 1

    def note_peek(self, at: int) -> None:
        """Note a test of a barrier that may fail, unless it is repeated until it succeeds."""
        observer = self._observers.get(at)
        if observer is not None and observer.use is Use.USED:
            self.note(observer.kind, at)

    def puts_off(
        self, clocks: Clocks, at: int, barrier: MBarrier, agents: NDArray[np.int64]
    ) -> bool:
        """
        Return whether a wait that may fail is to do so, the first time that warps ask for a phase.

        This is so only in modes that request it, and not for warps that are ordered after the
        completion of the phase.
        """
        observer = self._observers.get(at)
        if not self._machine.mode.fails_peeks or observer is None or observer.use is not Use.USED:
            return False
        clock, number = barrier.clock, barrier.phase
        new = [agent for agent in agents.tolist() if (at, agent, barrier, number) not in self._told]
        self._told.update((at, agent, barrier, number) for agent in new)
        return any(clock is None or not clocks.comes_after(agent, clock) for agent in new)

    # --- memory -----------------------------------------------------------------------------------

    def read(
        self,
        f: Fragment,
        at: int,
        addresses: NDArray[np.int64],
        agents: NDArray[np.int64],
        values: Integers,
    ) -> None:
        """
        Note what threads read, before they acquire what was released there.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            addresses: Generic ones [k].
            agents: The warps of the threads [k].
            values: The values that were read [k], unsigned.
        """
        observer = self._observers.get(at)
        if not self.watches or observer is None or observer.use is Use.IGNORED:
            return
        clocks = f.cluster.clocks
        for address, agent, value in _words(addresses, agents, values):
            word = self._word(f, address, value)
            if observer.use is Use.SPUN:
                word.polls[clocks, agent, at] = value
                continue
            unknown = self._unknown(f, agent, word.writes)
            if unknown:
                self._note_pair(f, observer.kind, at, unknown)
            word.reads[clocks, agent, at] = _Done(clocks.now(agent), f.cluster.origin)

    def update(
        self,
        f: Fragment,
        at: int,
        addresses: NDArray[np.int64],
        agents: NDArray[np.int64],
        before: Integers,
        after: Integers,
    ) -> None:
        """Note a relaxed write of words [k] or an update of them, after what it reads is noted."""
        if not self.watches:
            return
        clocks, observer = f.cluster.clocks, self._observers[at]
        order, origin = observer.order, f.cluster.origin
        minds = order not in COMMUTING
        is_met = len(np.unique(addresses)) < len(addresses)
        differs = order != STORE or len(np.unique(after)) > 1
        if is_met and differs and (minds or observer.use is Use.USED):
            self.note(_words_for(observer), at)
        met: set[int] = set()
        for address, agent, old, new in _words(addresses, agents, before, after):
            word = self._word(f, address, old)
            if old != new or observer.kind is Kind.ROUNDING:
                unknown = self._unknown(f, agent, word.writes)
                if any(minds or one.order != order for one in unknown):
                    self._note_pair(f, _words_for(observer), at, unknown)
            self._check_reads(f, agent, word)
            if address not in met and old != new:
                word.is_rising &= new > old and old == word.last
                word.number += 1
                word.last = new
                met.add(address)
            word.writes[clocks, agent] = _Done(clocks.now(agent), origin, order)

    def _check_reads(self, f: Fragment, agent: int, word: _Word) -> None:
        """Note reads that an agent which writes now does not come after."""
        clocks = f.cluster.clocks
        for (other, row, at), read in word.reads.items():
            if (other, row) == (clocks, agent) or _knows(clocks, agent, other, row, read.epoch):
                continue
            self._note_pair(f, self._observers[at].kind, at, [read])

    def _word(self, f: Fragment, address: int, value: int) -> _Word:
        key = (None if address < SHARED_WINDOW else f.cluster.clocks, address)
        word = self._words.get(key)
        if word is None:
            word = self._words[key] = _Word(value, value)
        return word

    def _unknown(
        self, f: Fragment, agent: int, writes: dict[tuple[Clocks, int], _Done]
    ) -> list[_Done]:
        """Return the writes of others that an agent does not come after."""
        clocks = f.cluster.clocks
        return [
            done
            for (other, row), done in writes.items()
            if (other, row) != (clocks, agent) and not _knows(clocks, agent, other, row, done.epoch)
        ]

    def _note_pair(self, f: Fragment, what: str, at: int, earlier: list[_Done]) -> None:
        """Note that the order of accesses is observed, and which clusters were first."""
        self.note(what, at)
        for done in earlier:
            if done.origin != f.cluster.origin:
                self.firsts.setdefault(done.origin)

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Note the observations that are only known at the end of the launch."""
        for word in self._words.values():
            for (_, _, at), value in word.polls.items():
                if word.number and not _is_settled(word, self._observers[at], value):
                    self.note(self._observers[at].kind, at)
        program, counts = self._machine.program, self._machine.block_counts
        for at, observer in self._observers.items():
            if self._is_plain(observer):
                number = int(counts[program.block_at(at)])
                if number:
                    self.found[at] = Observation(observer.kind, at, number)

    def _is_plain(self, observer: Observer) -> bool:
        """Return whether an instruction observes the schedule whenever it is executed."""
        if observer.kind is Kind.ASYNCHRONOUS:
            return self._asks
        if observer.kind is Kind.ROUNDING:
            return not observer.order
        is_told = observer.touches_memory or observer.kind is Kind.PEEK
        return observer.use is Use.USED and not is_told


def _words_for(observer: Observer) -> Kind:
    """
    Return the kind of observation that an update makes: `Kind.WRITE`, unless it rounds or its
    result is used.
    """
    is_sum = observer.kind is Kind.ROUNDING
    return observer.kind if is_sum or observer.use is Use.USED else Kind.WRITE


def _words(
    addresses: NDArray[np.int64], agents: NDArray[np.int64], *values: Integers
) -> Iterator[tuple[int, ...]]:
    """
    Yield address, agent and values of each word of 4 bytes that accesses consist of or lie in.
    """
    number = max(1, values[0].itemsize // _WORD)
    if number > 1:
        steps = np.tile(_WORD * np.arange(number), len(addresses))
        addresses, agents = np.repeat(addresses, number) + steps, np.repeat(agents, number)
        values = tuple(np.ascontiguousarray(some).view(np.uint32) for some in values)
    columns = (addresses & -_WORD, agents, *values)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _is_settled(word: _Word, observer: Observer, value: int) -> bool:
    """Return whether a loop can only end as it did, after the last write, in every schedule."""
    until = observer.until
    if until is None or value != word.last or not word.is_rising:
        return False
    if until.number is None:
        return True
    if not until.holds(value) or until.holds(word.first):
        return False
    return until.comparison == "eq" or word.number == 1


def _knows(own: Clocks, row: int, other: Clocks, agent: int, epoch: int) -> bool:
    """Return whether an agent comes after what another one, of this cluster or not, did."""
    if other is own:
        return bool(own.vector[row, agent] >= epoch)
    return own.remote.knows(own, row, other, agent, epoch)
