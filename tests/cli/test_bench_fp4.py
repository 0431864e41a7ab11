# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench hopper-fp4`, on saved reports and on machines without a Hopper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from jitgen.autotune.measure.clock import Call
from jitgen.bench.hopper_fp4.report import Fp4Report
from jitgen.bench.hopper_fp4.run import PUBLIC, Method, Step
from tests.cli.conftest import Jitgen
from tests.unit.test_bench_fp4 import report


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(jitgen: Jitgen) -> None:
    done = jitgen("bench hopper-fp4 --peers")

    assert (done.code, done.out) == (1, "")
    assert done.err == "error: the hopper-fp4 suite needs a Hopper GPU\n"


def test_a_saved_report_is_shown_and_written(jitgen: Jitgen, tmp_path: Path) -> None:
    saved, written = tmp_path / "report.json", tmp_path / "report.md"
    report().save(saved)
    done = jitgen("bench hopper-fp4 --from", str(saved), "--report", str(written))
    text = written.read_text(encoding="utf-8")

    assert done.code == 1  # no target is reached
    assert "N4096 K7168, 32 groups" in done.out
    assert "119.0 (1.76; 8,403)" in done.out
    assert "marlin: vLLM's build" in done.err
    assert text.startswith("# jitgen bench hopper-fp4: NVIDIA H200\n")
    assert "| 8 | 1.90 | 210.0 (9,048) | 120.0 (1.75; 8,333) |" in text
    assert "activations, 8 rows, N4096 K7168 | 1.765 | 1.78 | no | best: e4m3 folded |" in text
    assert "| humming bf16 | 1 | RuntimeError: no / kernel |" in text
    assert not jitgen("bench hopper-fp4 --json --from", str(saved)).document["ok"]


def test_a_run_is_saved_and_resumed(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    seen: list[tuple[int, int, object, object]] = []

    def run(
        found: Fp4Report, steps: Sequence[Step], _: object, how: Method, save: Call
    ) -> Iterator[Step]:
        save()
        seen.append((len(found.found), len(steps), how.rounds, how.seconds))
        found.found += report().found
        yield steps[0]

    monkeypatch.setattr("jitgen.bench.hopper_fp4.run.run", run)
    monkeypatch.setattr("jitgen.bench.hopper_fp4.run.require_hopper", lambda: None)
    words = ("bench hopper-fp4 --rounds 3 --seconds 60 --only N2880 --resume --save", str(path))
    first, second = jitgen(*words), jitgen(*words)

    assert (first.code, second.code) == (1, 1)
    assert seen == [(0, 7, 3, 60.0), (1, 7, 3, 60.0)]
    assert len(Fp4Report.read(path).found) == 2
    assert "[1/7] ragged 32 x 8 N2880 K2880" in first.err


def test_kernels_are_listed(jitgen: Jitgen) -> None:
    """One a line, and every one a name that `jitgen prewarm` takes."""
    done = jitgen("bench hopper-fp4 --kernels --only N2880")
    names = done.out.split()
    document = jitgen("bench hopper-fp4 --kernels --json --only N2880").document
    taken = jitgen("prewarm --dry-run", *(f"--config {name}" for name in names))

    assert names == document["kernels"]
    assert taken.code == 0, taken.err


def test_bad_words(jitgen: Jitgen, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    bad = f"--from {tmp_path}/bad.json"
    for words, message in (
        ("--resume", "name it with --save"),
        (f"{bad} --peers", "--from measures nothing"),
        (bad, "bad.json does not hold a report"),
        ("--only nothing-like-it", "no case has 'nothing-like-it' in its name"),
        (f"--cases {tmp_path}/bad.json", "bad.json does not hold cases"),
    ):
        done = jitgen("bench hopper-fp4", words)
        assert (done.code, done.out) == (2, ""), words
        assert message in done.err
    assert PUBLIC.exists()
