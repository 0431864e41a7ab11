# SPDX-License-Identifier: Apache-2.0
"""The result of emulating a kernel, by line: executed lines, and findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jitgen.support.frozen import frozen

_PLACE = re.compile(r"^[^|]*?:(\d+) \((.*?)\) \| ptx:(\d+): |^ptx:(\d+): ")


@frozen
class Found:
    """
    A finding, or code that was never executed.

    Attributes:
        kind: Its kind; see `jitgen.emulator.findings`.
        severity: ``error`` or ``warning``.
        message: Description of the finding.
        place: A text that says where.
        origin: The line of the source; None where it is not known.
        ptx: The line of PTX; None if it is not known.
        context: Problem and mode.
        count: How often it occurred.
    """

    kind: str
    severity: str
    message: str
    place: str
    origin: int | None
    ptx: int | None
    context: str
    count: int = 1


@frozen
class Trial:
    """
    A problem that was run.

    Attributes:
        problem: Its sizes.
        values: ``integers`` or ``random``.
        is_right: Whether all values are right.
        wrong: Number of wrong values.
        largest: Largest error over the largest value.
        seconds: Seconds by mode.
    """

    problem: str
    values: str
    is_right: bool
    wrong: int
    largest: float
    seconds: Mapping[str, float]


@frozen
class Function:
    """
    The lines of one function.

    Attributes:
        executed: Number of executed lines.
        total: Number of all lines.
        never: The lines that were not executed.
    """

    executed: int
    total: int
    never: tuple[int, ...]


@frozen
class Emulation:
    """
    The result of a kernel in the emulator.

    Attributes:
        is_right: Whether all results were right.
        trials: The problems.
        findings: All findings, including code that was never executed.
        never: Lines of the source of which no instruction was executed.
        times: For the first and the last line of each block of PTX, how often warps executed it.
        instructions: The number of executed instructions, and the number of all.
        functions: The lines of each function of the source.
    """

    is_right: bool
    trials: tuple[Trial, ...]
    findings: tuple[Found, ...]
    never: frozenset[int]
    times: tuple[tuple[int, int, int], ...]
    instructions: tuple[int, int]
    functions: Mapping[str, Function]


def emulation(verified: Mapping[str, Any]) -> Emulation:
    """
    Return the emulation part of a verification, which is given as the result of its `to_json`.
    """
    coverage = verified["coverage"]
    every = [function for each in coverage for function in each["functions"].items()]
    return Emulation(
        is_right=bool(verified["right"]),
        trials=tuple(_trial(trial) for trial in verified["trials"]),
        findings=tuple(_findings(verified)),
        never=frozenset(line for _, function in every for line in function["never"]),
        times=tuple((first, last, n) for each in coverage for first, last, n in each["blocks"]),
        instructions=(
            sum(each["instructions"][0] for each in coverage),
            sum(each["instructions"][1] for each in coverage),
        ),
        functions={
            name: Function(executed=f["lines"][0], total=f["lines"][1], never=tuple(f["never"]))
            for name, f in every
        },
    )


def _trial(trial: Mapping[str, Any]) -> Trial:
    return Trial(
        problem=trial["problem"],
        values=trial["values"],
        is_right=trial["right"],
        wrong=trial["wrong"],
        largest=trial["largest"],
        seconds={run["mode"]: run["seconds"] for run in trial["runs"]},
    )


def _findings(verified: Mapping[str, Any]) -> Iterator[Found]:
    for trial in verified["trials"]:
        where = f"{trial['values']}, {trial['problem']}"
        if trial["fault"] is not None:
            yield _found(trial["fault"], where)
        for run in trial["runs"]:
            for finding in run["findings"]:
                yield _found(finding, f"{where}, mode {run['mode']}")
    for gap in verified["gaps"]:
        yield _found(gap, "all problems")


def _found(finding: Mapping[str, Any], context: str) -> Found:
    origin, ptx = _lines(finding["place"])
    return Found(
        kind=finding["kind"],
        severity=finding["severity"],
        message=finding["message"],
        place=finding["place"],
        origin=origin,
        ptx=ptx,
        context=context,
        count=finding["count"],
    )


def _lines(place: str) -> tuple[int | None, int | None]:
    """Return the line numbers of source and PTX that a place names; None if it names none."""
    found = _PLACE.match(place)
    if found is None:
        return None, None
    if found[4]:
        return None, int(found[4])
    return int(found[1]), int(found[3])
