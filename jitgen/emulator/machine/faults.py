# SPDX-License-Identifier: Apache-2.0
"""
Mistakes of an emulated kernel: faults end the run, findings are collected.

A fault is a mistake that ends the kernel on hardware, too, or after which the emulator cannot say
what would happen. A finding is a mistake that a run on hardware may or may not show, such as a
race. A loop makes the same mistake many times: a finding is recorded once for its kind and
instruction, with a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from jitgen.errors import MachineFault

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment

NOWHERE = -1
"""The `at` of a finding that belongs to no instruction."""


@dataclass(slots=True)
class Finding:
    """
    One mistake.

    Attributes:
        kind: "race", "uninitialised", "proxy", "exit", ...
        message: Description of the mistake as it happened the first time, with the addresses of
            that time.
        at: Index of the instruction; NOWHERE if there is none.
        place: A text of the instruction's place: line of the kernel's source, PTX line, text.
        who: CTA and threads of the first time.
        count: Number of times that it happened.
    """

    kind: str
    message: str
    at: int
    place: str
    who: str
    count: int = 1

    def __str__(self) -> str:
        """Return the finding as text, with its place and who did it on lines of their own."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        where = f"\n  at {self.place}" if self.place else ""
        return f"{self.kind}: {self.message}{times}{where}\n  by {self.who}"


def name_lanes(lanes: np.ndarray) -> str:
    """
    Return a text that names ascending thread numbers [n], as "threads 0..127", with their number if
    some in between are missing.
    """
    first, last, n = int(lanes[0]), int(lanes[-1]), len(lanes)
    if n == 1:
        return f"thread {first}"
    partly = f" ({n} of them)" if last - first + 1 != n else ""
    return f"threads {first}..{last}{partly}"


def fault(fragment: Fragment, at: int, message: str) -> NoReturn:
    """
    Raise MachineFault with `message`, the place of the instruction, and the fragment that executed
    it.
    """
    place = fragment.machine.program.place(at)
    raise MachineFault(f"{message}\n  at {place}\n  by {name_fragment(fragment)}")


def name_fragment(fragment: Fragment) -> str:
    """Return a text that names the CTA and the threads of a fragment."""
    return f"{fragment.cta.name}, {name_lanes(fragment.lanes)}"


def warn(fragment: Fragment, at: int, kind: str, message: str) -> None:
    """Record a finding of the instruction `at`, executed by `fragment`."""
    known = fragment.machine.findings.get((kind, at))
    if known is not None:
        known.count += 1
        return
    place = fragment.machine.program.place(at)
    found = Finding(kind, message, at, place, name_fragment(fragment))
    fragment.machine.findings[kind, at] = found


def warn_at_exit(cta: Cta, topic: str, message: str, at: int = NOWHERE, kind: str = "exit") -> None:
    """
    Record a mistake that is found when `cta` ends.

    Args:
        cta: The CTA in which it was found.
        topic: The topic; one finding is recorded for each topic and instruction.
        message: Description of the mistake.
        at: The instruction that began it.
        kind: Kind of the finding.
    """
    machine = cta.machine
    known = machine.findings.get((f"exit {topic}", at))
    if known is not None:
        known.count += 1
        return
    place = machine.program.place(at) if at != NOWHERE else ""
    machine.findings[f"exit {topic}", at] = Finding(kind, message, at, place, cta.name)
