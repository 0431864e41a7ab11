# SPDX-License-Identifier: Apache-2.0
"""Tuning: what is measured, what is kept, and what a kernel that fails, hangs or lies costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen import settings
from jitgen.autotune import TuningState, tune
from jitgen.autotune.measure.errors import NoDevice
from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.errors import CacheError, UnsupportedConfig
from jitgen.plans import prewarm as compiling
from jitgen.runtime.session import current, select
from jitgen.runtime.spec import key
from jitgen.selection import device
from tests.unit.tune_stand import (
    LARGE,
    NAMES,
    SMALL,
    Stand,
    compiled,
    exclusions,
    is_alive,
    run,
    set_up,
)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return set_up(tmp_path, monkeypatch)


class TestRecords:
    """What was measured decides, and is not measured again."""

    def test_the_fastest_wins(self, stand: Stand) -> None:
        stand.script(us_2=40.0, us_3=60.0)
        report = run()
        (row,) = report.rows
        choice = select(SMALL, "cpu")

        assert report.ok
        assert (row.state, row.by_model, row.ahead) == (TuningState.MEASURED, NAMES[0], 0.25)
        assert stand.calls == [
            "open 16",
            *[f"verify {i}" for i in range(4)],
            "time together",
            *[f"time {i}" for i in range(4)],
        ]
        assert len(stand.processes) == 1
        assert choice.source == "tuned"
        assert choice.config.name("cpu") == NAMES[2]
        assert [choice.times_us[c.config] for c in choice.candidates] == [40.0, 50.0, 50.0, 60.0]
        assert report.device == device.cpu_name()

    def test_a_bucket_is_measured_once(self, stand: Stand) -> None:
        report = run(LARGE, SMALL, replace(SMALL, m=15))

        assert [row.problem for row in report.rows] == [SMALL, LARGE]
        assert [call for call in stand.calls if "open" in call] == ["open 16", "open 128"]
        assert len(stand.processes) == 1

    def test_what_is_recorded_is_left_alone(self, stand: Stand) -> None:
        run()
        stand.script()
        report = run(SMALL, LARGE)

        assert [row.state for row in report.rows] == [TuningState.RECORDED, TuningState.MEASURED]
        assert [call for call in stand.calls if "open" in call] == ["open 128"]
        stand.script()
        assert run(SMALL, LARGE).ok
        assert not stand.processes

    def test_unless_asked_to_again(self, stand: Stand) -> None:
        run()
        stand.script(us_1=1.0)
        report = run(again=True)

        assert report.rows[0].state is TuningState.MEASURED
        assert select(SMALL, "cpu").config.name("cpu") == NAMES[1]

    def test_a_run_that_is_broken_off_goes_on(self, stand: Stand) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(SMALL, LARGE, on_progress=interrupt)
        (worker,) = stand.processes
        assert not is_alive(worker)
        stand.script()

        assert [row.state for row in run(SMALL, LARGE).rows] == [
            TuningState.RECORDED,
            TuningState.MEASURED,
        ]

    def test_progress(self, stand: Stand) -> None:
        seen: list[tuple[GroupedGemmProblem, int, int]] = []
        run(
            SMALL,
            LARGE,
            on_progress=lambda row, done, total: seen.append((row.problem, done, total)),
        )

        assert seen == [(SMALL, 1, 2), (LARGE, 2, 2)]

    def test_launches_are_chosen_anew(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(current.get().memo, ("key",), SimpleNamespace())
        run()

        assert not current.get().memo


class TestCompiling:
    """What is not compiled cannot be measured."""

    def rows(
        self, state: compiling.PrewarmState, error: str = ""
    ) -> Callable[..., compiling.PrewarmReport]:
        def prewarm(configs: list[GroupedGemmConfig], **options: Any) -> compiling.PrewarmReport:
            report = compiled(configs, **options)
            first = replace(report.rows[0], state=state, error=error)
            return replace(report, rows=(first, *report.rows[1:]))

        return prewarm

    def test_compiling_is_off(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[bool] = []
        would = self.rows(compiling.PrewarmState.WOULD_COMPILE)
        monkeypatch.setattr(
            compiling, "prewarm", lambda *a, **o: (seen.append(o["dry_run"]), would(*a, **o))[1]
        )
        with settings.scope(on_miss="error"):
            (row,) = run().rows

        assert seen == [True]
        assert row.missing == {NAMES[0]: "not compiled, and compiling is off"}
        assert "verify 0" not in stand.calls

    def test_the_compiler_refuses(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        config = select(SMALL, "cpu", use_measured=False).config
        Store.open().index.remember_failure(key(config, Arch.CPU), NAMES[0], "no registers", 60)
        failed = self.rows(compiling.PrewarmState.FAILED, "no\nregisters")
        monkeypatch.setattr(compiling, "prewarm", failed)
        (row,) = run().rows

        assert row.record is not None
        assert row.record.excluded == {NAMES[0]: "did not compile: no registers"}
        assert not row.missing
        assert exclusions() == {}

    def test_the_compiler_does_not_get_to_it(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = self.rows(compiling.PrewarmState.FAILED, "the time limit was reached")
        monkeypatch.setattr(compiling, "prewarm", failed)
        (row,) = run().rows

        assert row.missing == {NAMES[0]: "did not compile: the time limit was reached"}
        assert row.record is not None
        assert not row.record.excluded


class TestPreconditions:
    """Told before anything is done."""

    def test_the_cache_must_be_writable(self, stand: Stand) -> None:
        with pytest.raises(CacheError, match="JITGEN_CACHE=ro"):
            run(store=Store.open(mode="ro"))

    def test_a_gpu_must_be_here(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "")
        with pytest.raises(NoDevice, match="tuning for sm_90a needs such a GPU"):
            tune([SMALL], arch="sm_90a")

    def test_types_must_have_a_kernel(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "NVIDIA H200")
        with pytest.raises(UnsupportedConfig, match="no kernel"):
            tune([replace(SMALL, a_dtype="f32")], arch="sm_90a")

    def test_nothing_asked_for(self, stand: Stand) -> None:
        report = tune([], arch="cpu")

        assert report.ok
        assert report.rows == ()


def test_a_worker_ends_with_its_parent(stand: Stand) -> None:
    """Even one whose kernel hangs: else it would keep the GPU."""
    stand.script(verify_0="hang")
    script = (
        "from jitgen.autotune import bench, tune\n"
        "from jitgen.runtime import prewarm\n"
        "from tests.unit.tune_stand import SMALL, TRIALS, compiled\n"
        "prewarm.prewarm = compiled\n"
        "bench.TRIALS = TRIALS\n"
        "tune([SMALL], arch='cpu')\n"
    )
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        deadline = time.monotonic() + 30
        while "verify 0" not in stand.calls and time.monotonic() < deadline:
            time.sleep(0.05)
        (worker,) = stand.processes
        assert is_alive(worker)
        parent.kill()
    deadline = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not is_alive(worker)
