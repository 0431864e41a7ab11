# SPDX-License-Identifier: Apache-2.0
"""
Makes a plan of recorded calls: one entry for each bucket of the selector that a call fell into.

So the plan's kernels on the recorded target are exactly those that were called, and there is one
number of calls for each.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.config.problem import Problem
from jitgen.errors import PlanError
from jitgen.plans.plan import Plan
from jitgen.plans.recording import Calls, Recording
from jitgen.plans.sweep import Sweep
from jitgen.selection.choice import edge, edges_of


def from_recording(recording: Recording, name: str = "recorded", *, least: int = 1) -> Plan:
    """
    Return the plan of the recorded calls, the most frequent ones first.

    Args:
        recording: Calls of one process, or of several; see `jitgen.plans.recording.added`.
        name: The plan's name.
        least: Calls that an entry must have; entries with fewer are left out.

    Raises:
        PlanError: No call is left.
    """
    found: dict[tuple[Problem, int, int], int] = {}
    for calls in recording.calls:
        for low, high, count in _buckets(calls):
            place = calls.problem.with_mean(low), low, high
            found[place] = found.get(place, 0) + count
    sweeps = [
        Sweep(problem=problem, min_rows=low, max_rows=high, calls=count)
        for (problem, low, high), count in found.items()
        if count >= least
    ]
    if not sweeps:
        some = f", which was called at least {least} times" if least > 1 and found else ""
        raise PlanError(f"nothing was recorded that makes a plan{some}")
    sweeps.sort(key=lambda sweep: (-sweep.calls, sweep.problem.op, *map(str, sweep.problem.kind)))
    archs = ", ".join(sorted({str(calls.arch) for calls in recording.calls}))
    total = sum(sweep.calls for sweep in sweeps)
    return Plan(name=name, description=f"{total:,} calls on {archs}", sweeps=tuple(sweeps))


def _buckets(calls: Calls) -> Iterator[tuple[int, int, int]]:
    """Yield fewest and most rows of each bucket that was called, and how often it was."""
    edges = edges_of(calls.problem, calls.arch)
    found: dict[int, list[int]] = {}
    for rows, count in calls.rows.items():
        if count:
            found.setdefault(edge(edges, rows), []).append(rows)
    for means in found.values():
        yield min(means), max(means), sum(calls.rows[rows] for rows in means)
