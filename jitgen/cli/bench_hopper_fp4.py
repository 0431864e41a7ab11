# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench hopper-fp4``: MXFP4 weights on Hopper, as tables, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from jitgen.bench import OWN
from jitgen.bench.hopper_fp4 import NAME, cases, run, sides, targets
from jitgen.bench.hopper_fp4.report import Fp4Report
from jitgen.bench.hopper_fp4.tables import Table, errors, left_out, tables
from jitgen.bench.hopper_fp4.tables import candidates as candidates_of
from jitgen.bench.peers import mxfp4
from jitgen.bench.protocol import Row
from jitgen.bench.sides import of_every_device
from jitgen.bench.suite import ROUNDS
from jitgen.cli.bench import show_rows
from jitgen.cli.options import SECONDS, with_output
from jitgen.cli.output import Column, ExitCode, Output
from jitgen.cli.paths import TO_READ, TO_WRITE
from jitgen.errors import ConfigError

_HELP = f"""
{OWN[NAME]}

Every result is checked against float32 before it is timed; L2 is cold; all sides of a case take
turns. Exits 1 if a target is missed. Cases are called for example "ragged 32 x 8 N4096 K7168".
"""


@click.command(NAME, help=_HELP)
@click.option("--peers", "use_peers", is_flag=True, help="Time every peer that is installed, too.")
@click.option("--cases", "cases_at", type=TO_READ, help="Cases to use instead of its own.")
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Measure only cases whose name has every TEXT."
)
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, help="Rounds of each case.")
@click.option("--seconds", type=SECONDS, help="Begin no case after so many; all, if left out.")
@click.option(
    "--candidates", is_flag=True, help="Time every kernel that might be chosen, too, but of FP8."
)
@click.option("--save", "save_at", type=TO_WRITE, help="Write what was found after every case.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what --save names: without its cases, and without a side that hung.",
)
@click.option("--from", "read_at", type=TO_READ, help="Show what was saved; needs no GPU.")
@click.option("--kernels", is_flag=True, help="List the kernels that the cases need, and end.")
@click.option("--report", "report_at", type=TO_WRITE, help="Write the tables as Markdown.")
@with_output
def command(  # noqa: PLR0913  # each is an option
    output: Output,
    *,
    use_peers: bool,
    cases_at: Path | None,
    only: tuple[str, ...],
    rounds: int,
    seconds: float | None,
    candidates: bool,
    save_at: Path | None,
    resume: bool,
    read_at: Path | None,
    kernels: bool,
    report_at: Path | None,
) -> int:
    """Measure or show the suite."""
    if resume and save_at is None:
        raise click.UsageError("--resume goes on with a report: name it with --save")
    if read_at is not None:
        if use_peers or cases_at or only or save_at or seconds is not None:
            raise click.UsageError("--from measures nothing: it goes with --report and --json")
        return _tell(output, Fp4Report.read(read_at), report_at)
    steps = cases.plan(cases.load(cases_at or cases.PUBLIC), only)
    if not steps:
        raise click.UsageError(f"no case has {' and '.join(map(repr, only))} in its name")
    if kernels:
        return _list(output, steps, all_of_them=candidates)
    run.require_hopper()
    report = Fp4Report()
    if resume and save_at is not None and save_at.exists():
        report = Fp4Report.read(save_at)
    peers, absent = mxfp4.find_all() if use_peers else ([], {})
    report.absent.update(absent)

    def save() -> None:
        if save_at is not None:
            report.save(save_at)

    how = run.Method(rounds=rounds, seconds=seconds, candidates=candidates)
    with output.progress(len(steps), "measuring") as progress:
        for step in run.run(report, steps, peers, how, save):
            progress.advance(str(step))
            save()
    save()
    return _tell(output, report, report_at)


def _list(output: Output, steps: list[cases.Step], *, all_of_them: bool) -> int:
    """Print the kernels that the steps need: what to prewarm for a machine without a compiler."""
    found = [step.case for step in steps]
    names = of_every_device(sides.ARCH, lambda: sides.kernels(found, all_of_them=all_of_them))

    def human() -> None:
        for name in names:
            output.line(name)

    output.result(f"bench {NAME}", {"kernels": names}, human)
    return ExitCode.OK


def _tell(output: Output, report: Fp4Report, report_at: Path | None) -> int:
    """Print what was found, write it as Markdown if that was asked for, return the exit code."""
    rows = list(targets.rows(report))
    is_good = not report.failures and all(row.ok for row in rows)
    document = {"ok": is_good, **report.to_json(), "targets": [row.to_json() for row in rows]}
    if report_at is not None:
        text = "\n".join(_markdown(report, rows)) + "\n"
        try:
            report_at.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{report_at} cannot be written: {error.strerror or error}") from None
        output.note(f"wrote {report_at}")
    output.result(f"bench {NAME}", document, lambda: _show(output, report, rows))
    for failure in report.failures:
        output.error("WrongResult", failure)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _show(output: Output, report: Fp4Report, rows: list[Row]) -> None:
    for table in (*tables(report), candidates_of(report), errors(report), left_out(report)):
        if table.rows:
            first, *others = table.columns
            output.line(table.title, style="bold")
            numbers = [Column(title.upper(), is_number=True) for title in others]
            output.table([Column(first.upper()), *numbers], list(table.rows))
            output.line()
    if report.copy_rate:
        output.line(f"copy rate: {report.copy_rate * 1e-9:,.0f} GB/s")
    if rows:
        show_rows(output, rows)
    for name, note in report.notes.items():
        output.note(f"{name}: {note}")
    output.note(", ".join(f"{name} {value}" for name, value in report.conditions.items() if value))


def _markdown(report: Fp4Report, rows: list[Row]) -> Iterator[str]:
    device = report.conditions.get("gpu", "a device that is not known")
    yield from (f"# jitgen bench {NAME}: {device}", "")
    facts = [*report.conditions.items(), ("copy rate", f"{report.copy_rate * 1e-9:,.0f} GB/s")]
    goals = tuple(
        (row.what, f"{row.value:.3f}", f"{row.budget}", "yes" if row.ok else "no", row.detail)
        for row in rows
    )
    for table in (
        *tables(report),
        candidates_of(report),
        Table(title="targets", columns=("what", "ratio", "goal", "reached", "detail"), rows=goals),
        errors(report),
        left_out(report),
        Table(title="sides", columns=("side", "note"), rows=tuple(report.notes.items())),
        Table(title="conditions", columns=("condition", "value"), rows=tuple(facts)),
    ):
        if table.rows:
            yield from (f"## {table.title}", "")
            for cells in (table.columns, ("---",) * len(table.columns), *table.rows):
                yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
            yield ""
