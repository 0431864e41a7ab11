# SPDX-License-Identifier: Apache-2.0
"""
``jitgen bench hopper`` and ``blackwell``: grouped GEMMs beside their peers, as a table, as JSON, as
plots, and as a report to send.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from jitgen.bench import REPORTS
from jitgen.bench import cases as sizes
from jitgen.bench import peers as others
from jitgen.bench import suite as suites
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS, PADDING, BenchReport, Measured, Section
from jitgen.cli.options import with_output
from jitgen.cli.output import Column, ExitCode, Output, counted
from jitgen.cli.paths import TO_READ, TO_WRITE
from jitgen.config import Arch
from jitgen.errors import ConfigError

_FOLDER = click.Path(path_type=Path, file_okay=False)


_HELP = """
{line}

Every result is checked, and every kernel that may be chosen on small exact problems; L2 is cold.
Exits 1 if a result is wrong or a target is missed. Steps are called for example "public masked 32 x
8 N4096 K7168"; their first word is kernels, public, one_token, accuracy, host or sustained.
"""


def command(name: str) -> click.Command:
    """Return the command that measures or shows the suite of a name."""

    @click.command(name, help=_HELP.format(line=REPORTS[name]))
    @click.option(
        "--peers", "use_peers", is_flag=True, help="Time every peer that is installed, too."
    )
    @click.option("--cases", "cases_at", type=TO_READ, help="Cases to use instead of its own.")
    @click.option(
        "--only",
        multiple=True,
        metavar="TEXT",
        help="Measure only steps whose name has every TEXT.",
    )
    @click.option("--save", "save_at", type=TO_WRITE, help="Write what was found after every step.")
    @click.option("--from", "read_at", type=TO_READ, help="Show what was saved; needs no GPU.")
    @click.option("--plot", "plot_at", type=_FOLDER, help="Draw plots into this folder.")
    @click.option(
        "--report",
        "report_at",
        type=TO_WRITE,
        help="Write a file to send: machine, kernels, table.",
    )
    @with_output
    def measure(
        output: Output,
        *,
        use_peers: bool,
        cases_at: Path | None,
        only: tuple[str, ...],
        save_at: Path | None,
        read_at: Path | None,
        plot_at: Path | None,
        report_at: Path | None,
    ) -> int:
        suite = suites.find(name)
        if read_at is None:
            cases = sizes.load(cases_at or suite.cases)
            report = _measure(output, suite, cases, only, save_at, use_peers=use_peers)
        elif use_peers or cases_at or only or save_at:
            raise click.UsageError(
                "--from measures nothing: leave out --peers, --cases, --only, --save"
            )
        else:
            report = _read(read_at, suite)
        return _tell(output, suite, report, plot_at, report_at)

    return measure


def _read(path: Path, suite: suites.Suite) -> BenchReport:
    report = BenchReport.read(path)
    if report.suite != suite.name:
        raise ConfigError(f"{path} is a report of another suite: jitgen bench {report.suite}")
    return report


def _tell(
    output: Output,
    suite: suites.Suite,
    report: BenchReport,
    plot_at: Path | None,
    report_at: Path | None,
) -> int:
    """Print what was found, write the files that were asked for, and return the exit code."""
    if plot_at is not None:
        from jitgen.bench.plots import draw

        for path in draw(report, plot_at):
            output.note(f"wrote {path}")
    rows = list(suite.targets(report))
    is_good = not report.failures and all(row.ok for row in rows)
    document = {
        "ok": is_good,
        **report.to_json(),
        "geometric_mean": {peer: report.geometric_mean(peer) for peer in report.peers},
        "noise": report.noise,
        "targets": [row.to_json() for row in rows],
    }
    if report_at is not None:
        from jitgen.cli.bench_report import write

        write(report, report_at)
        output.note(f"wrote {report_at}: look it over, and send it with an issue")
    output.result(f"bench {suite.name}", document, lambda: _show(output, report, rows))
    for failure in report.failures:
        output.error("WrongResult", failure)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _measure(
    output: Output,
    suite: suites.Suite,
    cases: tuple[sizes.Case, ...],
    only: tuple[str, ...],
    save_at: Path | None,
    *,
    use_peers: bool,
) -> BenchReport:
    from jitgen.autotune.measure.clock import require_gpu

    require_gpu(f"the {suite.name} suite")
    steps = suites.plan(cases, only)
    if not steps:
        words = " and ".join(map(repr, only))
        raise click.UsageError(f"no step has {words} in its name")
    found, missing = others.find_all() if use_peers else ([], {})
    for name, reason in missing.items():
        output.note(f"without {name}: {reason}")
    report = BenchReport(suite=suite.name, notes=dict(missing))

    def save() -> None:
        if save_at is not None:
            report.save(save_at)

    save()  # where it cannot be, better known before anything is measured
    with output.progress(len(steps), "measuring") as progress:
        for step in suites.run(report, steps, found):
            progress.advance(str(step))
            save()
    save()  # with what is known at the end alone: clocks, the copy rate
    return report


def _show(output: Output, report: BenchReport, rows: list[Row]) -> None:
    """Print every section, then the targets."""
    for section in Section:
        if found := report.of(section):
            output.line(section, style="bold")
            _show_section(output, report, found)
            output.line()
    if report.kernels:
        wrong = sum(bool(each.reason) for each in report.kernels)
        right = len(report.kernels) - wrong
        output.line(f"kernels on small exact problems: {right} right, {wrong} not")
    for accuracy in report.accuracy:
        output.line(f"error, {accuracy.case}: {accuracy.words}")
    for peer in report.peers:
        mean = report.geometric_mean(peer)
        if mean is not None:
            output.line(f"geometric mean of the ratio to {peer}: {mean:.3f}")
    if report.noise is not None:
        output.line(f"noise: rounds lie {report.noise:.1%} apart")
    if report.copy_rate:
        output.line(f"copy rate: {report.copy_rate * 1e-9:,.0f} GB/s")
    if rows:
        from jitgen.cli.bench import show_rows

        output.line()
        show_rows(output, rows)
    _show_notes(output, report)


def _show_notes(output: Output, report: BenchReport) -> None:
    """Say what figures depend on, and which are not there."""
    if report.peers:
        output.note("under a peer's name: its time over jitgen's, so above 1 jitgen is faster")
    for name, note in report.notes.items():
        output.note(f"{name}: {note}")
    for (name, reason), count in left_out(report).items():
        output.note(f"{name} left out of {counted(count, 'case')}: {reason}")
    output.note(", ".join(f"{name} {value}" for name, value in report.conditions.items() if value))


def left_out(report: BenchReport) -> Counter[tuple[str, str]]:
    """Count the cases that a peer did not compute for the same reason."""
    return Counter(
        (side, reason)
        for each in report.measured
        for side, reason in each.missing.items()
        if side != OURS
    )


def _show_section(output: Output, report: BenchReport, found: list[Measured]) -> None:
    columns, rows = section_table(report, found)
    output.table(columns, rows)


def section_table(
    report: BenchReport, found: list[Measured]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Return the table of the measurements of a section."""
    peers = [peer for peer in report.peers if any(peer in each.times for each in found)]
    has_padding = any(PADDING in each.times for each in found)
    columns = [
        Column("CASE"),
        *(
            Column(title, is_number=True)
            for title in (
                *("US", "NOISE", "TFLOPS", "GB/s", "OF COPY"),
                *(peer.upper() for peer in peers),
                *(["PADDING US"] if has_padding else []),
            )
        ),
        Column("KERNEL"),
        Column("DETAIL"),
    ]
    return columns, [_cells(report, each, peers, has_padding=has_padding) for each in found]


