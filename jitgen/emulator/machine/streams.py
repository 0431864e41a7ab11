# SPDX-License-Identifier: Apache-2.0
"""
The launches of one device: streams, in which they follow each other, and what waits across these.

What a launch may know when it starts is what is known once those before it are over: what they did,
and what they learnt of peers. A replay begins when all of the one before is over.

CUDA C++ Programming Guide, sections "Streams", "Cross-stream Dependencies" and "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.grids import Grid, Stream
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.machine.remote_clocks import ByCluster, join_clocks, without_ended
from jitgen.emulator.program.translate import Program


@dataclass(frozen=True, slots=True)
class Step:
    """
    A launch of a replay.

    Attributes:
        program, launch: The kernel, and how it is launched.
        stream: The stream of the device, in which it follows the step before.
        after: Numbers of earlier steps of other streams that are over before it starts.
    """

    program: Program
    launch: Launch
    stream: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """
    The launches of one device.

    Attributes:
        memory: The global memory that the device can access.
        steps: Its launches, in the order in which the host made them.
        num_sms: Number of its SMs.
        replays: Number of times that it runs the steps.
    """

    memory: GlobalMemory
    steps: Sequence[Step]
    num_sms: int
    replays: int = 1


class Progress:
    """
    The launches of a device: which ones run, have ended, or can start.

    Attributes:
        queue: The work of the device.
        running: Launches that run, by the number of their step.
    """

    def __init__(self, queue: Queue, device: int) -> None:
        self.queue = queue
        self.running: dict[int, Machine] = {}
        self._stream = Stream(device, has_peers=True)
        self._number = self._replay = 0
        self._known: dict[int, ByCluster] = {}  # once the launch of a step is over
        self._until: dict[int, ByCluster] = {}  # once it is, and all before it in its stream
        self._begun: set[int] = set()
        self._base: ByCluster = {}
        self._previous: list[int | None] = []
        last: dict[int, int] = {}
        for number, step in enumerate(queue.steps):
            self._previous.append(last.get(step.stream))
            last[step.stream] = number

    @property
    def is_over(self) -> bool:
        """Whether no launch runs and none is left."""
        return not self.running and (not self.queue.steps or self._replay == self.queue.replays)

    def ready(self) -> Iterator[tuple[int, Step, Grid]]:
        """Yield each step that can start now; it counts as begun."""
        if self._replay == self.queue.replays:
            return
        for number, step in enumerate(self.queue.steps):
            needs = [*step.after, *self._one(self._previous[number])]
            if number in self._begun or any(one not in self._until for one in needs):
                continue
            grid = Grid(
                stream=self._stream,
                number=self._number,
                program=step.program,
                before=self._before(number, step, self._known),
                follows=self._number > 0,
            )
            self._begun.add(number)
            self._number += 1
            yield number, step, grid

    def end(self, number: int) -> None:
        """
        End a launch: later launches are ordered after its work, and after the work of others that
        it was ordered after.
        """
        machine = self.running.pop(number)
        index = machine.grid.number
        known: ByCluster = {self._stream: np.eye(1, index + 1, index, np.int64)[0]}
        for clocks, previous in machine.ended:
            known = join_clocks(known, clocks.remote.all_known(clocks, previous))
        self._known[number] = without_ended(known)
        before = self._before(number, self.queue.steps[number], self._until)
        self._until[number] = without_ended(join_clocks(before, known))
        if len(self._until) == len(self.queue.steps):
            for until in self._until.values():
                self._base = join_clocks(self._base, until)
            self._replay += 1
            for left in (self._known, self._until, self._begun):
                left.clear()

    def _before(self, number: int, step: Step, ended: dict[int, ByCluster]) -> ByCluster:
        """
        Return the work that a step is ordered after.

        It is the work up to each step in `after`, and up to the step before it in its stream. If it
        may start early, the latter is what `ended` has.
        """
        if not step.launch.is_dependent:
            ended = self._until
        previous = self._previous[number]
        found = self._base if previous is None else ended[previous]
        for other in step.after:
            found = join_clocks(found, self._until[other])
        return without_ended(found)

    @staticmethod
    def _one(number: int | None) -> list[int]:
        return [] if number is None else [number]
