# SPDX-License-Identifier: Apache-2.0
"""
Several devices at once: their launches in one schedule, with one set of clocks.

Each device has streams of launches. Launches of different devices are ordered only by their
kernels. The results of a kernel are visible to the next launch of its stream, but not to peers. A
launch that may start before the previous one has ended is ordered after it only from
griddepcontrol.wait on. In the emulator it never actually starts earlier, but its clocks reveal
accesses that would be too early.

PTX ISA, sections "Scope", "griddepcontrol" and "Memory Consistency Model".
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from jitgen.emulator.machine import deadlock
from jitgen.emulator.machine.link import Link
from jitgen.emulator.machine.machine import Machine, Standstill, run_mixed
from jitgen.emulator.machine.streams import Progress, Queue
from jitgen.emulator.machine.timeline import Timeline
from jitgen.emulator.modes import Mode

MOST_DEVICES = 8
"""Devices of one host, all of which see each other's memory."""


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
        self._devices = [Progress(queue, number) for number, queue in enumerate(queues)]

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
            while not all(device.is_over for device in self._devices):
                if not self._advance():
                    raise deadlock.report(self._running())

    def _running(self) -> list[Machine]:
        """Return the launches that run, in the order in which they may."""
        found = [machine for device in self._devices for machine in device.running.values()]
        return found[::-1] if self._mode.is_reversed else found

    def _advance(self) -> bool:
        """Run one step; return False if there is none."""
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
        """Deliver one store of each device that a link delays; return whether there was one."""
        links = [device.queue.memory.link for device in self._devices]
        number = sum(link.arrive_one() for link in links if link is not None)
        self._timeline.events += number
        return number > 0

    def _go_on(self, machines: Sequence[Machine]) -> bool:
        """Run some launches for a step; False if all their threads wait."""
        return (
            self._run(machines)
            or any(machine.do_deferred() for machine in machines)
            or any(machine.start(1) for machine in machines)
        )

    def _run(self, machines: Sequence[Machine]) -> bool:
        """Run launches until all threads wait; return whether a block ran or a launch ended."""
        if self._chance is not None:
            has_run = run_mixed(machines, self._chance)
        else:
            has_run = sum(machine.run_in_order() for machine in machines) > 0
        return self._follow() or has_run

    def _follow(self) -> bool:
        """Begin the next launches of each device that has ended one; return whether one has."""
        has_ended = False
        for device in self._devices:
            over = [number for number, one in device.running.items() if not one.running]
            for number in over:
                device.running[number].observed.finish()
                device.queue.memory.settle()
                self._timeline.events += 1
                device.end(number)
            if over:
                self._begin(device)
                has_ended = True
        return has_ended

    def _begin(self, device: Progress) -> None:
        """Begin every launch of a device that can start."""
        for number, step, grid in device.ready():
            machine = device.running[number] = Machine(
                step.program,
                device.queue.memory,
                step.launch,
                self._mode,
                time_limit_s=self._time_limit_s,
                num_sms=device.queue.num_sms,
                grid=grid,
                timeline=self._timeline,
            )
            machine.start(self._mode.clusters)
            self.machines.append(machine)
