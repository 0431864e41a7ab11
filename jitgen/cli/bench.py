# SPDX-License-Identifier: Apache-2.0
"""
``jitgen bench``: measure jitgen, and compare it with its budgets and with other libraries.

A suite yields rows, each a figure with its budget, or it keeps a report (`jitgen.bench.suite`),
which is saved, shown as tables, and written as Markdown.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from jitgen.autotune.measure.errors import NoDevice
from jitgen.bench import OWN, REPORTS, SUITES, find, run
from jitgen.bench.protocol import Row, conditions
from jitgen.cli.options import ARCH, SECONDS, NumberType, refuse, with_output
from jitgen.cli.output import Column, ExitCode, Output
from jitgen.cli.paths import TO_READ, TO_WRITE, ToRead
from jitgen.config.dispatch import MOST_RANKS
from jitgen.errors import ConfigError

if TYPE_CHECKING:
    from jitgen.bench.grouped_report import GroupedReport
    from jitgen.bench.report import Report, Table
    from jitgen.bench.suite import Suite

_ALL = "all"
_APART = {**REPORTS, **OWN}
_LINES = {_ALL: f"Every suite but {', '.join(_APART)}, one after the other."}
_ROWS = (*SUITES, *_LINES, "gradients")
"""Suites that yield rows."""

_NAMED = ("kernel", "plan")
"""Commands that take the name of a kernel or a plan."""

Option = Callable[[Any], Any]


class _BenchGroup(click.Group):
    """A group with a command for each suite."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the suites: those that `all` runs, in its order, then the others and `all`."""
        return [*SUITES, *_APART, *_LINES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of a suite, or fail with a list of the suites."""
        suites = self.list_commands(ctx)
        if cmd_name not in suites:
            ctx.fail(f"{cmd_name!r} is not one of {', '.join(suites)}")
        if cmd_name in _NAMED:
            found: click.Command = getattr(
                importlib.import_module("jitgen.cli.bench_named"), cmd_name
            )
            return found
        return _of_rows(cmd_name) if cmd_name in _ROWS else _of_report(find(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each suite into the help text."""
        with formatter.section("Suites"):
            formatter.write_dl([*SUITES.items(), *_APART.items(), *_LINES.items()])


@click.group(cls=_BenchGroup, subcommand_metavar="SUITE [OPTIONS]")
def bench() -> None:
    """
    Measure a suite and compare it with its budgets. Exits 1 if one is exceeded.

    Every result is checked before it is timed. Figures are medians.
    """


# suites that yield rows


def _of_rows(suite: str) -> click.Command:
    """Return the command of a suite that yields rows."""

    @with_output
    def command(output: Output, /, **options: Any) -> int:
        return _measure(output, suite, options)

    if suite == "gradients":
        command = click.option(
            "--candidates",
            is_flag=True,
            help="Time every candidate kernel, and similar ones.",
        )(command)
    return click.command(suite, help={**SUITES, **_APART, **_LINES}[suite])(command)


def _measure(output: Output, suite: str, options: dict[str, Any]) -> int:
    rows: list[Row] = []
    lines = {**SUITES, **OWN}
    for name in SUITES if suite == _ALL else [suite]:
        output.note(f"measuring {name}: {lines[name]}")
        try:
            rows += run(name, **options)
        except NoDevice as error:
            if suite != _ALL:
                raise
            output.note(f"skipped: {error}")
    return _tell_rows(output, suite, rows)


def _tell_rows(output: Output, suite: str, rows: list[Row]) -> int:
    """Print figures and their budgets, and return the exit code."""
    where = conditions()

    def human() -> None:
        _show_rows(output, rows)
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    is_good = all(row.ok for row in rows)
    document = {
        "suite": suite,
        "ok": is_good,
        "conditions": where,
        "rows": [row.to_json() for row in rows],
    }
    output.result(f"bench {suite}", document, human)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _show_rows(output: Output, rows: list[Row]) -> None:
    """Print a table of figures and their budgets."""
    columns = [
        Column("SUITE"),
        Column("MEASURED", is_number=True),
        Column("BUDGET", is_number=True),
        Column("OK"),
        Column("WHAT"),
        Column("DETAIL"),
    ]
    output.table(columns, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    budget, verdict = "", ""
    if row.budget is not None:
        budget = f"{'>=' if row.is_rate else '<='} {_figure(row.budget, row.unit)}"
        verdict = "ok" if row.ok else "over"
        if not row.ok and row.is_rate:
            verdict = "under"
    return (row.suite, _figure(row.value, row.unit), budget, verdict, row.what, row.detail)


def _figure(value: float, unit: str) -> str:
    if value >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.4g} {unit}" if unit == "x" else f"{value:.3g} {unit}"


# suites that keep a report


def _numbers(_context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Parse numbers such as ``1,8,64``."""
    if text is None:
        return ()
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(
            f"must be numbers of at least 1, such as 1,8,64 (got {text!r})", param=option
        )
    return found


_FOLDER = click.Path(path_type=Path, file_okay=False)
_OF = "Problems of all sizes, or layers whose groups have uneven rows: drawn, or as recorded."
_ROUTINGS = "A file of routings for --of recorded; those that come with jitgen if left out."
_COUNT = "Cases; 150, 40 of skewed layers, and all that are recorded if left out."


def _options(suite: Suite) -> dict[str, Option]:
    """Return every option that a suite may have, by its name in `Suite.options`."""
    step, count = suite.step, click.IntRange(1)
    seed, minutes = click.IntRange(0), NumberType("minutes", 0.05, 1440)
    routings = ToRead("jitgen.bench.choice.recorded.save writes one")
    is_fp4, is_all = suite.name == "hopper-fp4", suite.name == "transformers"
    hung = ", and without a side that hung" * is_fp4
    needed = "this needs" if is_all else "the cases need"
    only_these = "Only these."

    def flag(words: str, text: str) -> Option:
        return click.option(*words.split(), is_flag=True, help=text)

    def value(words: str, kind: Any, text: str, **more: Any) -> Option:
        return click.option(*words.split(), type=kind, help=text, **more)

    def numbers(words: str, text: str) -> Option:
        return click.option(words, callback=_numbers, metavar="N,N", help=text)

    def choice(words: str, name: str, text: str, **more: Any) -> Option:
        return value(words, click.Choice(list(suite.choices.get(name, ()))), text, **more)

    return {
        "peers": flag("--peers use_peers", "Also time every installed peer."),
        "cases": value(
            "--cases cases_at", TO_READ, "File of cases to use instead of those of the suite."
        ),
        "only": value(
            "--only",
            str,
            f"Measure only {step}s whose name has every TEXT.",
            multiple=True,
            metavar="TEXT",
        ),
        "of": choice("--of family", "of", _OF, default="random", show_default=True),
        "routings": value("--routings", routings, _ROUTINGS),
        "count": value("--count", count, _COUNT),
        "seed": value("--seed", seed, "Seed of random cases.", default=0, show_default=True),
        "minutes": value("--minutes", minutes, "Begin no case after this many minutes."),
        "experts": numbers("--experts", "Experts on the GPU: 8,32,256."),
        "tokens": numbers("--tokens", "Tokens at once: 1,2,4 to 16384."),
        "ranks": value(
            "--ranks",
            click.IntRange(2, MOST_RANKS),
            "Processes that share a layer, with a GPU each.",
        ),
        "model": choice("--model names", "model", only_these, multiple=True),
        "side": choice("--side sides", "side", only_these, multiple=True),
        "routed": flag("--routed", "Begin with logits of 256 experts, 32 of them on this GPU."),
        "quick": flag("--quick", "32 experts and few tokens, without torch: a minute."),
        "rounds": value("--rounds", count, f"Rounds of each {step}.", default=suite.rounds),
        "seconds": value(
            "--seconds", SECONDS, "Begin no case after this many seconds; default: no limit."
        ),
        "no_steps": flag("--no-steps", "Do not time the launches of a layer one by one."),
        "candidates": flag("--candidates", "Also time every candidate kernel, except FP8 ones."),
        "formats": flag(
            "--formats", "Also time INT4, NVFP4, MXFP8 weights, and FP8 ones with row scales."
        ),
        "save": value(
            "--save save_at", TO_WRITE, f"Write the results to a file after every {step}."
        ),
        "resume": flag("--resume", f"Continue the file of --save: skip its cases{hung}."),
        "from": value("--from read_at", TO_READ, "Show a saved report; needs no GPU."),
        "kernels": flag("--kernels", f"List the kernels that {needed}, and end."),
        "arch": value("--arch", ARCH, "Target of --kernels and --from; the GPU's if not given."),
        "plot": value("--plot plot_at", _FOLDER, "Draw plots into this folder."),
        "report": value("--report report_at", TO_WRITE, "Write the tables as Markdown."),
        "send": value(
            "--report send_at",
            TO_WRITE,
            "Write a file with machine, kernels and table, to be sent.",
        ),
    }


def _of_report(suite: Suite) -> click.Command:
    """Return the command of a suite that keeps a report."""

    @with_output
    def command(output: Output, /, **given: Any) -> int:
        return _report(output, suite, given)

    every = _options(suite)
    for name in reversed(suite.options):
        command = every[name](command)
    return click.command(suite.name, help=f"\n{_APART[suite.name]}\n{suite.about}")(command)


def _report(output: Output, suite: Suite, given: dict[str, Any]) -> int:
    """Measure a suite, show a saved report, or list the kernels; return the exit code."""
    read_at, save_at = given.get("read_at"), given.get("save_at")
    if given.get("resume") and save_at is None:
        raise click.UsageError("--resume goes on with a report: name it with --save")
    if read_at is not None:
        if save_at or any(given[name] for name in suite.measuring):
            raise click.UsageError(suite.refusal)
        return _tell(output, suite, suite.read(read_at), given)
    if given.get("ranks") is not None:
        return _of_ranks(output, suite, given)
    steps = suite.steps(given)
    if given.get("kernels") and suite.kernels is not None:
        refuse("not with --kernels, which measures nothing", "save_at", "report_at", "resume")
        return _list(output, suite, suite.kernels(steps, given))
    report = suite.begin(save_at if given.get("resume") else None, given)
    with output.progress(len(steps), "measuring") as progress:
        for step in suite.measure(report, steps, given):
            progress.advance(str(step))
    return _tell(output, suite, report, given)


def _of_ranks(output: Output, suite: Suite, given: dict[str, Any]) -> int:
    """Measure a layer that ranks share, or list the kernels that it needs."""
    from jitgen.bench.layer import ranks
    from jitgen.bench.layer.ours import ARCH as LISTED
    from jitgen.bench.runner import of_every_device

    count, experts, tokens = (given[name] for name in ("ranks", "experts", "tokens"))
    others = ("sides", "routed", "quick", "save_at", "report_at", "seconds", "no_steps")
    if any(given[name] for name in others):
        raise click.UsageError("--ranks goes with --experts, --tokens, --rounds, --kernels, --json")
    if given["kernels"]:
        case, numbers = ranks.plan(count, experts, tokens, is_gpu=True)
        most = max(numbers)
        names = of_every_device(LISTED, lambda: ranks.kernel_names(case, count, most, LISTED))
        return _list(output, suite, names)
    case, numbers = ranks.here(count, experts, tokens)
    output.note(f"measuring a layer of {count} ranks")
    rows, missing = ranks.rows(count, case, numbers, given["rounds"])
    for name, why in missing.items():
        output.note(f"left out: {name}: {why}")
    return _tell_rows(output, suite.name, rows)


def _list(output: Output, suite: Suite, names: Sequence[str]) -> int:
    """
    Print the kernels that the steps of a suite need; for a machine without a compiler, they must be
    prewarmed.
    """

    def human() -> None:
        for name in names:
            output.line(name)

    output.result(f"bench {suite.name}", {**suite.listing, "kernels": [*names]}, human)
    return ExitCode.OK


def _tell(output: Output, suite: Suite, report: Report, given: dict[str, Any]) -> int:
    """Print the results, write the requested files, and return the exit code."""
    if suite.judge is not None:
        suite.judge(report, given)
    rows = list(report.targets())
    is_good = not report.failures and all(row.ok for row in rows)
    if (folder := given.get("plot_at")) is not None:
        from jitgen.bench.plots import draw

        for plot in draw(cast("GroupedReport", report), folder):  # only its suites have plots
            output.note(f"wrote {plot}")
    if (path := given.get("report_at")) is not None:
        _write(path, report.markdown(rows))
        output.note(f"wrote {path}")
    if (path := given.get("send_at")) is not None:
        from jitgen.cli.doctor import about_machine

        facts = [(each.name, each.value) for each in about_machine()]
        _write(path, cast("GroupedReport", report).to_send(facts))  # likewise
        output.note(f"wrote {path}: look it over, and send it with an issue")
    saved = report.to_json()
    if "schema" in saved:  # a document's own is that of all documents
        saved["report_schema"] = saved.pop("schema")
    document = {"ok": is_good, **saved, **report.summary()}
    output.result(f"bench {suite.name}", document, lambda: _show(output, report, rows))
    for failure in report.failures:
        output.error("WrongResult", failure)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _write(path: Path, lines: Iterable[str]) -> None:
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def _show(output: Output, report: Report, rows: list[Row]) -> None:
    """Print every table, then the targets."""
    for table in report.tables():
        _show_table(output, table)
    for line in report.lines():
        output.line(line)
    if report.copy_rate:
        output.line(f"copy rate: {report.copy_rate * 1e-9:,.0f} GB/s")
    if rows:
        output.line()
        _show_rows(output, rows)
    for remark in report.remarks():
        output.note(remark)
    output.note(", ".join(f"{name} {value}" for name, value in report.conditions.items() if value))


def _show_table(output: Output, table: Table) -> None:
    if table.rows:
        output.line(table.title, style="bold")
        columns = [
            Column(title.upper() if title.islower() else title, is_number=not table.is_text(title))
            for title in table.columns
        ]
        output.table(columns, list(table.rows))
        output.line()
