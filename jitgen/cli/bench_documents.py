# SPDX-License-Identifier: Apache-2.0
"""
The JSON form of the output of the suites of ``jitgen bench``.

These classes only describe the JSON; suites convert their reports to JSON values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from jitgen.cli.run import Check, Times
from jitgen.support import vocabulary as v
from jitgen.support.codec import one_of
from jitgen.support.frozen import frozen

_Conditions = Annotated[Mapping[str, str], v.by("what figures depend on")]
_Notes = Annotated[Mapping[str, str], v.by("side")]
_BySide = Annotated[Mapping[str, float], v.by("side")]
_TimesUs = Annotated[Mapping[str, v.Microseconds], v.by("side")]
_Ratios = Annotated[Mapping[str, float | None], v.by("peer")]


@frozen
class _Row:
    """JSON form of one figure of a suite, and of its budget."""

    suite: str
    what: str
    value: float
    unit: str
    budget: float | None
    is_rate: bool
    ok: v.Ok
    detail: str


@frozen
class _Suite:
    suite: str
    ok: v.Ok
    conditions: _Conditions
    rows: Sequence[_Row]


@frozen
class _Listed:
    kernels: Sequence[v.Name]


@frozen
class _Case:
    """JSON form of a case: the sizes of a grouped GEMM."""

    layout: str
    groups: v.Count
    rows_per_group: v.Count
    n: v.Count
    k: v.Count
    max_rows: v.Count | None
    spread: float
    zipf: float


@frozen
class _Refused:
    """A kernel and the reason why it is wrong; the reason is empty if the kernel is right."""

    kernel: v.Name
    reason: v.Reason


@frozen
class _Measured:
    """JSON form of the times of all sides of one case."""

    section: Annotated[str, one_of("public", "knee", "one_token", "sustained", "host")]
    case: _Case
    kernel: v.Name
    flop: v.Count
    bytes: v.Bytes
    launches: v.Count
    seconds: Annotated[Mapping[str, Sequence[v.Seconds]], v.by("side")]
    missing: _Notes
    detail: str
    median_us: _TimesUs
    ratio: _Ratios


@frozen
class _Accuracy:
    """JSON form of the errors of all sides of one case."""

    case: _Case
    errors: _BySide
    missing: _Notes


@frozen
class _Report:
    ok: v.Ok
    suite: str
    report_schema: int
    conditions: _Conditions
    copy_bytes_per_s: float
    kernels: Sequence[_Refused]
    measured: Sequence[_Measured]
    accuracy: Sequence[_Accuracy]
    notes: _Notes
    geometric_mean: _Ratios
    share_of_limit: Annotated[Mapping[str, float], v.by("section")]
    noise: float | None
    targets: Sequence[_Row]


@frozen
class _Fp4Side:
    """One side of a case of ``bench hopper-fp4``."""

    seconds: Sequence[v.Seconds]
    bytes: v.Bytes
    error: float
    kernel: v.Name
    median_us: v.Microseconds


@frozen
class _Fp4Found:
    """The measurements of a case of ``bench hopper-fp4``."""

    case: _Case
    sides: Annotated[Mapping[str, _Fp4Side], v.by("side")]
    missing: _Notes
    candidates: Annotated[
        Mapping[str, Annotated[Mapping[str, v.Seconds], v.by("kernel")]], v.by("side")
    ]
    ratio: Annotated[Mapping[str, float | None], v.by("side")]


@frozen
class _Fp4Report:
    ok: v.Ok
    suite: str
    report_schema: int
    conditions: _Conditions
    copy_bytes_per_s: float
    found: Sequence[_Fp4Found]
    notes: _Notes
    absent: _Notes
    launching: str
    targets: Sequence[_Row]


@frozen
class _LayerCase:
    """JSON form of the measurements of one MoE layer."""

    case: Annotated[Mapping[str, v.Count], v.by("size")]
    active: v.Count
    floor_us: v.Microseconds
    times_us: _TimesUs
    spreads: _BySide
    errors: _BySide
    steps_us: Annotated[Mapping[str, v.Microseconds], v.by("launch")]
    missing: _Notes
    notes: _Notes


@frozen
class _LayerReport:
    ok: v.Ok
    suite: str
    conditions: _Conditions
    notes: _Notes
    copy_rate: float
    cases: Sequence[_LayerCase]
    targets: Sequence[_Row]


@frozen
class _PlanRow:
    """A problem of a plan, and its share of the time."""

    problem: v.ProblemValues
    kernel: v.Name
    calls: float
    time_us: v.Microseconds
    predicted_us: v.Microseconds
    share: float | None


@frozen
class _PlanReport:
    suite: str
    ok: v.Ok
    plan: str
    arch: v.ArchName
    conditions: _Conditions
    total_s: v.Seconds
    left_out: Sequence[str]
    beyond_most: v.Count
    rows: Sequence[_PlanRow]


@frozen
class _Contender:
    """A kernel that ``bench kernel`` compares with others."""

    title: str
    name: v.Name
    key: v.Key


@frozen
class _Attempt:
    """JSON form of a comparison: whether the kernels are right for a problem, and their times."""

    checks: Sequence[Check]
    times: Times | None
    error: v.Reason


@frozen
class _KernelReport:
    ok: v.Ok
    conditions: _Conditions
    kernels: Sequence[_Contender]
    problems: Sequence[_Attempt]


@frozen
class _Lost:
    """A case in which a rule chose another kernel than the best."""

    case: str
    chosen: v.Name
    chosen_us: v.Microseconds
    best: v.Name
    best_us: v.Microseconds
    regret: Annotated[float, v.said("time of the choice over that of the best, less 1")]


@frozen
class _ChoiceFound:
    """Times of all candidate kernels for one problem and one distribution of rows."""

    problem: v.ProblemValues
    routing: Mapping[str, object]
    times_us: Annotated[Sequence[Sequence[float]], v.said("number of a kernel, and its time")]
    took_s: v.Seconds


@frozen
class _ChoiceReport:
    ok: v.Ok
    suite: str
    report_schema: int
    family: str
    seed: int
    conditions: _Conditions
    failures: Annotated[Mapping[str, v.Reason], v.by("case")]
    kernels: Sequence[v.Name]
    found: Sequence[_ChoiceFound]
    rules: Annotated[Mapping[str, Mapping[str, float]], v.by("rule")]
    worst: Annotated[Mapping[str, Sequence[_Lost]], v.by("rule")]


@frozen
class _ChoiceListed:
    suite: str
    kernels: Sequence[v.Name]


@frozen
class _Work:
    """What a model has to do: texts, and tokens of each prompt and of each answer."""

    texts: v.Count
    prompt: v.Count
    new: v.Count


@frozen
class _TransformersCase:
    """JSON form of the measurements of one model of transformers."""

    model: str
    work: _Work
    tokens_per_s: _BySide
    spreads: _BySide
    errors: _BySide
    missing: _Notes


@frozen
class _TransformersReport:
    suite: str
    ok: v.Ok
    conditions: _Conditions
    cases: Sequence[_TransformersCase]
    targets: Sequence[_Row]
