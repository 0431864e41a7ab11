# SPDX-License-Identifier: Apache-2.0
"""
What all launches that run together share: the count of writes to global memory, and the time.

Time is what `%clock` and `%globaltimer` tell. It grows with every step of a schedule, and leaps
ahead when all threads only wait for each other, so that waits with a limit come to it.

PTX ISA, section "Special Registers".
"""

from __future__ import annotations

_FIRST_LEAP, _LAST_LEAP = 1 << 10, 1 << 42
"""Nanoseconds: a microsecond, more than an hour. Each leap of a standstill is twice the last."""


class Timeline:
    """
    The time of some launches.

    Attributes:
        events: Bumped by every write to global memory.
        steps: Steps of the schedules, each of one block or more.
    """

    def __init__(self) -> None:
        self.events = 0
        self.steps = 0
        self._reads = 0
        self._leapt = 0
        self._leap = _FIRST_LEAP

    def read(self) -> int:
        """Return the time, later than that of the last call, in nanoseconds."""
        self._reads += 1
        return self.steps + self._reads + self._leapt

    def leap(self) -> None:
        """Advance the time by a leap, because all threads wait; leaps in a row grow longer."""
        self._leapt += self._leap
        self._leap = min(2 * self._leap, _LAST_LEAP)

    def walk(self) -> None:
        """Make the next leap a short one, because something happened."""
        self._leap = _FIRST_LEAP
