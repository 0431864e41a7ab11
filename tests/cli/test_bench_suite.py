# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench hopper` and `blackwell`, on saved reports and on machines without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from jitgen.bench.grouped import Step
from jitgen.bench.grouped_records import Checked
from jitgen.bench.grouped_report import GroupedReport
from tests.bench_report import SMALL, measured, report
from tests.cli.conftest import Jitgen


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    report().save(path)
    return path


def test_help_names_every_suite(jitgen: Jitgen) -> None:
    done = jitgen("bench --help")

    assert done.code == 0
    for suite in ("dispatch", "gemm", "hopper", "blackwell", "all"):
        assert f"\n  {suite} " in done.out
    assert "--peers" in jitgen("bench hopper --help").out
    assert "--json" in jitgen("bench load --help").out


def test_an_unknown_suite(jitgen: Jitgen) -> None:
    done = jitgen("bench nope")

    assert (done.code, done.out) == (2, "")
    assert "'nope' is not one of dispatch, start" in done.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(jitgen: Jitgen) -> None:
    done = jitgen("bench hopper --peers")

    assert (done.code, done.out) == (1, "")
    assert done.err == "error: the hopper suite needs a GPU that jitgen has kernels for\n"


def test_a_saved_report_is_shown(jitgen: Jitgen, saved: Path) -> None:
    done = jitgen("bench hopper --from", str(saved))

    assert done.code == 0, done.err
    assert "masked 32 x 8 N4096 K7168" in done.out
    assert "t64x128x128_c1x2_acc1" in done.out
    assert "geometric mean of the ratio to deep_gemm: 1.216" in done.out
    assert "copy rate: 4,000 GB/s" in done.out
    assert "cublaslt left out of 1 case: RuntimeError: not here" in done.err
    assert "98 % copy" in done.out
    assert "triton: own kernel" in done.err


def test_the_json_document_is_a_report(jitgen: Jitgen, saved: Path, tmp_path: Path) -> None:
    document = jitgen("bench hopper --json --from", str(saved)).document
    again = tmp_path / "again.json"
    again.write_text(json.dumps(document))

    assert document["ok"]
    assert document["geometric_mean"]["deep_gemm"] == pytest.approx(1.216, abs=1e-3)
    assert GroupedReport.read(again) == report()


def test_a_missed_target_and_a_wrong_result_fail(jitgen: Jitgen, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    GroupedReport(found=[measured(SMALL, 60, 50)]).save(path)
    missed = jitgen("bench hopper --from", str(path))
    GroupedReport(found=[measured(SMALL, 1, 1, times={}, missing={"jitgen": "it is wrong"})]).save(
        path
    )
    wrong = jitgen("bench hopper --from", str(path))

    assert missed.code == 1
    assert "under" in missed.out
    assert wrong.code == 1
    assert "error: contiguous 8 x 64 N7168 K2048: it is wrong" in wrong.err


def test_plots_of_a_saved_report(jitgen: Jitgen, saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = jitgen("bench hopper --from", str(saved), "--plot", str(tmp_path / "plots"))

    assert done.code == 0
    assert len(list((tmp_path / "plots").iterdir())) == 4


def test_a_report_to_send(jitgen: Jitgen, tmp_path: Path) -> None:
    """It says what the machine is, which kernels are right, and every figure, and nothing else."""
    found = report()
    found.suite = "blackwell"
    found.kernels = [Checked(kernel="good_one"), Checked(kernel="bad_one", reason="3 are | wrong")]
    saved, sent = tmp_path / "saved.json", tmp_path / "report.md"
    found.save(saved)
    done = jitgen("bench blackwell --from", str(saved), "--report", str(sent))
    text = sent.read_text(encoding="utf-8")
    document = json.loads(text.partition("```json")[2].partition("```")[0])

    assert done.code == 1  # for the kernel that is wrong
    assert "kernels on small exact problems: 1 right, 1 not" in done.out
    assert f"wrote {sent}" in done.err
    assert text.startswith("# jitgen bench blackwell: NVIDIA H200\n")
    assert "| good_one | right |" in text
    assert "| bad_one | 3 are / wrong |" in text
    assert "| masked 32 x 8 N4096 K7168 +-30% | 100.0 |" in text
    assert "| torch | " in text
    assert "| cublaslt | 1 | RuntimeError: not here |" in text
    assert str(tmp_path) not in text
    assert GroupedReport.from_json(document) == found
    lost = jitgen("bench blackwell --from", str(saved), "--report", str(tmp_path / "none" / "r.md"))
    assert lost.code == 2
    assert "there is no folder" in lost.err
    other = jitgen("bench hopper --from", str(saved))
    assert other.code == 2
    assert "is a report of another suite: jitgen bench blackwell" in other.err


def test_bad_words(jitgen: Jitgen, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    for words, message in (
        (f"--from {saved} --peers", "--from measures nothing"),
        (f"--from {tmp_path / 'none.json'}", "there is no file"),
        (f"--from {tmp_path / 'bad.json'}", "no report of hopper or blackwell"),
        (f"--cases {tmp_path / 'bad.json'}", "does not hold cases"),
        (f"--from {saved} --plot {saved}/plots", "/plots: Not a directory"),
    ):
        done = jitgen("bench hopper", words)
        assert (done.code, done.out) == (2, ""), words
        assert message in done.err


def test_a_run_is_saved_step_by_step(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    seen: list[int] = []

    def run(found: GroupedReport, steps: Sequence[Step], _: object) -> Iterator[Step]:
        for step in steps:
            seen.append(len(GroupedReport.read(path).found))
            found.found.append(measured(step.case, 10, 12))
            yield step
        found.conditions["warm"] = "SM 1400 MHz"

    monkeypatch.setattr("jitgen.bench.grouped.run", run)
    monkeypatch.setattr("jitgen.bench.grouped.require_gpu", lambda _: None)
    done = jitgen("bench hopper --save", str(path), "--only public --only contiguous")

    assert done.code == 0, done.err
    assert seen == list(range(17))
    assert len(GroupedReport.read(path).found) == 17
    assert GroupedReport.read(path).conditions == {"warm": "SM 1400 MHz"}
    lost = jitgen("bench hopper --save", str(tmp_path / "none" / "report.json"))
    assert lost.code == 2
    assert "there is no folder" in lost.err
    assert "[17/17] public contiguous 4 x 512 N7168 K7168" in done.err
    none = jitgen("bench hopper --only nothing-like-it")
    assert none.code == 2
    assert "no step has 'nothing-like-it' in its name" in none.err
