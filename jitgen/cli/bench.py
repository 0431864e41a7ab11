# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench``: measure jitgen against its budgets."""

from __future__ import annotations

import importlib

import click

from jitgen.autotune.measure.errors import NoDevice
from jitgen.bench import OWN, REPORTS, SUITES, run
from jitgen.bench.protocol import Row, conditions
from jitgen.cli.options import with_output
from jitgen.cli.output import Column, ExitCode, Output

_ALL = "all"
_APART = {**REPORTS, **OWN}
_LINES = {_ALL: f"Every suite but {', '.join(_APART)}, one after the other."}


class _BenchGroup(click.Group):
    """A group with a command for each suite."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the suites in the order in which `all` runs them."""
        return [*SUITES, *_APART, *_LINES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of a suite, or fail with the suites that there are."""
        suites = self.list_commands(ctx)
        if cmd_name not in suites:
            ctx.fail(f"{cmd_name!r} is not one of {', '.join(suites)}")
        if cmd_name in REPORTS:
            from jitgen.cli.bench_suite import command

            return command(cmd_name)
        if cmd_name in OWN:
            module = importlib.import_module(f"jitgen.cli.bench_{cmd_name.replace('-', '_')}")
            found: click.Command = module.command
            return found
        return _command(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write one line for each suite."""
        with formatter.section("Suites"):
            formatter.write_dl([*SUITES.items(), *_APART.items(), *_LINES.items()])


@click.group(cls=_BenchGroup, subcommand_metavar="SUITE [OPTIONS]")
def bench() -> None:
    """
    Measure a suite and compare it with its budgets. Exits 1 if one is exceeded.

    Nothing is timed before its result was found right. Figures are medians.
    """


def _command(suite: str) -> click.Command:
    """Return the command that runs `suite`, which has no options but --json."""

    @click.command(suite, help={**SUITES, **_LINES}[suite])
    @with_output
    def command(output: Output) -> int:
        return _measure(output, suite)

    return command


def _measure(output: Output, suite: str) -> int:
    rows: list[Row] = []
    for name in SUITES if suite == _ALL else [suite]:
        output.note(f"measuring {name}: {SUITES[name]}")
        try:
            rows += run(name)
        except NoDevice as error:
            if suite != _ALL:
                raise
            output.note(f"skipped: {error}")
    where = conditions()

    def human() -> None:
        show_rows(output, rows)
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


def show_rows(output: Output, rows: list[Row]) -> None:
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
