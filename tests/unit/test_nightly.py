# SPDX-License-Identifier: Apache-2.0
"""Tests of the night in pieces: `python -m tests.nightly`, with a suite of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.nightly import ROOT, Record, Report, main

SUITE = """
import os
from pathlib import Path
import pytest

IS_MENDED = Path("mended").exists()

def test_of_every_push():
    assert False

@pytest.mark.nightly
class TestOfTheNight:
    @pytest.mark.parametrize("number", range(3))
    def test_number(self, number):
        assert number != 1 or IS_MENDED, "one is wrong"

    @pytest.fixture
    def broken(self):
        yield
        assert IS_MENDED, "what was left behind"

    def test_of_a_fixture(self, broken):
        pass

    def test_that_ends_the_process(self):
        if not IS_MENDED:
            os._exit(9)

    @pytest.mark.skip
    def test_of_another_machine(self):
        pass

    @pytest.mark.xfail(strict=True)
    def test_that_must_fail(self):
        assert False
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The folder of the suite."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly: slow\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    return tmp_path


def run(suite: Path, *options: str) -> tuple[int, str]:
    """Return the status and what was printed."""
    command = [sys.executable, "-m", "tests.nightly", "--report", "night.jsonl", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: PLW1510  # statuses are compared
        command, cwd=suite, env=environ, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def summary(suite: Path) -> str:
    """Return what became of the tests."""
    done = CliRunner().invoke(main, ["--summary", "--report", str(suite / "night.jsonl")])
    assert done.exit_code == 0
    return done.output


def counts(suite: Path) -> list[str]:
    """Return how many tests passed, failed, were skipped and have not run."""
    (total,) = (line for line in summary(suite).splitlines() if line.startswith("all "))
    return total.split()[1:-1]


def test_a_night_goes_on_until_all_passed(suite: Path) -> None:
    """Also behind a test that ends the process; what failed comes last, what passed not again."""
    assert run(suite)[0] == 9
    assert counts(suite) == ["2", "3", "0", "2"]

    (suite / "test_that_is_broken.py").write_text("import nothing_of_this_name")
    assert run(suite)[0] == 9
    assert counts(suite) == ["3", "4", "1", "0"]
    text = summary(suite)
    for failure in (
        "test_that_is_broken.py: E   ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "test_it.py::TestOfTheNight::test_number[1]: AssertionError: one is wrong",
        "test_it.py::TestOfTheNight::test_of_a_fixture: AssertionError: what was left behind",
        "test_it.py::TestOfTheNight::test_that_ends_the_process: it did not end",
    ):
        assert f"failed: {failure}" in text

    (suite / "test_that_is_broken.py").unlink()
    (suite / "mended").touch()
    status, text = run(suite)
    assert status == 0, text
    assert "3 passed, 5 deselected" in text
    assert counts(suite) == ["6", "0", "1", "0"]


def test_no_test_begins_when_the_time_is_over(suite: Path) -> None:
    (suite / "mended").touch()

    status, text = run(suite, "--minutes", "0")
    assert status == 2
    assert "Of 7 tests 6 have not run, 0 failed" in text
    status, text = run(suite, "--shard", "2/2", "test_it.py")
    assert status == 0
    assert "Of 4 tests 0 have not run, 0 failed" in text
    assert counts(suite) == ["4", "0", "1", "2"]
    run(suite, "--anew", "--minutes", "0")
    assert counts(suite) == ["1", "0", "0", "6"]


def test_shards_take_equal_times(tmp_path: Path) -> None:
    """As long as tests took in earlier nights, so that a shard stays what it is in this one."""
    tests = ["x::long", *(f"x::{number}" for number in range(30)), "x::new"]
    report = Report(tmp_path / "night.jsonl")
    report.add(Record(test="x::long", outcome="passed", seconds=30))
    report.add(*(Record(test=test, outcome="passed", seconds=1) for test in tests[1:-1]))
    assert len(report.shard(tests, 1, 2)) == 16
    report.add(Record(test="", outcome="new night"))

    for again in (report, Report(report.path)):
        shards = [again.shard(tests, number, 2) for number in (1, 2)]
        assert shards[0] == tests[:2]
        assert [*shards[0], *shards[1]] == tests
    report.add(Record(test="x::long", outcome="passed", seconds=1))
    assert report.shard(tests, 1, 2) == tests[:2]


def test_results_of_several_commits_are_named(tmp_path: Path) -> None:
    report = Report(tmp_path / "night.jsonl")
    report.add(Record(test="x::a", outcome="passed", commit="one"))
    assert "several" not in report.summary()

    report.add(*(Record(test=test, outcome="passed", commit="two") for test in ("x::b", "x::c")))
    assert "Results are of several commits: one (1), two (2)" in report.summary()


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "1/0", "a/b"])
def test_shards_that_there_are_not(shard: str) -> None:
    done = CliRunner().invoke(main, ["--shard", shard])

    assert done.exit_code == 2
    assert "must be I/N with I from 1 to N" in done.output


def test_two_pieces_may_say_that_a_test_is_gone(tmp_path: Path) -> None:
    """The second one said so of a test that the report no longer had: nothing could be read."""
    path = tmp_path / "report.jsonl"
    gone = Record(test="test_it.py::test_old", outcome="gone")
    Report(path).add(replace(gone, outcome="passed"), gone, gone)

    assert Report(path).night == {}


def test_some_cases_of_every_test(suite: Path) -> None:
    """A night that is too short sees something of each; the next piece goes on."""
    (suite / "mended").touch()
    assert run(suite, "--each", "1")[0] == 2
    assert counts(suite) == ["4", "0", "1", "2"]
    assert run(suite, "--each", "2")[0] == 2
    assert run(suite)[0] == 0
