# SPDX-License-Identifier: Apache-2.0
"""``jitgen verify FILE``: what it asks for, what it refuses, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from tests.cli.conftest import Jitgen

KERNEL = {"name": "k.py:scale", "arch": "sm_90a", "right": True, "gaps": [], "coverage": []}
WRONG = {"name": "k.py:other", "arch": "sm_90a", "right": False, "gaps": [], "coverage": []}
TRIAL = {
    "problem": "x float32 2 x 3", "sizes": {"case": "tails"},
    "values": "tails", "right": False, "wrong": 2,
    "places": ["the tensor, tile (0, 0): row 1"], "frobenius": 0.5, "largest": 0.25,
    "fault": None, "runs": [],
}  # fmt: skip


class Processes:
    """Stands for the worker processes: every file has the kernels that it was given."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {"kernels": [{**KERNEL, "trials": []}]}

    def run(self, function: str, tasks: list[Any], **_: Any) -> Iterator[Outcome]:
        assert function == "jitgen.verify.files:verify_task"
        self.tasks = tasks
        for index, task in enumerate(tasks):
            yield Outcome(task=task, index=index, kind=OutcomeKind.OK, result=self.result)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    fake = Processes()
    monkeypatch.setattr(workers, "run", fake.run)
    return fake


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that would be noticed if anything but a process loaded them."""
    for name in ("k.py", "c.py", "k.so", "k.ptx", "d.json"):
        (tmp_path / name).write_text("raise SystemExit('loaded')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_of_kernels(jitgen: Jitgen, processes: Processes, files: Path) -> None:
    done = jitgen("verify k.py --arch sm_100a --modes eager --require-coverage --json")

    assert done.code == 0
    assert processes.tasks == [
        {
            "file": str(files / "k.py"), "arch": "sm_100a", "must_reach_all": True,
            "library": "", "ptx": "", "symbol": "", "modes": ["eager"], "time_limit_s": 300.0,
        }
    ]  # fmt: skip
    (kernel,) = done.document["kernels"]
    assert (kernel["name"], kernel["state"], kernel["error"]) == ("k.py:scale", "right", "")


def test_a_compiled_kernel(jitgen: Jitgen, processes: Processes, files: Path) -> None:
    done = jitgen("verify k.so --ptx k.ptx --symbol scale --cases c.py")

    assert done.code == 0
    task = processes.tasks[0]
    given = [Path(task[name]).name for name in ("library", "ptx", "file")]
    assert given == ["k.so", "k.ptx", "c.py"]
    assert task["symbol"] == "scale"
    assert not task["must_reach_all"]


def test_a_document(jitgen: Jitgen, processes: Processes, files: Path) -> None:
    """What several devices run comes in PTX, which names its target."""
    done = jitgen("verify d.json --arch cpu --modes late-links,lost-device-1")

    assert done.code == 0
    (task,) = processes.tasks
    assert (Path(task["file"]).name, task["modes"]) == ("d.json", ["late-links", "lost-device-1"])


def test_one_wrong_kernel_of_a_file(jitgen: Jitgen, processes: Processes, files: Path) -> None:
    processes.result["kernels"].append({**WRONG, "trials": [TRIAL]})

    done = jitgen("verify k.py")

    assert done.code == 1
    for words in ("k.py:scale", "k.py:other", "tails: 2 wrong values", "tile (0, 0): row 1"):
        assert words in done.out
    assert "2 kernels in 3 modes (eager, deferred, random-3): 1 not right" in done.err


def test_a_file_that_says_nothing(jitgen: Jitgen, processes: Processes, files: Path) -> None:
    processes.result = {"error": "k.py defines no verify_cases()"}

    done = jitgen("verify k.py c.py")

    assert done.code == 1
    assert done.out.count("k.py defines no verify_cases()") == 2
    assert "failed" in done.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("missing.py", "there is no file missing.py"),
        ("k.py deepseek-v3", "either files or kernels of jitgen"),
        ("k.py --problem 1:2:3:4", "--problem is for kernels of jitgen"),
        ("k.py --arch cpu", "knows no target 'cpu'; it knows sm_9x, sm_10x, sm_12x"),
        ("k.py --arch sm_75", "knows no target 'sm_75'"),
        ("k.py --ptx k.ptx", "a compiled kernel is one FILE.so with all of --ptx, --symbol"),
        ("k.so", "a compiled kernel is one FILE.so with all of --ptx, --symbol"),
        ("k.so --ptx no.ptx --symbol a --cases c.py", "no.ptx"),
        ("deepseek-v3 --require-coverage", "are for files"),
    ],
)
def test_what_is_refused(
    jitgen: Jitgen, processes: Processes, files: Path, words: str, complaint: str
) -> None:
    done = jitgen("verify", words)

    assert done.code == 2
    assert complaint in done.err
    assert not processes.tasks
