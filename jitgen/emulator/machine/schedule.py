# SPDX-License-Identifier: Apache-2.0
"""
The choice of the fragment of a cluster that runs next.

Fragments that meet at a block become one. The lowest block that can run goes first, so that threads
which took different ways meet again soon; a random mode chooses freely. A block with an instruction
that a whole warp executes together is entered by whole warps only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jitgen.emulator.machine.faults import name_fragment
from jitgen.emulator.machine.fragment import WARP, Fragment, Outcome, Split, Wait, merge
from jitgen.emulator.program.blocks import PASSED, TAKEN

if TYPE_CHECKING:
    from jitgen.emulator.machine.cluster import Cluster

Key = tuple[int, int, int]
"""Block, rank of the CTA, and warp where warps run alone (else 0)."""

_FAIR_TURN = 256
"""
After this number of blocks the fragment that waited longest runs, so that an idle loop cannot block
it for ever.
"""


class Schedule:
    """
    The fragments of a cluster.

    Attributes:
        ready: Fragments that can run, one for each key.
        waiting: Fragments that cannot run, each with its `Wait`.
    """

    def __init__(self, cluster: Cluster) -> None:
        machine = cluster.machine
        self._cluster, self._machine = cluster, machine
        self._program = machine.program
        self._by_warp, self._chance = machine.mode.by_warp, machine.chance
        self.ready: dict[Key, Fragment] = {}
        self.waiting: list[tuple[Fragment, Wait]] = []
        self._last_events = (-1, -1)
        self._turns = 0
        step = WARP if self._by_warp else machine.launch.num_threads
        for cta in cluster.ctas:
            for first in range(0, cta.num_threads, step):
                last = min(first + step, cta.num_threads)
                self._put(Fragment(cta, cta.threads(np.arange(first, last))))

    def is_empty(self) -> bool:
        """Return whether every thread has exited."""
        return not self.ready and not self.waiting

    def step(self) -> bool:
        """Execute one block of a fragment or more; return False if none can run."""
        self._wake()
        fragment = self._choose()
        if fragment is None:
            return False
        self._continue(*self._execute(fragment))
        return True

    def _execute(self, fragment: Fragment) -> tuple[Fragment, object]:
        """
        Execute the block of a fragment, and the following blocks as long as this fragment is the
        next to run.

        Returns:
            The fragment, or a part of it, whose next block is to be decided, and the outcome of its
            block.
        """
        while True:
            outcome = self._execute_one(fragment)
            while type(outcome) is tuple:
                fragment, outcome = self._branch(fragment, *outcome)
            if type(outcome) is not int or not self._is_first(fragment, outcome):
                return fragment, outcome
            fragment.block = outcome

    def _execute_one(self, fragment: Fragment) -> object:
        """Execute the block of a fragment, and count it unless it is to be executed again."""
        block = fragment.block
        outcome = self._program.functions[block](fragment)
        fragment.is_forced = False
        if type(outcome) is not Wait or not outcome.retry:
            self._machine.block_counts[block] += fragment.threads.num_warps
        return outcome

    def _is_first(self, fragment: Fragment, block: int) -> bool:
        """Return whether a fragment that goes on at `block` would be chosen at once."""
        if self._chance is not None or self._machine.mode.is_reversed:
            return False
        if not fragment.block < block:
            return False
        events = (self._cluster.events, self._machine.timeline.events)
        if events != self._last_events or any(key[0] <= block for key in self.ready):
            return False
        return self._may_enter(fragment, block)

    def _wants_lanes(self, block: int) -> bool:
        """Return whether certain lanes of a warp may only enter a block together."""
        return self._program.whole_warp[block] or self._program.members[block] != 0

    def _may_enter(self, fragment: Fragment, block: int) -> bool:
        """Return whether all lanes that a block requires are in the fragment."""
        members = self._program.members[block]
        if members and not fragment.has(members).all():
            return False
        return not self._program.whole_warp[block] or fragment.is_whole()

    def force(self) -> bool:
        """Make spinning fragments ready, to go round once more; return whether there are any."""
        spinning = [fragment for fragment, wait in self.waiting if wait.retry]
        self.waiting = [entry for entry in self.waiting if not entry[1].retry]
        for fragment in spinning:
            fragment.is_forced = True
            self._put(fragment)
        return bool(spinning)

    def _wake(self) -> None:
        """Make fragments ready that no longer wait."""
        events = (self._cluster.events, self._machine.timeline.events)
        if events == self._last_events:
            return
        self._last_events = events
        still = []
        for entry in self.waiting:
            fragment, wait = entry
            if wait.is_over():
                if not wait.retry:
                    fragment.block = wait.then
                self._put(fragment)
            else:
                still.append(entry)
        self.waiting = still

    def _put(self, fragment: Fragment) -> None:
        """Make a fragment ready, together with the one at the same block."""
        warp = int(fragment.warps[0]) if self._by_warp else 0
        key = (fragment.block, fragment.cta.rank, warp)
        other = self.ready.pop(key, None)
        self.ready[key] = fragment if other is None else merge(other, fragment)

    def _choose(self) -> Fragment | None:
        """
        Take the fragment that runs next, or a part of one, out of `ready`; None if none can run.
        """
        ready = self.ready
        if not ready:
            return None
        keys = self._order()
        for key in keys:
            if self._may_enter(ready[key], key[0]):
                return ready.pop(key)
        for key in keys:
            part = self._whole_part(key)
            if part is not None:
                return part
        return None

    def _order(self) -> list[Key]:
        """Return the keys of `ready`, in the order in which they may run."""
        keys = list(self.ready)
        if self._chance is not None:
            self._chance.shuffle(keys)
            return keys
        self._turns += 1
        if self._turns % _FAIR_TURN and len(keys) > 1:
            keys.sort(reverse=self._machine.mode.is_reversed)
        return keys

    def _whole_part(self, key: Key) -> Fragment | None:
        """
        Split off the warps of a fragment that have all the lanes that the block requires, and
        return them; None if there are none. The other warps stay ready.
        """
        fragment = self.ready[key]
        threads = fragment.threads
        members = self._program.members[key[0]]
        is_whole = threads.counts == fragment.cta.live[threads.warps]
        if members and not self._program.whole_warp[key[0]]:
            is_whole = fragment.has(members)
        if not is_whole.any():
            return None
        mask = np.repeat(is_whole, threads.counts)
        self.ready[key] = fragment.part(~mask)
        return fragment.part(mask)

    def _continue(self, fragment: Fragment, outcome: object) -> None:
        """Send the threads where the block function says."""
        if isinstance(outcome, int | Wait):
            self._go(fragment, outcome)
        else:
            assert isinstance(outcome, list)
            self._split(fragment, outcome)

    def _branch(
        self, fragment: Fragment, mask: np.ndarray, taken: int, other: int
    ) -> tuple[Fragment, object]:
        """
        Send the threads under the mask to one block, the others to another.

        Returns:
            The fragment whose next block is still to be decided, and that block if all threads go
            there.
        """
        number = np.count_nonzero(mask)
        if number in {0, fragment.n}:
            self._machine.ways[fragment.block] |= TAKEN if number else PASSED
            return fragment, taken if number else other
        self._machine.ways[fragment.block] |= TAKEN | PASSED
        if taken == other + 1 and self._chance is None and not self._wants_lanes(other):
            return self._detour(fragment, mask, other)
        self._go(fragment.part(mask), taken)
        return fragment.part(~mask), other

    def _detour(self, fragment: Fragment, mask: np.ndarray, other: int) -> tuple[Fragment, object]:
        """
        Execute a block that the threads under the mask skip, for the other threads.

        They are mostly the one elected lane; the other threads wait for them after the block.
        """
        part = fragment.part(~mask)
        part.block = other
        outcome = self._execute_one(part)
        if type(outcome) is int and outcome == other + 1:
            return fragment, outcome
        self._go(fragment.part(mask), other + 1)
        return part, outcome

    def _split(self, fragment: Fragment, parts: Split) -> None:
        for mask, outcome in parts:
            number = np.count_nonzero(mask)
            if number == fragment.n:
                self._go(fragment, outcome)
            elif number:
                self._go(fragment.part(mask), outcome)

    def _go(self, fragment: Fragment, outcome: Outcome) -> None:
        """Send all threads of a fragment the same way."""
        if isinstance(outcome, Wait):
            if outcome.is_over():
                fragment.block = fragment.block if outcome.retry else outcome.then
                self._put(fragment)
            else:
                self.waiting.append((fragment, outcome))
        elif outcome < 0:
            fragment.cta.leave(fragment)
        else:
            fragment.block = outcome
            self._put(fragment)

    def describe(self) -> list[str]:
        """Return a paragraph of text for each fragment: where it is, and what it waits for."""
        place = self._program.place
        lines = [
            f"{name_fragment(fragment)} wait for {wait.describe()}\n    at {place(wait.at)}"
            for fragment, wait in self.waiting
        ]
        for fragment in self.ready.values():
            first = self._program.blocks[fragment.block].start
            why = "can run" if fragment.is_whole() else "wait for the other lanes of their warps"
            lines.append(f"{name_fragment(fragment)} {why}\n    at {place(first)}")
        return sorted(lines)
