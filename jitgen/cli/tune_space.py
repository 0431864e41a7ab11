# SPDX-License-Identifier: Apache-2.0
"""``jitgen tune --space``: times every legal kernel for a problem beside the selector's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from jitgen.cli.options import SECONDS, NumberType, refuse, stacked
from jitgen.cli.output import ExitCode, Output, counted, human_time
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import Rule, absent, like
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.autotune.space import SpacePlan, Trial
    from jitgen.autotune.space_run import SpaceReport
    from jitgen.cache import Store

_MOST_ROWS = 20  # kernels that are shown; --json has all
_FEWEST_WITHIN = 1.0


_Trial = Annotated[object, "jitgen.autotune.space:Trial"]


@frozen
class _PlannedKernel:
    """A kernel to try: its predicted time, and the seconds that trying it is expected to take."""

    name: v.Name
    key: v.Key
    cost_us: v.Microseconds
    compiled: bool
    seconds: v.Seconds


@frozen
class _SearchedProblem:
    """
    The plan of a search for one problem (`known`, `planned`), or its results (`best`, `kernels`).
    """

    problem: str
    chosen: v.Name
    estimate_s: v.Seconds
    pruned: v.Count
    refused: v.Count
    known: Sequence[_Trial] | None = absent()
    planned: Sequence[_PlannedKernel] | None = absent()
    best: Annotated[v.Name | None, Rule()] | None = absent()  # there, and null where none is best
    kernels: Sequence[_Trial] | None = absent()


@frozen
class _Searched:
    ok: v.Ok
    arch: v.ArchName
    dry_run: bool
    estimate_s: v.Seconds
    budget_s: v.Seconds
    wall_s: v.Seconds
    problems: Sequence[Annotated[v.Values, _SearchedProblem]]
    left_out: Annotated[Mapping[str, v.Count], v.by("operation")]


class Wanted(NamedTuple):
    """
    Arguments of a search on the command line.

    Attributes:
        part: Allowed values of each config field that ``--set`` names.
        within: Largest predicted time of a kernel, as a multiple of the best predicted time.
        budget_s: Time limit in seconds, for all problems together.
        is_dry: Whether only to print what would be done.
    """

    part: dict[str, tuple[str, ...]]
    within: float
    budget_s: float
    is_dry: bool


_options = stacked(
    click.option("--space", "is_space", is_flag=True, help="Time every legal kernel; see below."),
    click.option(
        "--set",
        "fields",
        multiple=True,
        metavar="FIELD=VALUE[,VALUE...]",
        help="With --space: only configs with one of these values, such as raster=1,8.",
    ),
    click.option(
        "--within",
        type=NumberType("times", _FEWEST_WITHIN),
        default=1.5,
        show_default=True,
        help="With --space: largest predicted time, as a multiple of the best.",
    ),
    click.option(
        "--budget",
        type=SECONDS,
        default=600.0,
        show_default=True,
        help="With --space: time limit in seconds.",
    ),
    click.option("--dry-run", is_flag=True, help="With --space: print what would be done."),
)
_NAMES = ("fields", "within", "budget", "dry_run")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """
    Add the options to a command, which gets them as the argument `space`: None without --space.
    """

    @wraps(command)
    def with_space(*arguments: Any, is_space: bool, **values: Any) -> Any:
        own = {name: values.pop(name) for name in _NAMES}
        if is_space:
            part = _part(own["fields"])
            space = Wanted(part, own["within"], own["budget"], own["dry_run"])
            return command(*arguments, space=space, **values)
        refuse("only with --space", *_NAMES)
        return command(*arguments, space=None, **values)

    made: Callable[..., Any] = _options(with_space)
    return made


def _part(fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
    part: dict[str, tuple[str, ...]] = {}
    for text in fields:
        name, equals, values = text.partition("=")
        found = tuple(value for value in values.split(",") if value)
        if not (name and equals and found):
            raise click.UsageError(f"{text!r} is not FIELD=VALUE[,VALUE...]")
        if name in part:
            raise click.UsageError(f"{name} is given twice; give all values at once, as 1,8")
        part[name] = found
    return part


def run(
    output: Output,
    problems: list[GroupedGemmProblem],
    arch: Arch,
    wanted: Wanted,
    *,
    again: bool,
    time_limit_s: float,
    left_out: Mapping[str, int],
) -> int:
    """Search the space for each problem, print the results, and return the exit code."""
    from jitgen.autotune.space import plan
    from jitgen.autotune.tuner import buckets_of
    from jitgen.cache import Store

    buckets_of(problems, arch)  # which refuses other operations
    store = Store.open()
    plans = [
        plan(problem, arch, store, part=wanted.part, within=wanted.within, again=again)
        for problem in dict.fromkeys(problems)
    ]
    estimate_s = sum(each.seconds for each in plans)
    left_s, reports = wanted.budget_s, []
    for each in plans:
        _announce(output, each, left_s)
        if not wanted.is_dry:
            report = _searched(output, each, store, left_s, time_limit_s)
            reports.append(report)
            left_s = max(0.0, left_s - report.wall_s)
    is_ok = wanted.is_dry or all(report.best is not None for report in reports)
    document = _Searched(
        ok=is_ok,
        arch=arch,
        dry_run=wanted.is_dry,
        estimate_s=estimate_s,
        budget_s=wanted.budget_s,
        wall_s=sum(report.wall_s for report in reports),
        problems=[_planned(each) for each in plans]
        if wanted.is_dry
        else [_found(report) for report in reports],
        left_out=left_out,
    )

    def human() -> None:
        for each in plans if wanted.is_dry else ():
            _print_plan(output, each)
        for report in reports:
            _print(output, report)

    output.report("tune", document, human)
    missing = not wanted.is_dry and settings.on_miss == "error"
    if missing and any(report.best is None for report in reports):
        return ExitCode.WOULD_COMPILE
    return ExitCode.OK if is_ok else ExitCode.FAILED


def _searched(
    output: Output, each: SpacePlan, store: Store, budget_s: float, time_limit_s: float
) -> SpaceReport:
    from jitgen.autotune.space_run import search

    fitting, _ = each.within(budget_s)
    with output.progress(len(fitting), "measuring") as progress:

        def on_trial(trial: Trial, _done: int, _total: int, left_s: float) -> None:
            progress.advance(f"{_line(trial)}; {human_time(left_s)} left")

        return search(each, store, budget_s=budget_s, time_limit_s=time_limit_s, on_trial=on_trial)


def _announce(output: Output, each: SpacePlan, budget_s: float) -> None:
    """
    Print the number of kernels, the estimated time, and the number that does not fit into the
    budget.
    """
    _, left = each.within(budget_s)
    output.note(
        f"{_sizes(each.problem)}: {counted(len(each.planned), 'kernel')} to try, "
        f"{len(each.known)} known, {each.pruned} left out by the model, {each.refused} illegal; "
        f"about {human_time(each.seconds)}"
    )
    if left:
        output.warn(
            f"of these {len(left)} will not be finished in {human_time(budget_s)}, from "
            f"{left[0].name} on, which is predicted to take {left[0].cost_us:,.0f} us a call; "
            "give a larger --budget, or run it again: it goes on where it was"
        )


def _line(trial: Trial) -> str:
    if trial.time_us is None or trial.ratio is None:
        return f"{trial.state}: {trial.name}: {trial.reason}"
    return f"{trial.time_us:.1f} us, {trial.ratio:.3f} of the selector's: {trial.name}"


def _planned(each: SpacePlan) -> v.Values:
    return {
        "problem": _sizes(each.problem),
        "chosen": each.chosen.name,
        "estimate_s": each.seconds,
        "pruned": each.pruned,
        "refused": each.refused,
        "known": each.known,
        "planned": [like(_PlannedKernel, row, compiled=row.is_compiled) for row in each.planned],
    }


def _found(report: SpaceReport) -> v.Values:
    return {
        "problem": _sizes(report.plan.problem),
        "chosen": report.plan.chosen.name,
        "best": None if report.best is None else report.best.name,
        "estimate_s": report.plan.seconds,
        "pruned": report.plan.pruned,
        "refused": report.plan.refused,
        "kernels": report.trials,
    }


def _print_plan(output: Output, each: SpacePlan) -> None:
    columns = [">COST (us)", ">TAKES", "KERNEL"]
    rows = [(f"{x.cost_us:.1f}", human_time(x.seconds), x.name) for x in each.planned]
    output.table(columns, rows)


def _print(output: Output, report: SpaceReport) -> None:
    from jitgen.autotune.space import TrialState

    columns = ["STATE", ">TIME (us)", ">COST (us)", ">RATIO", "KERNEL"]
    rows = [
        (
            str(trial.state),
            "" if trial.time_us is None else f"{trial.time_us:.1f}",
            f"{trial.cost_us:.1f}",
            "" if trial.ratio is None else f"{trial.ratio:.3f}",
            f"{trial.name}: {trial.reason}" if trial.reason else trial.name,
        )
        for trial in report.trials[:_MOST_ROWS]
    ]
    output.table(columns, rows)
    if len(report.trials) > _MOST_ROWS:
        output.note(f"and {len(report.trials) - _MOST_ROWS} more; see --json")
    parts = [f"{count} {state}" for state in TrialState if (count := report.count(state))]
    output.note(f"{', '.join(parts)} in {human_time(report.wall_s)}")
    best, chosen = report.best, report.plan.chosen.name
    if best is not None and best.ratio is not None and best.ratio >= 1:
        output.note(f"none is faster than the selector's choice, {chosen}")
    elif best is not None and best.ratio is not None:
        output.note(
            f"the best takes {best.ratio:.3f} of the time of the selector's choice, {chosen}; "
            f"to call it: config=jitgen.GroupedGemmConfig.parse({best.name!r})[0]"
        )


def _sizes(problem: GroupedGemmProblem) -> str:
    return f"{problem.layout} {problem.groups} groups, M {problem.m}, N {problem.n}, K {problem.k}"
