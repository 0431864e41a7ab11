# SPDX-License-Identifier: Apache-2.0
"""A report to send, in Markdown: the machine, which kernels are right on it, and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from jitgen.bench.report import BenchReport, Section
from jitgen.cli.bench_suite import left_out, section_table
from jitgen.cli.doctor import about_machine
from jitgen.errors import ConfigError


def write(report: BenchReport, path: Path) -> None:
    """
    Write the report to send; it names no paths, users or settings of this machine.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.write_text("\n".join(_lines(report)) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def _lines(report: BenchReport) -> Iterator[str]:
    device = report.conditions.get("gpu", "a device that is not known")
    yield from (f"# jitgen bench {report.suite}: {device}", "")
    yield from _table(("condition", "value"), list(report.conditions.items()))
    yield from ("", "## The machine that wrote this", "")
    facts = [(each.name, each.value) for each in about_machine()]
    yield from _table(("what", "value"), facts)
    yield from ("", "## Kernels on small exact problems", "")
    yield from _table(
        ("kernel", "result"), [(each.kernel, each.reason or "right") for each in report.kernels]
    )
    for section in Section:
        if found := report.of(section):
            columns, rows = section_table(report, found)
            yield from ("", f"## {section}", "")
            yield from _table([column.title for column in columns], rows)
    yield from ("", "## Errors against float64", "")
    yield from _table(
        ("case", "errors"),
        [
            (
                str(each.case),
                ", ".join(f"{side} {error:.3e}" for side, error in each.errors.items()),
            )
            for each in report.accuracy
        ],
    )
    yield from ("", "## What was left out", "")
    notes = [(name, "", note) for name, note in report.notes.items()]
    missing = [(side, str(count), why) for (side, why), count in left_out(report).items()]
    failed = [("jitgen", "", failure) for failure in report.failures]
    yield from _table(("side", "cases", "why"), [*notes, *missing, *failed])
    yield from ("", "## All of it", "", "```json", json.dumps(report.to_json()), "```")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, or that there is nothing to tell."""
    if not rows:
        yield "None."
        return
    for cells in (titles, ["---"] * len(titles), *rows):
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
