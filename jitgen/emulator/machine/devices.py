# SPDX-License-Identifier: Apache-2.0
"""
Several devices at once: their launches in one schedule, with one set of clocks.

Each device has a stream of launches, which follow each other; nothing but what the kernels do
orders those of different devices. What a kernel leaves is seen by the next launch of its device,
not by a peer. A launch that may start before the one before it has ended knows of it from
griddepcontrol.wait on; it never does start before that here, and is found out by its clocks.

PTX ISA, sections "Scope", "griddepcontrol" and "Memory Consistency Model".
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jitgen.emulator.machine import deadlock
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.grids import Grid, Stream
from jitgen.emulator.machine.link import Link
from jitgen.emulator.machine.machine import Launch, Machine, Standstill, run_mixed
from jitgen.emulator.machine.remote_clocks import ByCluster, join_clocks, without_ended
from jitgen.emulator.machine.timeline import Timeline
from jitgen.emulator.modes import Mode
from jitgen.emulator.program.translate import Program

MOST_DEVICES = 8
"""Devices of one host, all of which see each other's memory."""


@dataclass(frozen=True, slots=True)
class Queue:
    """
    The launches of one device.

    Attributes:
        memory: What the device sees of global memory.
        launches: Programs and launches, in order; replays of a graph repeat them.
        num_sms: Its SMs.
    """

    memory: GlobalMemory
    launches: Sequence[tuple[Program, Launch]]
    num_sms: int


@dataclass(slots=True)
class _Running:
    """
    A device that runs.

    Attributes:
        queue: What it runs.
        stream: What stands for its launches.
        machine: The launch that runs; None before the first and after the last.
        number: Of launches that began.
        last: What is known once the latest launch is over.
        all: What is known once all launches so far are over.
    """

    queue: Queue
    stream: Stream
    machine: Machine | None = None
    number: int = 0
    last: ByCluster = field(default_factory=dict)
    all: ByCluster = field(default_factory=dict)


class Devices:
    """
    Devices that run together.

    Attributes:
        machines: Every launch that began, in order.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        mode: Mode,
        machines: list[Machine] | None = None,
        *,
        time_limit_s: float = math.inf,
    ) -> None:
        """Begin with no launch; `machines` is the list that they are kept in."""
        self.machines: list[Machine] = [] if machines is None else machines
        self._mode, self._time_limit_s = mode, time_limit_s
        self._chance = None if mode.seed is None else random.Random(mode.seed)
        self._timeline = Timeline()
        self._standstill = Standstill(self._timeline)
        for queue in queues:
            queue.memory.link = Link(mode.links) if mode.links else None
        self._devices = [
            _Running(queue, Stream(number, has_peers=True)) for number, queue in enumerate(queues)
        ]

    def run(self) -> None:
        """
        Run all launches of all devices to their end.

        Raises:
            MachineFault: An instruction did what hardware would not survive, or time is over.
            Deadlock: No thread of any device can go on.
        """
        with np.errstate(all="ignore"):
            for device in self._devices:
                self._begin(device)
            while any(device.machine for device in self._devices):
                if not self._advance():
                    raise deadlock.report(self._running())

    def _running(self) -> list[Machine]:
        """Return the launches that run, in the order in which they may."""
        found = [device.machine for device in self._devices if device.machine is not None]
        return found[::-1] if self._mode.is_reversed else found

    def _advance(self) -> bool:
        """Let something happen; False if nothing can."""
        machines, late = self._running(), self._mode.late_device
        first = [machine for machine in machines if machine.grid.stream.device != late]
        last = [machine for machine in machines if machine.grid.stream.device == late]
        if first and any(self._is_lost(machine) for machine in last):
            machines, last = first, []
        has_run = is_busy = False
        for some in (first, last):
            has_run |= self._go_on(some)
            is_busy |= any(machine.is_busy for machine in some)
            if has_run and not is_busy:
                return True
        return self._deliver() or has_run or self._standstill.force(machines)

    def _is_lost(self, machine: Machine) -> bool:
        """Return whether a launch of the late device waits until all other devices have ended."""
        return self._mode.is_lost and machine.grid.number >= self._mode.lost_from

    def _deliver(self) -> bool:
        """Let one store of each device arrive that a link delays; return whether there was one."""
        links = [device.queue.memory.link for device in self._devices]
        number = sum(link.arrive_one() for link in links if link is not None)
        self._timeline.events += number
        return number > 0

    def _go_on(self, machines: Sequence[Machine]) -> bool:
        """Let something happen on some devices; False if all their threads wait."""
        return (
            self._run(machines)
            or any(machine.do_deferred() for machine in machines)
            or any(machine.start(1) for machine in machines)
        )

    def _run(self, machines: Sequence[Machine]) -> bool:
        """Run each device until all its threads wait; return whether any block was executed."""
        if self._chance is not None:
            has_run = run_mixed(machines, self._chance)
        else:
            has_run = sum(machine.run_in_order() for machine in machines) > 0
        return self._follow() or has_run

    def _follow(self) -> bool:
        """Begin the next launch of each device whose launch has ended."""
        over = [one for one in self._devices if one.machine and not one.machine.running]
        for device in over:
            self._end(device)
            self._begin(device)
        return bool(over)

    def _begin(self, device: _Running) -> None:
        """Begin the next launch of a device, if there is one."""
        if device.number == len(device.queue.launches):
            return
        program, launch = device.queue.launches[device.number]
        grid = Grid(
            stream=device.stream,
            number=device.number,
            program=program,
            before=device.last if launch.is_dependent else device.all,
            follows=device.number > 0,
        )
        device.machine = Machine(
            program,
            device.queue.memory,
            launch,
            self._mode,
            time_limit_s=self._time_limit_s,
            num_sms=device.queue.num_sms,
            grid=grid,
            timeline=self._timeline,
        )
        device.machine.start(self._mode.clusters)
        device.number += 1
        self.machines.append(device.machine)

    def _end(self, device: _Running) -> None:
        """End the launch of a device: the next one sees what it did, and what it knew of others."""
        machine = device.machine
        assert machine is not None
        machine.observed.finish()
        device.queue.memory.settle()
        self._timeline.events += 1
        known: ByCluster = {device.stream: np.eye(1, device.number, device.number - 1, np.int64)[0]}
        for clocks, previous in machine.ended:
            known = join_clocks(known, clocks.remote.all_known(clocks, previous))
        device.last = without_ended(known)
        device.all = without_ended(join_clocks(device.all, known))
        device.machine = None