def _cells(
    report: BenchReport, each: Measured, peers: list[str], *, has_padding: bool
) -> tuple[str, ...]:
    """Return the cells of one case."""
    is_host = each.section is Section.HOST
    flop, num_bytes = (each.rate(amount) for amount in (each.flop, each.num_bytes))
    share = num_bytes / report.copy_rate if num_bytes and report.copy_rate else None
    padding = each.median(PADDING)
    spread = each.times[OURS].spread if OURS in each.times else None
    return (
        str(each.case),
        _cell(each.seconds, "{:.1f}", 1e6),
        "" if is_host or spread is None else f"{spread:.1%}",
        "" if is_host else _cell(flop, "{:,.0f}", 1e-12),
        "" if is_host else _cell(num_bytes, "{:,.0f}", 1e-9),
        "" if is_host else _cell(share, "{:.1%}"),
        *(_cell(each.ratio(peer), "{:.3f}") for peer in peers),
        *([_cell(padding, "{:.1f}", 1e6)] if has_padding else []),
        _short(each.kernel),
        each.detail,
    )


def _cell(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(value * scale)


def _short(kernel: str) -> str:
    """Return the part of a kernel's name that varies within a suite: tile, cluster, schedule."""
    _, _, rest = kernel.partition("_bf16_")
    for arch in Arch:
        rest = rest.removesuffix(f"_{arch}")
    return rest or kernel
