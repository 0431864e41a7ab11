# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench layer``: a whole layer of experts beside its peers, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from jitgen.bench import OWN
from jitgen.bench.layer import NAME, cases, inductor
from jitgen.bench.layer.ours import ARCH, OURS, kernel_names
from jitgen.bench.layer.report import LayerReport, Table, left_out, remarks, tables, targets
from jitgen.bench.layer.run import SIDES, Method, run
from jitgen.bench.protocol import Row
from jitgen.bench.sides import of_every_device
from jitgen.cli.bench import show_rows
from jitgen.cli.options import SECONDS, with_output
from jitgen.cli.output import Column, ExitCode, Output
from jitgen.cli.paths import TO_READ, TO_WRITE
from jitgen.errors import ConfigError

_QUICK_SIDES = tuple(side for side in SIDES if side != inductor.NAME)
_QUICK_S = 45.0
_HELP = f"""
{OWN[NAME]}

Every side is checked against float32 before it is timed, captured in a CUDA graph; L2 is cold; all
sides of a case take turns. Behind a time stands what it is of jitgen's, behind jitgen's what it is
of the floor: the weights of the experts that somebody chose, at the rate of a copy. Exits 1 if a
target is missed or jitgen is left out. Sides: {", ".join(SIDES)}.
"""


