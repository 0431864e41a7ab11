# SPDX-License-Identifier: Apache-2.0
"""``jitgen verify``: what it refuses, and what it makes of what its processes return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.emulator import parse_modes
from tests.cli.conftest import Jitgen

NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"
ON_CPU = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t32x64x128_c1x1_acc1_cpu"
COVERAGE = {
    "entry": "kernel",
    "instructions": [900, 1000],
    "purposes": {"matrix": [32, 36], "copy": [5, 5]},
    "branches": [7, 8],
    "one_way": [{"place": "ptx:9", "never": "taken"}],
    "functions": {"promote": {"lines": [3, 4], "never": [77]}},
    "blocks": [[1, 9, 12]],
    "never_executed": [{"purpose": "matrix", "place": "ptx:3", "reason": "no way"}] * 4,
}
GAP = {
    "kind": "never executed",
    "message": "no problem reaches this matrix instruction",
    "place": "ptx:3: wgmma",
    "who": "",
    "count": 1,
    "severity": "error",
}
RACE = {
    "kind": "race",
    "message": "a and b",
    "place": "ptx:9: st",
    "who": "CTA 0",
    "count": 2,
    "severity": "error",
}


def trial(**changed: Any) -> dict[str, Any]:
    run = {
        "mode": "eager",
        "seconds": 0.5,
        "cpu_seconds": 0.5,
        "findings": [],
        "counts": {"bulk_loads": 1234},
        "warp_instructions": {"load": 55, "math": 99},
    }
    return {
        "problem": "rows 5 + 0, N 72, K 272, 4 SMs",
        "sizes": {"rows": [5, 0], "n": 72, "k": 272, "num_sms": 4},
        "values": "random",
        "right": True,
        "wrong": 0,
        "places": [],
        "frobenius": 0.00166,
        "largest": 0.0023,
        "fault": None,
        "runs": [{**run, "findings": changed.pop("findings", [])}],
        **changed,
    }


def verification(name: str, *, is_right: bool = True, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "arch": "sm_90a",
        "right": is_right,
        "gaps": changed.pop("gaps", []),
        "coverage": [COVERAGE],
        "trials": [trial(**changed)],
    }


class Processes:
    """Stands for the worker processes: returns what it was given, last task first."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.results: dict[str, Any] = {}

    def run(self, _function: str, tasks: list[Any], **_: Any) -> Iterator[Outcome]:
        self.tasks = tasks
        for index, task in reversed(list(enumerate(tasks))):
            name = GroupedGemmConfig.from_json(task["config"]).name(task["arch"])
            result = self.results.get(name, verification(name))
            yield Outcome(
                task=task,
                index=index,
                kind=OutcomeKind.OK if isinstance(result, dict) else OutcomeKind.CRASH,
                result=result if isinstance(result, dict) else None,
                error=None if isinstance(result, dict) else result,
                seconds=1.5,
            )


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    fake = Processes()
    monkeypatch.setattr(workers, "run", fake.run)
    return fake


def test_a_right_kernel(jitgen: Jitgen, processes: Processes) -> None:
    done = jitgen("verify", NAME)

    assert done.code == 0
    for words in ("right", "1.66e-03", NAME, "bulk loads", "1,234", "warp instructions in math"):
        assert words in done.out
    for words in ("900 of 1,000", "41 of 41", "3 of 4; not 77", "4 instructions never executed"):
        assert words in done.out
    assert "1 kernel in 3 modes (eager, deferred, random-3): all right" in done.err
    assert processes.tasks[0]["modes"] == ["eager", "deferred", "random-3"]
    assert processes.tasks[0]["key"] == ""


def test_counts_have_the_title_of_the_problem_that_ran(
    jitgen: Jitgen, processes: Processes
) -> None:
    """They were those of a later problem where the first one never ran."""
    found = verification(NAME)
    found["trials"].insert(0, trial(problem="rows 9, N 72, K 272, 4 SMs", runs=[]))
    processes.results[NAME] = found
    done = jitgen("verify", NAME)

    assert "bulk loads" in done.out
    assert "rows 5 + 0" in done.out
    assert "rows 9" not in done.out


SCHEDULES = {"proved": False, "observed": [], "explored": [], "most_explored": 8}


def test_a_kernel_that_is_proved(jitgen: Jitgen, processes: Processes) -> None:
    processes.results[NAME] = verification(NAME, schedules={**SCHEDULES, "proved": True})

    done = jitgen("verify", NAME)

    assert done.code == 0
    assert "1 of 1 problem proved for every schedule of it" in done.err
    assert "observes the schedule" not in done.out


