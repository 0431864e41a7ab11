# SPDX-License-Identifier: Apache-2.0
"""
The JSON form of a kernel that was run in the emulator, as ``verify`` and ``run`` print it.

These classes only describe the JSON; worker processes return JSON values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from jitgen.support import vocabulary as v
from jitgen.support.codec import absent
from jitgen.support.frozen import frozen


@frozen
class Finding:
    """The JSON form of a `jitgen.emulator.report.Finding`: one mistake of a kernel."""

    kind: str
    message: str
    place: str
    who: str
    count: v.Count
    severity: str


@frozen
class Run:
    """The JSON form of a `jitgen.emulator.report.Run`: one mode of one call."""

    mode: str
    seconds: v.Seconds
    cpu_seconds: v.Seconds
    findings: Sequence[Finding]
    counts: Annotated[Mapping[str, float], v.by("what was executed")]
    warp_instructions: Annotated[Mapping[str, float], v.by("functions of the source")]


@frozen
class Observation:
    """The JSON form of an `Observation`: an instruction whose value the schedule decides."""

    what: str
    place: str
    count: v.Count


@frozen
class Schedules:
    """Whether the runs of a problem prove its result for schedules that did not run."""

    proved: Annotated[bool, v.said("whether the runs stand for every schedule")]
    observed: Sequence[Observation]
    explored: Annotated[Sequence[str], v.said("modes that were added for what is observed")]
    most_explored: v.Count


@frozen
class Trial:
    """The JSON form of a `jitgen.verify.verification.Trial`: a kernel run with one problem."""

    problem: str
    sizes: Mapping[str, object]
    values: Annotated[str, v.said("integers, random, or the name of a case")]
    right: bool
    wrong: v.Count
    places: Sequence[str]
    frobenius: float
    largest: float
    fault: Finding | None
    runs: Sequence[Run]
    schedules: Schedules | None = absent()


@frozen
class Function:
    """Lines of a function: how many were executed, how many there are, and which never ran."""

    lines: Sequence[v.Count]
    never: Sequence[v.Count]


@frozen
class NeverExecuted:
    """An instruction that was not executed; the reason is empty if it should have been."""

    purpose: str
    place: str
    reason: str


@frozen
class OneWay:
    """A branch that threads reached, and the outcome that it never had: taken, or not taken."""

    place: str
    never: str


@frozen
class Coverage:
    """The JSON form of a `Coverage`: the executed instructions and branches of a kernel."""

    entry: str
    instructions: Annotated[Sequence[v.Count], v.said("executed, and all")]
    purposes: Annotated[Mapping[str, Sequence[v.Count]], v.said("of each kind, executed and all")]
    branches: Annotated[Sequence[v.Count], v.said("outcomes of branches that were, and all")]
    one_way: Sequence[OneWay]
    functions: Mapping[str, Function]
    blocks: Sequence[Sequence[v.Count]]
    never_executed: Sequence[NeverExecuted]


@frozen
class VerifiedParts:
    """The JSON form of a `Verification` of a kernel; all fields are absent if it failed."""

    name: v.Name | None = absent()
    arch: v.ArchName | None = absent()
    right: bool | None = absent()
    gaps: Sequence[Finding] | None = absent()
    coverage: Sequence[Coverage] | None = absent()
    trials: Sequence[Trial] | None = absent()
