# SPDX-License-Identifier: Apache-2.0
"""
The choice of modes: those that are left out because earlier ones represent every schedule, and
those that are added because the kernel observes its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgen.emulator.machine.observed import EARLY_ARRIVAL, MISSED_PHASE, MIXED
from jitgen.emulator.modes import LATE_PEEKS, MOST_EXPLORED, REVERSED, Mode, last_mode
from jitgen.emulator.program.observers import Kind
from jitgen.emulator.report import Run


def are_proof(runs: Sequence[Run], modes: Sequence[Mode]) -> bool:
    """Return whether runs stand for every schedule, one at least of a mode that is not random."""
    steady = {mode.name for mode in modes if mode.seed is None}
    return any(run.mode in steady for run in runs) and all(run.is_proof for run in runs)


def other_orders(runs: Sequence[Run], modes: Sequence[Mode]) -> list[Mode]:
    """
    Return the modes that try other orders of what is observed; none if a mistake was found.

    Random modes try orders of arrivals as well as these do.
    """
    observed = {one.what for run in runs for one in run.observed}
    if any(mode.seed is not None for mode in modes):
        observed -= {EARLY_ARRIVAL, MISSED_PHASE, MIXED}
    if not observed or not all(run.is_clean for run in runs):
        return []
    firsts = dict.fromkeys(number for run in runs for number in run.firsts)
    peeks = [LATE_PEEKS] if Kind.PEEK in observed else []
    found = [REVERSED, *peeks, *(last_mode(number) for number in firsts)]
    return [mode for mode in found if mode not in modes][:MOST_EXPLORED]