def _numbers(_context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return what ``1,8,64`` says."""
    if text is None:
        return ()
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter("must be numbers such as 1,8,64", param=option)
    return found


@click.command(NAME, help=_HELP)
@click.option("--experts", callback=_numbers, metavar="N,N", help="Experts on the GPU: 8,32,256.")
@click.option("--tokens", callback=_numbers, metavar="N,N", help="Tokens at once: 1,2,4 to 16384.")
@click.option("--side", "sides", multiple=True, type=click.Choice(list(SIDES)), help="Only these.")
@click.option("--routed", is_flag=True, help="From logits of 256 experts, of which 32 are here.")
@click.option("--quick", is_flag=True, help="32 experts and few tokens, without torch: a minute.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Rounds of each case.")
@click.option("--seconds", type=SECONDS, help="Begin no case after so many; all, if left out.")
@click.option("--no-steps", is_flag=True, help="Leave out the launches of ours, each alone.")
@click.option("--save", "save_at", type=TO_WRITE, help="Write what was found after every case.")
@click.option("--from", "read_at", type=TO_READ, help="Show what was saved; needs no GPU.")
@click.option("--kernels", is_flag=True, help="List the kernels that the cases need, and end.")
@click.option("--report", "report_at", type=TO_WRITE, help="Write the tables as Markdown.")
@with_output
def command(  # noqa: PLR0913  # each is an option
    output: Output,
    *,
    experts: tuple[int, ...],
    tokens: tuple[int, ...],
    sides: tuple[str, ...],
    routed: bool,
    quick: bool,
    rounds: int,
    seconds: float | None,
    no_steps: bool,
    save_at: Path | None,
    read_at: Path | None,
    kernels: bool,
    report_at: Path | None,
) -> int:
    """Measure or show the suite."""
    if read_at is not None:
        if experts or tokens or sides or routed or quick or save_at or seconds is not None:
            raise click.UsageError("--from measures nothing: it goes with --report and --json")
        return _tell(output, LayerReport.read(read_at), report_at)
    of = cases.ROUTED_OF if routed else 0
    usual = cases.ROUTED_EXPERTS if routed else cases.EXPERTS
    experts = experts or (cases.QUICK_EXPERTS if quick else usual)
    tokens = tokens or (cases.QUICK_TOKENS if quick else cases.TOKENS)
    if min(experts) < cases.TOP_K:
        raise click.UsageError(f"--experts must be at least {cases.TOP_K}: a token has so many")
    if of and max(experts) > of:
        raise click.UsageError(f"--experts must be at most {of} with --routed, which has so many")
    steps = list(cases.plan(experts, tokens, of))
    if kernels:
        return _list(output, steps)
    how = Method(
        sides=sides or (_QUICK_SIDES if quick else tuple(SIDES)),
        rounds=rounds,
        seconds=seconds or (_QUICK_S if quick else None),
        has_steps=not no_steps,
    )
    report = LayerReport()

    def save() -> None:
        if save_at is not None:
            report.save(save_at)

    with output.progress(len(steps), "measuring") as progress:
        for case in run(report, steps, how, save):
            progress.advance(str(case))
    save()
    return _tell(output, report, report_at)


def _list(output: Output, steps: list[cases.Case]) -> int:
    """Print the kernels of ours: what to prewarm for a machine without a compiler."""
    names = of_every_device(ARCH, lambda: (name for case in steps for name in kernel_names(case)))

    def human() -> None:
        for name in names:
            output.line(name)

    output.result(f"bench {NAME}", {"kernels": names}, human)
    return ExitCode.OK


def _tell(output: Output, report: LayerReport, report_at: Path | None) -> int:
    """Print what was found, write it as Markdown if that was asked for, return the exit code."""
    rows = list(targets(report.found))
    failures = [
        f"{each.case}: {each.missing[OURS]}" for each in report.found if OURS in each.missing
    ]
    is_good = not failures and all(row.ok for row in rows)
    document = {"ok": is_good, **report.to_json(), "targets": [row.to_json() for row in rows]}
    if report_at is not None:
        try:
            report_at.write_text("\n".join(_markdown(report, rows)) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{report_at} cannot be written: {error.strerror or error}") from None
        output.note(f"wrote {report_at}")
    output.result(f"bench {NAME}", document, lambda: _show(output, report, rows))
    for failure in failures:
        output.error("WrongResult", failure)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _all(report: LayerReport) -> Iterator[Table]:
    """Yield every table, those of the cases first."""
    yield from (table for table in tables(report.found) if table.rows)
    errors = [
        (str(each.case), *(f"{side} {error:.2e}" for side, error in each.errors.items()))
        for each in report.found
    ]
    yield Table(
        title="errors against float32",
        columns=("case", "errors"),
        rows=tuple((case, ", ".join(found)) for case, *found in errors),
    )
    missing = [(side, str(count), why) for (side, why), count in left_out(report.found).items()]
    if missing:
        yield Table(title="left out", columns=("side", "cases", "why"), rows=tuple(missing))
    noted = [(side, str(count), what) for (side, what), count in remarks(report.found).items()]
    if noted:
        yield Table(title="remarks", columns=("side", "cases", "what"), rows=tuple(noted))


def _show(output: Output, report: LayerReport, rows: list[Row]) -> None:
    for table in _all(report):
        first, *others = table.columns
        output.line(table.title, style="bold")
        numbers = [Column(title.upper(), is_number=True) for title in others]
        output.table([Column(first.upper()), *numbers], list(table.rows))
        output.line()
    output.line(f"copy rate: {report.copy_rate * 1e-9:,.0f} GB/s")
    if rows:
        show_rows(output, rows)
    for name, note in report.notes.items():
        output.note(f"{name}: {note}")
    output.note(", ".join(f"{name} {value}" for name, value in report.conditions.items() if value))


def _markdown(report: LayerReport, rows: list[Row]) -> Iterator[str]:
    device = report.conditions.get("gpu", "a device that is not known")
    yield from (f"# jitgen bench {NAME}: {device}", "")
    facts = [*report.conditions.items(), ("copy rate", f"{report.copy_rate * 1e-9:,.0f} GB/s")]
    goals = tuple(
        (row.what, f"{row.value:.3f} {row.unit}", f"{row.budget}", "yes" if row.ok else "no")
        for row in rows
    )
    for table in (
        *_all(report),
        Table(title="targets", columns=("what", "found", "goal", "reached"), rows=goals),
        Table(title="sides", columns=("side", "note"), rows=tuple(report.notes.items())),
        Table(title="conditions", columns=("condition", "value"), rows=tuple(facts)),
    ):
        yield from (f"## {table.title}", "")
        for cells in (table.columns, ("---",) * len(table.columns), *table.rows):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        yield ""
