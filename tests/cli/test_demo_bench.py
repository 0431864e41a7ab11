# SPDX-License-Identifier: Apache-2.0
"""`jitgen demo` and `jitgen bench`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import SUITES, function_of, processes, protocol
from jitgen.bench import run as run_suite
from jitgen.bench.protocol import Row
from jitgen.targets.legality import check
from tests.cli.conftest import Jitgen


def test_demo_is_right_cold_and_warm(jitgen: Jitgen) -> None:
    cold, warm = jitgen("demo", "--json"), jitgen("demo")

    assert cold.code == 0, cold.err
    document = cold.document
    assert document["ok"]
    up, down = document["steps"]
    assert (up["first"]["source"], up["fresh"]["source"], up["warm"]["source"]) == (
        "compiled",
        "disk",
        "memory",
    )
    assert max(up["error"], down["error"]) < 2**-7
    if document["cross_compiled"]:
        assert document["cross_compiled"]["registers"] > 0
        assert document["cross_compiled"]["stack_bytes"] == 0
    assert warm.code == 0
    assert "disk," in warm.out
    assert "agrees with the float32 reference" in warm.out


def test_every_suite_has_rows() -> None:
    for name in SUITES:
        assert callable(function_of(name))
    with pytest.raises(KeyError):
        next(run_suite("nope"))


def rows(*values: float) -> Iterator[Row]:
    for value in values:
        yield Row(suite="load", what="a load", value=value, unit="ms", budget=0.5)


@pytest.mark.parametrize(("value", "code", "word"), [(0.25, 0, "ok"), (0.75, 1, "over")])
def test_bench_compares_with_budgets(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, value: float, code: int, word: str
) -> None:
    monkeypatch.setattr("jitgen.bench.compiles.load", lambda: rows(value))
    done = jitgen("bench", "load")
    document = jitgen("bench", "load", "--json").document

    assert done.code == code
    assert " ".join(done.out.splitlines()[1].split()) == f"load {value} ms <= 0.5 ms {word} a load"
    assert document["ok"] == (code == 0)
    assert document["rows"][0]["value"] == value
    assert "cores" in document["conditions"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_suite_without_a_gpu(jitgen: Jitgen) -> None:
    done = jitgen("bench", "gemm")

    assert (done.code, done.out) == (1, "")
    assert "error: the gemm suite needs a GPU" in done.err


def test_all_skips_what_needs_a_device(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgen.cli.bench.SUITES", {"load": "loads", "gemm": "times"})
    monkeypatch.setattr("jitgen.bench.compiles.load", lambda: rows(0.25))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = jitgen("bench", "all", "--json")

    assert [row["suite"] for row in done.document["rows"]] == ["load"]
    assert "skipped: the gemm suite needs a GPU" in done.err


def test_bench_refuses_to_time_what_is_wrong(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> Iterator[Row]:
        raise WrongResult("the kernel is wrong by 3.0e-01 of the largest value")
        yield

    monkeypatch.setattr("jitgen.bench.compiles.load", wrong)
    done = jitgen("bench", "load")

    assert (done.code, done.out) == (1, "")
    assert "error: the kernel is wrong" in done.err


def test_rates_have_a_floor() -> None:
    rate = {"suite": "prewarm", "what": "", "unit": "a minute", "budget": 120.0, "is_rate": True}

    assert Row(value=130.0, **rate).ok  # type: ignore[arg-type]
    assert not Row(value=110.0, **rate).ok  # type: ignore[arg-type]


def test_cache_suite_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ENTRIES", 20)
    monkeypatch.setattr(processes, "_RUNS", 1)

    assert [row.unit for row in processes.cache()] == ["s", "s", "ms"]


def test_a_measured_process_that_fails_says_why() -> None:
    with pytest.raises(WrongResult, match="ZeroDivisionError"):
        protocol.python("1 / 0")


def test_prewarm_suite_is_legal() -> None:
    from jitgen.bench.compiles import PREWARMED

    assert len(set(PREWARMED)) == 24
    assert all(check(config, "sm_90a") for config in PREWARMED)
