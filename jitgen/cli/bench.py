# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench``: measure jitgen against its budgets."""

from __future__ import annotations

import click

from jitgen.bench import SUITES, run
from jitgen.bench.protocol import Row, conditions
from jitgen.cli.options import with_output
from jitgen.cli.output import Column, ExitCode, Output
from jitgen.measure.errors import NoDevice


class _BenchCommand(click.Command):
    """A command whose help lists the suites."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write one line for each suite."""
        with formatter.section("Suites"):
            formatter.write_dl([*SUITES.items(), ("all", "Every suite, one after the other.")])


@click.command(cls=_BenchCommand)
@click.argument("suite", type=click.Choice([*SUITES, "all"]))
@with_output
def bench(output: Output, suite: str) -> int:
    """
    Measure a suite and compare it with its budgets. Exits 1 if one is exceeded.

    Nothing is timed before its result was found right. Figures are medians.
    """
    rows: list[Row] = []
    for name in SUITES if suite == "all" else [suite]:
        output.note(f"measuring {name}: {SUITES[name]}")
        try:
            rows += run(name)
        except NoDevice as error:
            if suite != "all":
                raise
            output.note(f"skipped: {error}")
    where = conditions()

    def human() -> None:
        columns = [
            Column("SUITE"),
            Column("MEASURED", is_number=True),
            Column("BUDGET", is_number=True),
            Column("OK"),
            Column("WHAT"),
            Column("DETAIL"),
        ]
        output.table(columns, [_cells(row) for row in rows])
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    is_good = all(row.ok for row in rows)
    document = {
        "suite": suite,
        "ok": is_good,
        "conditions": where,
        "rows": [row.to_json() for row in rows],
    }
    output.result("bench", document, human)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _cells(row: Row) -> tuple[str, ...]:
    budget, verdict = "", ""
    if row.budget is not None:
        budget = f"{'>=' if row.is_rate else '<='} {_figure(row.budget, row.unit)}"
        verdict = "ok" if row.ok else "over"
        if not row.ok and row.is_rate:
            verdict = "under"
    return (row.suite, _figure(row.value, row.unit), budget, verdict, row.what, row.detail)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
