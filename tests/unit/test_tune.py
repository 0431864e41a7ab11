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
from jitgen.cache import Store
from jitgen.errors import CacheError, UnsupportedConfig
from jitgen.measure.errors import NoDevice
from jitgen.model import Arch, KernelConfig, Problem
from jitgen.runtime import prewarm as compiling
from jitgen.runtime.key import key
from jitgen.select import device, select, tuned
from jitgen.tune import Report, State, bench, process, tune
from tests.unit.fake_trials import VARIABLE
from tests.unit.tune_stand import LARGE, NAMES, SMALL, TRIALS, Stand, compiled

LIMIT_S = 1.0


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(bench, "TRIALS", TRIALS)
    monkeypatch.setattr(compiling, "prewarm", compiled)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Stand(tmp_path)


def run(*problems: Problem, **options: Any) -> Report:
    return tune(problems or (SMALL,), arch="cpu", time_limit_s=LIMIT_S, **options)


def exclusions() -> dict[int, str]:
    found = tuned.exclusions(Store.open(), Arch.CPU)
    return {NAMES.index(name): reason for name, reason in found.items()}


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class TestRecords:
    """What was measured decides, and is not measured again."""

    def test_the_fastest_wins(self, stand: Stand) -> None:
        stand.script(us_2=40.0, us_3=60.0)
        report = run()
        (row,) = report.rows
        choice = select(SMALL, "cpu")

        assert report.ok
        assert (row.state, row.by_model, row.ahead) == (State.MEASURED, NAMES[0], 0.25)
        assert stand.calls == [
            "open 16",
            *[f"prove {i}" for i in range(4)],
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

        assert [row.state for row in report.rows] == [State.RECORDED, State.MEASURED]
        assert [call for call in stand.calls if "open" in call] == ["open 128"]
        stand.script()
        assert run(SMALL, LARGE).ok
        assert not stand.processes

    def test_unless_asked_to_again(self, stand: Stand) -> None:
        run()
        stand.script(us_1=1.0)
        report = run(again=True)

        assert report.rows[0].state is State.MEASURED
        assert select(SMALL, "cpu").config.name("cpu") == NAMES[1]

    def test_a_run_that_is_broken_off_goes_on(self, stand: Stand) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(SMALL, LARGE, on_progress=interrupt)
        (worker,) = stand.processes
        assert not is_alive(worker)
        stand.script()

        assert [row.state for row in run(SMALL, LARGE).rows] == [State.RECORDED, State.MEASURED]

    def test_progress(self, stand: Stand) -> None:
        seen: list[tuple[Problem, int, int]] = []
        run(
            SMALL,
            LARGE,
            on_progress=lambda row, done, total: seen.append((row.problem, done, total)),
        )

        assert seen == [(SMALL, 1, 2), (LARGE, 2, 2)]

    def test_launches_are_chosen_anew(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatch = SimpleNamespace(memo={"launch": 1})
        monkeypatch.setitem(sys.modules, "jitgen.ops.dispatch", dispatch)
        run()

        assert not dispatch.memo


class TestFailures:
    """A kernel that is no good is excluded and remembered."""

    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            ("hang", "it did not end within 1 s"),
            ("die", "its process was killed by SIGSEGV"),
            ("leave", "its process exited with status 3: no more memory"),
            ("wrong", "its result is wrong by 1 of the largest value"),
            ("raise", "ValueError: an odd value"),
        ],
    )
    @pytest.mark.parametrize("method", ["prove", "time"])
    def test_it_is_excluded(self, stand: Stand, method: str, action: str, reason: str) -> None:
        stand.script(**{f"{method}_0": action, "us_1": 70.0, "us_3": 40.0})
        (row,) = run().rows
        choice = select(SMALL, "cpu")

        assert row.state is State.MEASURED
        assert row.record is not None
        assert row.record.excluded == {NAMES[0]: reason}
        assert list(row.record.times_us.values()) == [70.0, 50.0, 40.0]
        assert exclusions() == {0: reason}
        assert choice.config.name("cpu") == NAMES[3]
        assert list(choice.excluded.values()) == [reason]
        assert not any(is_alive(process) for process in stand.processes)

    def test_it_is_not_tried_for_other_problems(self, stand: Stand) -> None:
        stand.script(prove_0="wrong")
        report = run(SMALL, LARGE)
        place = stand.calls.index("open 128")

        assert "prove 0" in stand.calls[:place]
        assert "prove 0" not in stand.calls[place:]
        assert [list(row.record.excluded) for row in report.rows if row.record] == [[NAMES[0]]] * 2
        stand.script()
        assert run(SMALL, LARGE).ok
        assert not stand.calls

    def test_it_is_not_chosen_for_any(self, stand: Stand) -> None:
        stand.script(prove_0="wrong")
        run()
        other = replace(SMALL, n=128)

        assert select(other, "cpu", use_measured=False).config.name("cpu") == NAMES[0]
        assert select(other, "cpu").config.name("cpu") != NAMES[0]

    def test_it_is_tried_again_when_asked(self, stand: Stand) -> None:
        stand.script(prove_0="wrong")
        run()
        stand.script()
        (row,) = run(again=True).rows

        assert row.record is not None
        assert len(row.record.times_us) == 4
        assert exclusions() == {}
        assert not select(SMALL, "cpu").excluded

    def test_after_a_failure_comes_a_new_process(self, stand: Stand) -> None:
        """One that saw an illegal access fails whatever runs in it."""
        stand.script(prove_1="raise")
        run()

        assert len(stand.processes) == 2
        assert stand.calls[:5] == ["open 16", "prove 0", "prove 1", "open 16", "prove 2"]

    def test_a_lost_device_is_no_kernels_fault(self, stand: Stand) -> None:
        """Where nothing works after a failure, nobody is excluded."""
        stand.script(prove_2="die", prove_3="die", time="die")
        report = run()
        (row,) = report.rows

        assert not report.ok
        assert row.state is State.FAILED
        assert row.record is None
        assert "no kernel works" in row.error
        assert exclusions() == {}
        assert tuned.all_recorded(Store.open(), Arch.CPU) == []
        assert select(SMALL, "cpu").source == "model"

    def test_what_fails_only_together_blames_nobody(self, stand: Stand) -> None:
        stand.script(time_together="die")
        (row,) = run().rows

        assert row.state is State.FAILED
        assert "each alone did not: its process was killed by SIGSEGV" in row.error
        assert exclusions() == {}

    def test_operands_that_cannot_be_made(self, stand: Stand) -> None:
        """The next problem is measured all the same."""
        stand.script(open_128="raise")
        report = run(SMALL, LARGE, replace(SMALL, m=32))

        states = [row.state for row in report.rows]
        assert states == [State.MEASURED, State.MEASURED, State.FAILED]
        assert report.rows[-1].error == "its operands cannot be made: ValueError: an odd value"
        assert exclusions() == {}

    def test_kernels_that_are_not_here(self, stand: Stand) -> None:
        """They are neither measured nor excluded, and a later run tries them."""
        stand.script(prove_0="miss")
        (row,) = run().rows

        assert row.state is State.MEASURED
        assert list(row.missing) == [NAMES[0]]
        assert row.ahead is None
        assert exclusions() == {}
        stand.script()
        (row,) = run().rows
        assert row.state is State.MEASURED
        assert not row.missing

    def test_kernels_that_refuse_a_problem(self, stand: Stand) -> None:
        """They are good for others."""
        stand.script(prove_0="refuse")
        (row,) = run().rows

        assert row.record is not None
        assert row.record.excluded == {NAMES[0]: "b: must have at most 4 groups"}
        assert exclusions() == {}
        assert select(SMALL, "cpu").excluded
        assert not select(LARGE, "cpu").excluded

    def test_a_process_that_cannot_be_ended(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The driver may wait for a kernel that hangs, whatever signal its process gets."""
        stand.script(prove_1="hang")
        monkeypatch.setattr(process, "_KILL_S", 0.1)
        monkeypatch.setattr(process, "_GOODBYE_S", 0.1)
        monkeypatch.setattr(process.os, "killpg", lambda *_: None)
        worker = process.Worker(bench.TRIALS, {})
        with pytest.raises(process.Stuck, match="the GPU has to be reset"), worker:
            worker.ask("prove", NAMES[1], timeout_s=0.5)

        monkeypatch.undo()
        worker._process.kill()
        worker._process.wait()

    def test_stuck_kernels_are_excluded(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At once, for the next run would hang as well."""

        def failure(self: object, method: str, name: str) -> None:
            error = process.Stuck("process 1 hangs in the driver")
            error.kernel = name
            raise error

        monkeypatch.setattr(bench.Bench, "_failure", failure)
        with pytest.raises(process.Stuck):
            run()

        assert exclusions() == {0: "it hung, and could not be ended"}


class TestCompiling:
    """What is not compiled cannot be measured."""

    def rows(self, state: compiling.State, error: str = "") -> Callable[..., compiling.Report]:
        def prewarm(configs: list[KernelConfig], **options: Any) -> compiling.Report:
            report = compiled(configs, **options)
            first = replace(report.rows[0], state=state, error=error)
            return replace(report, rows=(first, *report.rows[1:]))

        return prewarm

    def test_compiling_is_off(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[bool] = []
        would = self.rows(compiling.State.WOULD_COMPILE)
        monkeypatch.setattr(
            compiling, "prewarm", lambda *a, **o: (seen.append(o["dry_run"]), would(*a, **o))[1]
        )
        with settings.scope(on_miss="error"):
            (row,) = run().rows

        assert seen == [True]
        assert row.missing == {NAMES[0]: "not compiled, and compiling is off"}
        assert "prove 0" not in stand.calls

    def test_the_compiler_refuses(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        config = select(SMALL, "cpu", use_measured=False).config
        Store.open().index.remember_failure(key(config, Arch.CPU), NAMES[0], "no registers", 60)
        failed = self.rows(compiling.State.FAILED, "no\nregisters")
        monkeypatch.setattr(compiling, "prewarm", failed)
        (row,) = run().rows

        assert row.record is not None
        assert row.record.excluded == {NAMES[0]: "did not compile: no registers"}
        assert not row.missing
        assert exclusions() == {}

    def test_the_compiler_does_not_get_to_it(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = self.rows(compiling.State.FAILED, "the time limit was reached")
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
    stand.script(prove_0="hang")
    script = (
        "from jitgen.tune import bench, tune\n"
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
        while "prove 0" not in stand.calls and time.monotonic() < deadline:
            time.sleep(0.05)
        (worker,) = stand.processes
        assert is_alive(worker)
        parent.kill()
    deadline = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not is_alive(worker)
