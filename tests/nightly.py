# SPDX-License-Identifier: Apache-2.0
"""
All tests of one marker, in pieces of some minutes, with a report that says what is left.

    python -m tests.nightly                        # 15 minutes of the night; again goes on
    python -m tests.nightly --anew --shard 2/8     # a new night, and of it this part
    python -m tests.nightly tests/compile          # the tests of a folder or file
    python -m tests.nightly --each 2               # of every test at most two cases
    python -m tests.nightly --summary

The report has a JSON document a line, each a `Record`; of those of a test the last one counts. Some
processes may write to one report at once, and reports of several machines may be joined with `cat`.
A piece runs tests that have not run before those that failed; what passed does not run again before
a new night, which keeps the durations alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import click
import pytest

from jitgen.support.codec import from_json, one_of, to_json
from jitgen.support.frozen import frozen

ROOT = Path(__file__).resolve().parents[1]
OUTCOMES = ("passed", "failed", "skipped", "not run")

DURATION_S = 1.0
"""Assumed seconds of a test while no duration is known of any."""


_ROW = "{:<56}" + "{:>9}" * (len(OUTCOMES) + 1)


@frozen
class Record:
    """
    What became of a test.

    Attributes:
        test: Name of the test in pytest; a file, if it could not be imported; empty where a night
            begins.
        outcome: ``started`` is as good as failed, unless the test is running right now.
        seconds: Duration of the test with its fixtures.
        commit: Commit at which it ran; with ``-dirty`` if files had been changed since.
        error: First line of it.
    """

    test: str
    outcome: Annotated[str, one_of("new night", "gone", "started", *OUTCOMES)]
    seconds: float = 0.0
    commit: str = ""
    error: str = ""


class Report:
    """
    The records of a file.

    Attributes:
        night: The last record of each test in the last night.
        durations: Seconds of each test in the nights before, so that shards stay what they are
            while a night goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.night: dict[str, Record] = {}
        self.durations: dict[str, float] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            self._take(from_json(Record, json.loads(line)))

    def _take(self, record: Record) -> None:
        if record.outcome == "new night":
            self.durations |= {test: each.seconds for test, each in self.night.items()}
            self.night = {}
        elif record.outcome == "gone":
            self.night.pop(record.test, None)  # another process may have said so, too
        else:
            self.night[record.test] = record

    def add(self, *records: Record) -> None:
        """Write records behind those that there are."""
        lines = [json.dumps(to_json(record)) + "\n" for record in records]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
        for record in records:
            self._take(record)

    def outcome(self, test: str) -> str:
        """Return one of `OUTCOMES`."""
        found = self.night[test].outcome if test in self.night else "not run"
        return "failed" if found == "started" else found

    def shard(self, tests: Iterable[str], number: int, count: int) -> list[str]:
        """Return the tests of one of `count` parts of equal duration, neighbours in `tests`."""
        known = [seconds for seconds in self.durations.values() if seconds]
        usual = sum(known) / len(known) if known else DURATION_S
        expected = {test: self.durations.get(test) or usual for test in tests}
        total, end = sum(expected.values()), 0.0
        found = []
        for test, seconds in expected.items():
            middle, end = end + seconds / 2, end + seconds
            if int(middle / total * count) == number - 1:
                found.append(test)
        return found

    def summary(self) -> str:
        """Return what became of the tests of each file, what failed, and at which commits."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for test, record in self.night.items():
            for row in (test.partition("::")[0], "all"):
                counts[row][self.outcome(test)] += 1
                counts[row]["seconds"] += record.seconds
        lines = [_ROW.format("", *OUTCOMES, "minutes")]
        for row in sorted(counts, key=lambda row: (row == "all", row)):
            numbers = [counts[row][outcome] for outcome in OUTCOMES]
            lines.append(_ROW.format(row, *numbers, f"{counts[row]['seconds'] / 60:.1f}"))
        for test, record in self.night.items():
            if self.outcome(test) == "failed":
                lines.append(f"failed: {test}: {record.error or 'it did not end'}")
        commits = Counter(each.commit for each in self.night.values() if each.commit)
        if len(commits) > 1:
            each = ", ".join(f"{commit} ({count})" for commit, count in commits.items())
            lines.append(f"Results are of several commits: {each}")
        return "\n".join(lines)


class Piece:
    """A plugin of pytest that runs what is left of a shard, up to a time, and reports it."""

    def __init__(
        self, report: Report, number: int, count: int, minutes: float, each: int | None = None
    ) -> None:
        self.report, self.number, self.count, self.each = report, number, count, each
        self.end = time.monotonic() + minutes * 60
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        self.commit = subprocess.check_output(git, text=True).strip()
        self.broken: set[str] = set()
        self.shard: list[str] = []
        self.current = Record(test="", outcome="not run")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported as a test that failed."""
        if report.failed:
            self.broken.add(report.nodeid)
            error = str(report.longrepr).strip().splitlines()[-1]
            failed = Record(test=report.nodeid, outcome="failed", commit=self.commit, error=error)
            self.report.add(failed)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None]:
        """Leave what is to run, after markers and other plugins left out theirs."""
        yield
        self.session = session
        report, every = self.report, {item.nodeid: item for item in items}
        new = [test for test in every if test not in report.night]
        report.add(*(Record(test=test, outcome="not run") for test in new))
        if not config.option.file_or_dir:
            gone = report.night.keys() - every.keys() - self.broken
            report.add(*(Record(test=test, outcome="gone") for test in sorted(gone)))
        self.shard = report.shard(every, self.number, self.count)
        wanted = [*self._some(self.left("not run")), *self.left("failed")]
        config.hook.pytest_deselected(items=[every[test] for test in every.keys() - wanted])
        items[:] = [every[test] for test in wanted]

    def _some(self, tests: list[str]) -> list[str]:
        """Leave out the cases of a test beyond its first `each` in this night."""
        if self.each is None:
            return tests
        ran = Counter(
            _function(test) for test in self.report.night if self.report.outcome(test) != "not run"
        )
        found = []
        for test in tests:
            ran[_function(test)] += 1
            if ran[_function(test)] <= self.each:
                found.append(test)
        return found

    def left(self, outcome: str) -> list[str]:
        """Return the tests of the shard that have this outcome."""
        return [test for test in self.shard if self.report.outcome(test) == outcome]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write down which test it is, should the process not outlive it."""
        self.current = Record(test=nodeid, outcome="started", commit=self.commit)
        self.report.add(self.current)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what became of a test's fixtures, or of itself."""
        outcome, error = self.current.outcome, self.current.error
        if report.failed:
            outcome, error = "failed", error or _first_line(report)
        elif outcome != "failed" and report.when != "teardown":
            outcome = "passed" if hasattr(report, "wasxfail") else report.outcome
        seconds = round(self.current.seconds + report.duration, 3)
        self.current = replace(self.current, outcome=outcome, error=error, seconds=seconds)

    def pytest_runtest_logfinish(self) -> None:
        """Write down what became of a test, and go on if there is time."""
        self.report.add(self.current)
        if time.monotonic() > self.end:
            self.session.shouldstop = "the time is over"


