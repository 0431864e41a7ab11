# SPDX-License-Identifier: Apache-2.0
"""
Makes a plan from recorded calls, with one entry for each bucket of the selector that was called.

So the plan's kernels on the recorded target are exactly those that were called, and there is one
number of calls for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgen.config import Arch
from jitgen.config.problem import Problem
from jitgen.errors import PlanError
from jitgen.plans.plan import Plan
from jitgen.plans.recording import Calls, Recording
from jitgen.plans.sweep import Sweep
from jitgen.selection.choice import edge, edges_of


def from_recording(
    recording: Recording, name: str = "recorded", *, least: int = 1, fills: bool = False
) -> Plan:
    """
    Return the plan of the recorded calls, the most frequent ones first.

    Args:
        recording: Calls of one process, or of several; see `jitgen.plans.recording.added`.
        name: The plan's name.
        least: Calls that an entry must have; entries with fewer are left out.
        fills: Whether to add entries, at the end, for buckets without calls that lie between
            buckets with calls.

    Raises:
        PlanError: It is no recording, or no call is left.
    """
    if not isinstance(recording, Recording):
        raise PlanError(f"from_recording takes a Recording (got {type(recording).__name__})")
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
    if fills:
        sweeps += between(recording, sweeps)
    sweeps.sort(key=lambda sweep: (-sweep.calls, sweep.problem.op, *map(str, sweep.problem.kind)))
    archs = ", ".join(sorted({str(calls.arch) for calls in recording.calls}))
    total = sum(sweep.calls for sweep in sweeps)
    return Plan(name=name, description=f"{total:,} calls on {archs}", sweeps=tuple(sweeps))


def between(recording: Recording, sweeps: Iterable[Sweep]) -> list[Sweep]:
    """
    Return a sweep for each bucket without a sweep of `sweeps` that lies between two buckets with
    sweeps of the same sizes; a longer recording would have had calls in it.
    """
    targets: dict[Problem, Arch] = {}
    for calls in recording.calls:
        targets.setdefault(calls.problem.with_mean(1), calls.arch)
    seen: dict[Problem, set[int]] = {}
    for sweep in sweeps:
        alike = sweep.problem.with_mean(1)
        ends = edges_of(alike, targets[alike])
        seen.setdefault(alike, set()).add(ends.index(edge(ends, sweep.max_rows)))
    found = []
    for alike, places in seen.items():
        ends = edges_of(alike, targets[alike])
        for place in range(min(places) + 1, max(places)):
            if place not in places:
                low, high = ends[place - 1] + 1, ends[place]
                found.append(Sweep(problem=alike.with_mean(low), min_rows=low, max_rows=high))
    return found


def _buckets(calls: Calls) -> Iterator[tuple[int, int, int]]:
    """Yield the fewest and the most rows of each called bucket, and its number of calls."""
    edges = edges_of(calls.problem, calls.arch)
    found: dict[int, list[int]] = {}
    for rows, count in calls.rows.items():
        if count:
            found.setdefault(edge(edges, rows), []).append(rows)
    for means in found.values():
        yield min(means), max(means), sum(calls.rows[rows] for rows in means)