def test_a_kernel_that_observes_its_schedule(jitgen: Jitgen, processes: Processes) -> None:
    seen = {"what": "value that an atomic returns", "place": "ptx:7: atom", "count": 2}
    schedules = {**SCHEDULES, "observed": [seen], "explored": ["reversed", "last-0"]}
    processes.results[NAME] = verification(NAME, schedules=schedules)

    done = jitgen("verify", NAME)

    assert done.code == 0
    assert "0 of 1 problem proved for every schedule of it" in done.err
    assert "observes the schedule: value that an atomic returns (2 times)" in done.out
    assert "at ptx:7: atom" in done.out
    assert "tried 2 other orders, of at most 8: reversed, last-0" in done.out


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            verification(NAME, is_right=False, wrong=3, places=["group 2"]),
            ["WRONG", "random: 3 wrong values", "group 2"],
        ),
        (
            verification(NAME, is_right=False, findings=[RACE]),
            ["random, mode eager: race: a and b (2 times)", "at ptx:9: st", "by CTA 0"],
        ),
        (verification(NAME, is_right=False, fault=RACE), ["WRONG", "random: race"]),
        (
            verification(NAME, is_right=False, gaps=[GAP]),
            ["all problems: never executed: no problem reaches", "at ptx:3: wgmma"],
        ),
        ({"error": "the host part calls what the emulator does not know"}, ["failed", "host part"]),
        ("killed by signal 11", ["failed", "killed by signal 11"]),
    ],
)
def test_what_is_not_right_fails(
    jitgen: Jitgen, processes: Processes, result: Any, words: list[str]
) -> None:
    processes.results[NAME] = result

    done = jitgen("verify", NAME)

    assert done.code == 1
    assert all(word in done.out for word in words)
    assert "1 not right" in done.err


def test_a_plan_stands_for_its_menu(jitgen: Jitgen, processes: Processes) -> None:
    wanted = plans.configs(plans.load("deepseek-v3"), Arch.SM_90A)
    bad = wanted[1].name("sm_90a")
    processes.results[bad] = "crashed"

    done = jitgen("verify deepseek-v3 --arch sm_90a --modes all --json")

    assert done.code == 1
    document = done.document
    assert [row["name"] for row in document["kernels"]] == [c.name("sm_90a") for c in wanted]
    assert [row["state"] for row in document["kernels"]].count("failed") == 1
    assert document["ok"] is False
    assert len(document["modes"]) > 6


def test_kernels_of_the_cpu_have_no_modes(jitgen: Jitgen, processes: Processes) -> None:
    """They used to be refused; beside a kernel of a GPU its modes are named."""
    alone = jitgen("verify", ON_CPU, "--json").document
    beside = jitgen("verify", ON_CPU, NAME, "--json").document

    assert alone["modes"] == ["native"]
    assert beside["modes"] == [mode.name for mode in parse_modes("quick")]


def test_names_are_taken_once(jitgen: Jitgen, processes: Processes) -> None:
    jitgen("verify", NAME, NAME, "--problem 2:300:128:256")

    assert len(processes.tasks) == 1
    assert processes.tasks[0]["problem"] == "2:300:128:256"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "Missing argument"),
        (f"{NAME} --problem 1:2:3", "G:M:N:K"),
        (f"{NAME} --modes slow", "'slow' is not known"),
        (f"{NAME} --arch cpu", "is a kernel for sm_90a"),
        ("no_such_kernel", "is no kernel name"),
        (NAME.replace("128x128x128", "128x7x128"), "tile"),
    ],
)
def test_what_is_refused(jitgen: Jitgen, processes: Processes, words: str, complaint: str) -> None:
    done = jitgen("verify", words)

    assert done.code == 2
    assert complaint in done.err
    assert not processes.tasks


@pytest.mark.parametrize("command", ["verify", "run", "bench kernel"])
def test_without_numpy(
    jitgen: Jitgen,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    """The process that checks a kernel used to end, which was all that its caller said."""
    import importlib.util

    file = tmp_path / "my.py"
    assert jitgen("show", NAME, "--source", "-o", str(file)).code == 0
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "numpy" else found(name, *a)
    )

    done = jitgen(command, str(file) if command == "run" else NAME)

    assert done.code == 1
    assert "pip install 'jitgen[emulator]'" in done.err
