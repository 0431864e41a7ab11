# SPDX-License-Identifier: Apache-2.0
"""``jitgen tune``: measure the candidates of the selector on this machine's device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from click.core import ParameterSource

from jitgen.cli import tune_space
from jitgen.cli.options import ARCH, SECONDS, refuse, with_output, with_sizes
from jitgen.cli.output import ExitCode, Output, counted, human_time
from jitgen.cli.paths import ToWrite
from jitgen.cli.tune_tables import STANDARD_OUTPUT, export_to_file, import_from_file
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.support import vocabulary as v
from jitgen.support.codec import like
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.autotune import TuningReport, TuningRow
    from jitgen.cache import Store
    from jitgen.plans.prewarm import PrewarmRow

_SIZES = ("groups", "m", "n", "k")
_WORDS = (
    *("layout", "scale_granularity", "a_dtype", "b_dtype", "out_dtype"),
    *("a_scale_granularity", "b_layout", "bias"),
)


@frozen
class _RecordValues:
    """The JSON form of a `TuningRecord`."""

    schema: int
    problem: v.ProblemValues
    winner: str
    times_us: Annotated[Mapping[str, v.Microseconds], v.by("kernel")]
    excluded: Annotated[Mapping[str, v.Reason], v.by("kernel")]
    date: v.When


@frozen
class _TunedProblem:
    """Outcome of tuning one problem."""

    state: str
    record: Annotated[v.Values, _RecordValues] | None
    problem: str
    by_model: str
    ahead: float | None
    missing: Annotated[Mapping[str, v.Reason], v.by("kernel")]
    seconds: v.Seconds
    error: v.Reason


@frozen
class _Tuned:
    ok: v.Ok
    arch: v.ArchName
    device: str | None
    wall_s: v.Seconds
    exported: v.File | None
    problems: Sequence[_TunedProblem]
    left_out: Annotated[Mapping[str, v.Count], v.by("operation")]


@click.command(
    epilog=f"Shipped plans: {', '.join(plan_names())}. A plan of your own is a .toml file."
)
@click.argument("names", metavar="[PLAN]...", nargs=-1)
@with_sizes(is_required=False)
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option("--again", is_flag=True, help="Measure recorded and excluded kernels again.")
@click.option(
    "--time-limit",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds after which a kernel counts as hung.",
)
@click.option(
    "--export",
    "export_to",
    metavar="FILE",
    type=ToWrite(allow_dash=True),
    help="Write the measurements as a JSON table; -: to standard output.",
)
@click.option(
    "--import",
    "import_from",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    help="Import a table that --export wrote.",
)
@tune_space.options
@with_output
def tune(
    output: Output,
    /,
    names: tuple[str, ...],
    arch: Arch | None,
    again: bool,
    time_limit: float,
    export_to: Path | None,
    import_from: Path | None,
    space: tune_space.Wanted | None,
    **sizes: Any,
) -> int:
    """
    Measure the candidates of the selector; from then on it chooses the fastest.

    Problems come from a plan, or from sizes as for `jitgen select`; each represents all problems of
    its bucket. Problems of other operations than the grouped GEMM are left out of a plan, with a
    note. Kernels are compiled if necessary, verified, and then timed in turn in a separate process.
    A kernel that hangs, fails or is wrong is excluded and not tried again. Results are stored in
    the cache for this device and compiler after each problem, so an interrupted run continues where
    it stopped. If a plan has numbers of calls, the most frequent problems come first.

    --export without problems writes all measurements of this machine.

    With --space the results do not change the choice. Every legal kernel of the target, or of the
    part of its space that --set names, is timed beside the selector's choice, those with the best
    predictions first, within the limits of the model and --budget. The command first prints an
    estimate, and continues an interrupted search.
    """
    calls: dict[Problem, float] = {}
    problems = _problems(names, sizes, arch, calls)
    left_out = _left_out(output, problems, calls)
    if space is not None:
        if problems is None or export_to is not None or import_from is not None:
            raise click.UsageError("--space takes a plan, or --groups, --m, --n and --k")
        return tune_space.run(
            output,
            problems,
            arch or default_arch(),
            space,
            again=again,
            time_limit_s=time_limit,
            left_out=left_out,
        )
    if import_from is not None:
        if problems or export_to is not None or again:
            raise click.UsageError("--import goes alone: it measures and writes nothing")
        refuse("not with --import, which measures nothing", "time_limit")
        return import_from_file(output, import_from, arch)
    if problems is None and export_to is None:
        raise click.UsageError(
            f"name a plan ({', '.join(plan_names())}), or give --groups, --m, --n and --k"
        )
    if problems is None:
        refuse("not with --export alone, which measures nothing", "again", "time_limit")
    if output.is_json and export_to == STANDARD_OUTPUT:
        raise click.UsageError("--json and --export - both print a document: choose one")
    from jitgen.cache import Store

    store, target = Store.open(), arch or default_arch()
    report = None
    if problems is not None:
        report = _run(
            output, store, target, problems, calls=calls, again=again, time_limit_s=time_limit
        )
    if export_to is not None:
        export_to_file(output, store, target, export_to, report)
    _tell(output, target, report, export_to, left_out)
    return ExitCode.OK if report is None or report.ok else ExitCode.FAILED


def _problems(
    names: tuple[str, ...],
    sizes: dict[str, Any],
    arch: Arch | None,
    calls: dict[Problem, float],
) -> list[GroupedGemmProblem] | None:
    """
    Return the problems to measure; None if the command line names none. All problems of plans, with
    their numbers of calls, are added to `calls`.
    """
    source = click.get_current_context().get_parameter_source
    given = [name for name in (*_SIZES, *_WORDS) if source(name) is ParameterSource.COMMANDLINE]
    if given and names:
        raise click.UsageError("give a plan or sizes, not both")
    if given:
        if missing := [name for name in _SIZES if sizes[name] is None]:
            raise click.UsageError(f"a problem needs --{' and --'.join(missing)} too")
        return [GroupedGemmProblem(**sizes)]
    if names:
        for plan in [load_plan(name) for name in names]:
            for problem, count in plan.calls(arch or default_arch()).items():
                calls[problem] = calls.get(problem, 0.0) + count
        return [each for each in calls if isinstance(each, GroupedGemmProblem)]
    return None


def _left_out(
    output: Output, problems: list[GroupedGemmProblem] | None, calls: dict[Problem, float]
) -> dict[str, int]:
    """
    Return how many problems of each operation plans have that cannot be measured, and say so in a
    note.

    Raises:
        ConfigError: They have no other problems.
    """
    ops = Counter(each.op for each in calls if not isinstance(each, GroupedGemmProblem))
    others = ", ".join(f"{count} of {op}" for op, count in sorted(ops.items()))
    if ops and not problems:
        raise ConfigError(
            f"only {GroupedGemmProblem.op} can be measured, and these problems are of other "
            f"operations, which the model alone chooses for: {others}"
        )
    if ops:
        output.note(
            f"left out {counted(ops.total(), 'problem')} of other operations, which the model "
            f"alone chooses for: {others}"
        )
    return dict(sorted(ops.items()))


def _run(
    output: Output,
    store: Store,
    arch: Arch,
    problems: list[GroupedGemmProblem],
    *,
    calls: dict[Problem, float],
    again: bool,
    time_limit_s: float,
) -> TuningReport:
    from jitgen.autotune import TuningState
    from jitgen.autotune import tune as run
    from jitgen.autotune.tuner import buckets_of

    with output.progress(len(buckets_of(problems, arch)), "measuring") as progress:

        def on_compile(row: PrewarmRow, done: int, total: int) -> None:
            if row.error:
                progress.note(f"failed: {row.name}: {row.error}")
            elif row.seconds:
                progress.note(f"compiled {done}/{total}: {human_time(row.seconds)} {row.name}")

        def on_progress(row: TuningRow, _done: int, _total: int) -> None:
            is_news = row.state is not TuningState.RECORDED
            for name, reason in _bad(row) if is_news else ():
                progress.note(f"excluded for {_sizes(row.problem)}: {name}: {reason}")
            for name, reason in row.missing.items():
                progress.note(f"not tried for {_sizes(row.problem)}: {name}: {reason}")
            progress.advance(_line(row) if is_news else "")

        return run(
            problems,
            arch=arch,
            again=again,
            time_limit_s=time_limit_s,
            calls=calls,
            on_compile=on_compile,
            on_progress=on_progress,
            store=store,
        )


def _tell(
    output: Output,
    arch: Arch,
    report: TuningReport | None,
    export_to: Path | None,
    left_out: dict[str, int],
) -> None:
    """Print the result; without its rows if a table was written to standard output."""
    rows = () if report is None else report.rows

    def human() -> None:
        if report is None:
            return
        if export_to != STANDARD_OUTPUT:
            output.table(
                ["STATE", ">TIME (us)", ">AHEAD", "PROBLEM", "KERNEL"],
                [tuple(_cells(row)) for row in rows],
            )
        output.note(_summary(report))

    problems = [
        like(
            _TunedProblem,
            row,
            record=None if row.record is None else row.record.to_json(),
            problem=_sizes(row.problem),
        )
        for row in rows
    ]
    document = _Tuned(
        ok=report is None or report.ok,
        arch=arch,
        device=None if report is None else report.device,
        wall_s=0.0 if report is None else report.wall_s,
        exported=export_to,
        problems=problems,
        left_out=left_out,
    )
    output.report("tune", document, human)


def _cells(row: TuningRow) -> Iterator[str]:
    yield str(row.state)
    yield "" if row.record is None else f"{row.record.times_us[row.record.winner]:.1f}"
    yield _ahead(row)
    yield _sizes(row.problem)
    yield row.error if row.record is None else row.record.winner


def _line(row: TuningRow) -> str:
    """Return one line about a problem that was measured."""
    if row.record is None:
        return f"failed: {_sizes(row.problem)}: {row.error}"
    time = row.record.times_us[row.record.winner]
    ahead = _ahead(row)
    text = f"{time:.1f} us {_sizes(row.problem)} {row.record.winner}"
    return f"{text} ({ahead} ahead of the model's choice)" if ahead else text


def _ahead(row: TuningRow) -> str:
    """
    Return how much faster than the model's choice the winner is, as text; empty if they are the
    same.
    """
    if row.record is None or row.ahead is None or row.record.winner == row.by_model:
        return ""
    return f"{row.ahead * 100:.1f} %"


def _bad(row: TuningRow) -> Iterator[tuple[str, str]]:
    if row.record is not None:
        yield from row.record.excluded.items()


def _sizes(problem: GroupedGemmProblem) -> str:
    """Return a problem as text for tables: ``ragged 8 x (512 x 4096 x 7168)``."""
    rows = problem.rows_per_group
    return f"{problem.layout} {problem.groups} x ({rows} x {problem.n} x {problem.k})"


def _summary(report: TuningReport) -> str:
    """Return one line: counts, time, device."""
    from jitgen.autotune import TuningState

    parts = [f"{count} {state}" for state in TuningState if (count := report.count(state))]
    text = f"{counted(len(report.rows), 'problem')} on {report.device}: {', '.join(parts)}"
    return f"{text} in {human_time(report.wall_s)}"
