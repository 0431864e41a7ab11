# SPDX-License-Identifier: Apache-2.0
"""Prewarming: what is compiled, what is left alone, and what a failure costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.cache import Store
from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import ConfigError, PlanError, UnsupportedConfig
from jitgen.plans import prewarm as module
from jitgen.plans.prewarm import PrewarmRow, PrewarmState, prewarm


def config(rows: int = 8) -> GroupedGemmConfig:
    return GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=rows, n=32, k=128))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What compile processes were asked for, which all fail in their own way."""
    kinds = [OutcomeKind.ERROR, OutcomeKind.TIMEOUT, OutcomeKind.CRASH]
    requests: list[dict[str, Any]] = []

    def run(
        function: str, tasks: Sequence[Any], *, jobs: int, timeout_s: float, preload: object
    ) -> Iterator[Outcome]:
        requests.append({"function": function, "jobs": jobs, "timeout_s": timeout_s})
        # As processes do, the last one ends first.
        for index in reversed(range(len(tasks))):
            kind = kinds[index % 3]
            yield Outcome(
                task=tasks[index], index=index, kind=kind, error=f"{kind}!", seconds=index
            )

    monkeypatch.setattr(workers, "run", run)
    return requests


def test_a_dry_run_compiles_nothing(asked: list[dict[str, Any]], cache_root: Path) -> None:
    report = prewarm("deepseek-v3", arch="sm_90a", dry_run=True)
    names = [c.name("sm_90a") for c in plans.configs(plans.load("deepseek-v3"), "sm_90a")]

    assert [row.name for row in report.rows] == names
    assert report.count("would compile") == len(names)
    assert not report.ok
    assert (report.jobs, asked) == (0, [])
    assert not cache_root.exists()


def test_failures_cost_their_config_only(asked: list[dict[str, Any]]) -> None:
    seen: list[tuple[PrewarmRow, int, int]] = []
    report = prewarm(
        [config(8), config(16), config(32)],
        arch="cpu",
        jobs=2,
        timeout_s=7,
        on_progress=lambda *progress: seen.append(progress),
    )

    assert [row.config.tile.m for row in report.rows] == [8, 16, 32]
    late = "timeout!: raise JITGEN_COMPILE_TIMEOUT, or take fewer jobs"
    assert [row.error for row in report.rows] == ["error!", late, "crash!"]
    assert {row.state for row in report.rows} == {PrewarmState.FAILED}
    assert [(row.config.tile.m, done, total) for row, done, total in seen] == [
        (32, 1, 3),
        (16, 2, 3),
        (8, 3, 3),
    ]
    assert asked == [{"function": module.TASK, "jobs": 2, "timeout_s": 7}]


def test_no_more_processes_than_kernels(asked: list[dict[str, Any]]) -> None:
    assert prewarm([config(), config()], arch="cpu", jobs=9).jobs == 1
    assert asked[0]["jobs"] == 1


def test_settings_fill_in(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_JOBS", "3")
    monkeypatch.setenv("JITGEN_COMPILE_TIMEOUT", "11")
    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    report = prewarm([config(8), config(16), config(32), config(64)])

    assert report.arch == "cpu"
    assert asked == [{"function": module.TASK, "jobs": 3, "timeout_s": 11}]


def test_mistakes_are_told_before_anything_is_compiled(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(UnsupportedConfig, match="E_TILE_M"):
        prewarm([config(8), config(5)], arch="cpu")
    with pytest.raises(PlanError, match="no plan 'none'"):
        prewarm("none", arch="cpu")
    with pytest.raises(ConfigError, match=r"takes a plan or configs \(got int\)"):
        prewarm([3], arch="cpu")  # type: ignore[list-item]
    assert not asked


def test_nothing_asked_for_is_done_at_once(asked: list[dict[str, Any]]) -> None:
    report = prewarm([], arch="cpu")

    assert report.ok
    assert report.rows == ()
    assert not asked


def test_a_compile_without_an_entry_has_failed(
    monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    """A worker that could not publish says nothing: the store is asked."""

    def run(function: str, tasks: Sequence[Any], **_: Any) -> Iterator[Outcome]:
        yield Outcome(task=tasks[0], index=0, kind=OutcomeKind.OK, result={"key": "0" * 64})

    monkeypatch.setattr(workers, "run", run)
    (row,) = prewarm([config()], arch="cpu", store=Store.open(cache_root, mode="ro")).rows

    assert row.state is PrewarmState.FAILED
    assert "cannot be written (mode ro)" in row.error
