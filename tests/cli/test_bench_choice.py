# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench choice`, on saved reports and on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import jitgen as library
from jitgen.autotune.measure.clock import Call
from jitgen.bench.choice.cases import Case, random_cases, skewed_cases
from jitgen.bench.choice.recorded import record, save
from jitgen.bench.choice.report import ChoiceReport, Measured
from jitgen.config import Arch
from tests.cli.conftest import Jitgen


def timed(case: Case) -> Measured:
    """Return times of all candidates, of which the model's choice is the second best."""
    choice = library.select(case.asked, Arch.SM_90A, use_measured=False)
    first, second, *others = (each.config.name(Arch.SM_90A) for each in choice.candidates)
    return Measured(case=case, times_us={first: 11.0, second: 10.0, **dict.fromkeys(others, 20.0)})


def test_without_a_gpu_it_is_refused(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgen.autotune.measure.clock.has_gpu", lambda: False)
    done = jitgen("bench choice --count 3")

    assert done.code == 1
    assert "the choice suite needs a GPU" in done.err


def test_a_saved_report_is_shown(jitgen: Jitgen, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    cases = random_cases(12, 7)
    found = [timed(case) for case in cases]
    conditions = {"gpu": "NVIDIA H200"}
    ChoiceReport(family="random", seed=7, conditions=conditions, found=found).save(path)
    done = jitgen("bench choice --arch sm_90a --from", str(path))
    document = jitgen("bench choice --json --arch sm_90a --from", str(path)).document

    assert done.code == 0, done.err
    assert "the worst by model" in done.out
    assert "gpu NVIDIA H200" in done.err
    assert document["rules"]["model"]["mean"] == pytest.approx(0.1)
    assert len(document["worst"]["model"]) == 10
    assert document["worst"]["table"][0]["best_us"] == 10.0


def test_a_run_is_saved_and_resumed(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "choice.json"
    seen: list[tuple[int, int, object]] = []

    def run(
        found: ChoiceReport, cases: list[Case], *, seconds: float | None, save: Call
    ) -> Iterator[Case]:
        seen.append((len(found.found), len(cases), seconds))
        found.found.append(timed(cases[len(found.found)]))
        save()
        yield cases[0]

    monkeypatch.setattr("jitgen.bench.choice.run.run", run)
    words = ("bench choice --of skewed --arch sm_90a --minutes 0.5 --resume --save", str(path))
    first, second = jitgen(*words), jitgen(*words)
    other = jitgen(*words, "--seed 3")

    assert (first.code, second.code) == (0, 0), second.err
    assert seen == [(0, 40, 30.0), (1, 40, 30.0)]
    assert [each.case for each in ChoiceReport.read(path).found] == skewed_cases(40, 0)[:2]
    assert other.code == 2
    assert "is of --of skewed --seed 0" in other.err


def test_kernels_are_listed(jitgen: Jitgen) -> None:
    """One a line, and every one a name that `jitgen prewarm` takes."""
    done = jitgen("bench choice --kernels --count 40 --only contiguous_e4m3 --arch sm_90a")
    names = done.out.split()
    taken = jitgen("prewarm --dry-run", *(f"--config {name}" for name in names))

    assert len(names) == len(set(names)) == 11
    assert taken.code == 0, taken.err


def test_recorded_routings_need_a_fixed_menu(jitgen: Jitgen, tmp_path: Path) -> None:
    """Those that come with jitgen, and a file of one's own; `--count` takes the first."""
    path = tmp_path / "mine.json"
    ids = torch.tensor([[0, 1], [1, 2]])
    save([record(ids, experts=8, model="mine", layer=0)], path)
    shipped = jitgen("bench choice --of recorded --kernels --arch sm_90a").out.split()
    mine = jitgen("bench choice --of recorded --kernels --arch sm_90a --routings", str(path))
    first = jitgen("bench choice --of recorded --count 1 --json --kernels --arch sm_90a").document

    assert len(shipped) == len(set(shipped)) > 20
    assert set(mine.out.split()) <= set(shipped)
    assert {name.split("_")[2] for name in first["kernels"]} == {"ragged"}


def test_recorded_cases_are_resumed_with_the_same_routings(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a report would mix the routings of two models, or of two days."""

    def run(
        found: ChoiceReport, cases: list[Case], *, seconds: float | None, save: Call
    ) -> Iterator[Case]:
        found.found.append(timed(cases[len(found.found)]))
        save()
        yield cases[0]

    monkeypatch.setattr("jitgen.bench.choice.run.run", run)
    mine, report = tmp_path / "mine.json", tmp_path / "report.json"
    for ids in ([[0, 1]], [[2, 1]]):
        save([record(torch.tensor(ids), experts=8, model="mine", layer=0)], mine)
        words = ("bench choice --of recorded --arch sm_90a --resume --json --save", str(report))
        done = [jitgen(*words, f"--routings {mine}") for _ in range(2)]
        if ids == [[0, 1]]:
            assert [len(each.document["found"]) for each in done] == [1, 2]

    assert "is of routings mine.json " in done[1].err
    assert done[1].code == 2
    assert len(ChoiceReport.read(report).found) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--resume", "name it with --save"),
        ("--from {here} --save y", "--from measures nothing"),
        ("--only nothing", "no case has 'nothing' in its name"),
        ("--routings {here}", "--routings goes with --of recorded"),
        ("--of recorded --seed 2", "--seed draws cases, and --of recorded draws none"),
        ("--of recorded --routings nowhere", "there is no file 'nowhere'; jitgen.bench.choice"),
        ("--of recorded --routings {here}", "does not hold routings: it is no JSON"),
    ],
)
def test_options_that_do_not_go_together(jitgen: Jitgen, words: str, reason: str) -> None:
    done = jitgen(f"bench choice {words.format(here=__file__)}")

    assert done.code == 2
    assert reason in done.err