def _function(test: str) -> str:
    """Return the name of a test without its case."""
    return test.partition("[")[0]


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext).strip().partition("\n")[0]


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    number, _, count = value.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(
            f"must be I/N with I from 1 to N (got {value})", context, parameter
        )
    return int(number), int(count)


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--marker", default="nightly", type=click.Choice(["nightly", "service"]))
@click.option("--shard", default="1/1", callback=_numbers, metavar="I/N", help="Part of the tests.")
@click.option("--minutes", default=15.0, help="No test begins after them.")
@click.option(
    "--each", type=click.IntRange(min=1), help="Cases of a test, at most; all if left out."
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Of all that ran.")
@click.option("--anew", is_flag=True, help="Begin a night.")
@click.option("--summary", is_flag=True, help="Run nothing, and print what became of each test.")
def main(
    paths: tuple[str, ...],
    marker: str,
    shard: tuple[int, int],
    minutes: float,
    each: int | None,
    report: Path | None,
    *,
    anew: bool,
    summary: bool,
) -> None:
    """
    Run tests of a marker that have not passed yet.

    The status is 2 while there are tests that have not run, then 1 while there are some that fail.
    """
    records = Report(report or ROOT / "build" / f"{marker}.jsonl")
    if summary:
        click.echo(records.summary())
        return
    if anew:
        records.add(Record(test="", outcome="new night"))
    piece = Piece(records, *shard, minutes, each)
    options = ["-q", "-m", marker, "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    status = pytest.main([*options, *paths], plugins=[piece])
    if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        sys.exit(status)
    waiting, failed = len(piece.left("not run")), len(piece.left("failed")) + len(piece.broken)
    click.echo(f"Of {len(piece.shard)} tests {waiting} have not run, {failed} failed")
    sys.exit(2 if waiting else 1 if failed else 0)


if __name__ == "__main__":
    main()
