# SPDX-License-Identifier: Apache-2.0
"""Tuning kernels that fail, hang, lie or are not here: what is excluded, and what is not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.autotune import TuningState, bench, process, tuner
from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.runtime.session import select
from jitgen.selection import measurements as tuned
from tests.unit.tune_stand import LARGE, NAMES, SMALL, Stand, exclusions, is_alive, run, set_up


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return set_up(tmp_path, monkeypatch)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals to a worker process have no effect, as while the driver waits for its kernel."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        return started[-1]

    real = subprocess.Popen
    monkeypatch.setattr(process, "_KILL_S", 0.1)
    monkeypatch.setattr(process, "_GOODBYE_S", 0.1)
    monkeypatch.setattr(process.subprocess, "Popen", popen)
    monkeypatch.setattr(process.os, "killpg", lambda *_: None)
    yield
    for each in started:
        each.kill()
        each.wait()


class TestFailures:
    """A kernel that is no good is excluded and remembered."""

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            ("hang", "it did not end within 1 s"),
            ("die", "its process was killed by SIGSEGV"),
            ("leave", "its process exited with status 3: its last words"),
            ("linger", "its process closed the connection: its last words"),
            ("wrong", "its result is wrong by 1 of the largest value"),
            ("raise", "ValueError: an odd value"),
        ],
    )
    @pytest.mark.parametrize("method", ["verify", "time"])
    def test_it_is_excluded(self, stand: Stand, method: str, action: str, reason: str) -> None:
        stand.script(**{f"{method}_0": action, "us_1": 70.0, "us_3": 40.0})
        (row,) = run().rows
        choice = select(SMALL, "cpu")

        assert row.state is TuningState.MEASURED
        assert row.record is not None
        assert row.record.excluded == {NAMES[0]: reason}
        assert list(row.record.times_us.values()) == [70.0, 50.0, 40.0]
        assert exclusions() == {0: reason}
        assert choice.config.name("cpu") == NAMES[3]
        assert list(choice.excluded.values()) == [reason]
        assert not any(is_alive(process) for process in stand.processes)

    def test_it_is_not_tried_for_other_problems(self, stand: Stand) -> None:
        stand.script(verify_0="wrong")
        report = run(SMALL, LARGE)
        place = stand.calls.index("open 128")

        assert "verify 0" in stand.calls[:place]
        assert "verify 0" not in stand.calls[place:]
        assert [list(row.record.excluded) for row in report.rows if row.record] == [[NAMES[0]]] * 2
        stand.script()
        assert run(SMALL, LARGE).ok
        assert not stand.calls

    def test_it_is_not_chosen_for_any(self, stand: Stand) -> None:
        stand.script(verify_0="wrong")
        run()
        other = replace(SMALL, n=128)

        assert select(other, "cpu", use_measured=False).config.name("cpu") == NAMES[0]
        assert select(other, "cpu").config.name("cpu") != NAMES[0]

    def test_it_is_tried_again_when_asked(self, stand: Stand) -> None:
        stand.script(verify_0="wrong")
        run()
        stand.script()
        (row,) = run(again=True).rows

        assert row.record is not None
        assert len(row.record.times_us) == 4
        assert exclusions() == {}
        assert not select(SMALL, "cpu").excluded

    def test_after_a_failure_comes_a_new_process(self, stand: Stand) -> None:
        """One that saw an illegal access fails whatever runs in it."""
        stand.script(verify_1="raise")
        run()

        assert len(stand.processes) == 2
        assert stand.calls[:5] == ["open 16", "verify 0", "verify 1", "open 16", "verify 2"]

    def test_a_lost_device_is_no_kernels_fault(self, stand: Stand) -> None:
        """Where nothing works after a failure, no kernel is excluded."""
        stand.script(verify_2="die", verify_3="die", time="die")
        report = run()
        (row,) = report.rows

        assert not report.ok
        assert row.state is TuningState.FAILED
        assert row.record is None
        assert "no kernel works" in row.error
        assert exclusions() == {}
        assert tuned.all_recorded(Store.open(), Arch.CPU) == []
        assert select(SMALL, "cpu").source == "model"

    def test_what_fails_only_together_blames_no_kernel(self, stand: Stand) -> None:
        stand.script(time_together="die")
        (row,) = run().rows

        assert row.state is TuningState.FAILED
        assert "each alone did not: its process was killed by SIGSEGV" in row.error
        assert exclusions() == {}

    def test_operands_that_cannot_be_made(self, stand: Stand) -> None:
        """The next problem is measured all the same."""
        stand.script(open_128="raise")
        report = run(SMALL, LARGE, replace(SMALL, m=32))

        states = [row.state for row in report.rows]
        assert states == [TuningState.MEASURED, TuningState.MEASURED, TuningState.FAILED]
        assert report.rows[-1].error == "its operands cannot be made: ValueError: an odd value"
        assert exclusions() == {}

    def test_kernels_that_are_not_here(self, stand: Stand) -> None:
        """They are neither measured nor excluded, and a later run tries them."""
        stand.script(verify_0="miss")
        (row,) = run().rows

        assert row.state is TuningState.MEASURED
        assert list(row.missing) == [NAMES[0]]
        assert row.ahead is None
        assert exclusions() == {}
        stand.script()
        (row,) = run().rows
        assert row.state is TuningState.MEASURED
        assert not row.missing

    @pytest.mark.parametrize(
        ("action", "reason"),
        [
            ("full", "OutOfMemoryError: 7 sets of operands"),
            ("driver", "RuntimeError: CUDA error: out of memory"),
            ("descriptors", "OSError: [Errno 24] Too many open files"),
            ("disk", "there is no room for a copy"),
            ("killed", "its process was killed by SIGKILL"),
            (
                "short",
                "its process exited with status 1: [Errno 12] Cannot allocate memory",
            ),
        ],
    )
    @pytest.mark.parametrize("method", ["verify", "time"])
    def test_what_ran_out_is_no_kernels_fault(
        self, stand: Stand, method: str, action: str, reason: str
    ) -> None:
        """
        A process that the system killed for its memory, and one without descriptors, used to
        exclude the kernel for good.
        """
        stand.script(**{f"{method}_0": action})
        (row,) = run().rows

        assert row.state is TuningState.MEASURED
        assert row.missing == {NAMES[0]: reason}
        assert exclusions() == {}

    def test_nothing_can_be_tried(self, stand: Stand) -> None:
        for name in NAMES:
            tuned.exclude(Store.open(), Arch.CPU, name, "wrong")
        (row,) = run().rows

        assert row.state is TuningState.FAILED
        assert row.error == f"no kernel can be tried; {NAMES[0]}: wrong"
        assert not stand.calls

    def test_a_winner_that_failed_since(self, stand: Stand) -> None:
        """What it won is measured once more, without it."""
        stand.script(us_2=30.0)
        run()
        tuned.exclude(Store.open(), Arch.CPU, NAMES[2], "wrong")
        (row,) = run().rows

        assert row.state is TuningState.MEASURED
        assert row.record is not None
        assert row.record.winner != NAMES[2]

    def test_kernels_that_refuse_a_problem(self, stand: Stand) -> None:
        """They are good for others."""
        stand.script(verify_0="refuse")
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
        stand.script(verify_1="hang")
        monkeypatch.setattr(process, "_KILL_S", 0.1)
        monkeypatch.setattr(process, "_GOODBYE_S", 0.1)
        kills: list[int] = []
        monkeypatch.setattr(process.os, "killpg", lambda pid, _: kills.append(pid))
        worker = process.Worker(bench.TRIALS, {})
        with pytest.raises(process.Stuck, match="the GPU has to be reset"), worker:
            worker.ask("verify", NAMES[1], timeout_s=0.5)

        assert kills == [worker._process.pid], "once is enough to know"
        monkeypatch.undo()
        worker._process.kill()
        worker._process.wait()

    def test_stuck_kernels_are_excluded(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At once, for the next run would hang as well."""

        def failure(self: object, method: str, name: str) -> None:
            error = process.Stuck("process 1 hangs in the driver")
            error.kernels = (name,)
            raise error

        monkeypatch.setattr(bench.Bench, "_failure", failure)
        with pytest.raises(process.Stuck):
            run()

        assert exclusions() == {0: "it hung, and could not be ended"}

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("method", ["time", "verify"])
    def test_a_kernel_that_hangs_for_good_is_excluded(
        self, stand: Stand, unkillable: None, method: str
    ) -> None:
        """The joint timing named no kernel, and the next run met the same hang."""
        stand.script(**{f"{method}_2": "hang"})
        with pytest.raises(process.Stuck):
            run()

        assert exclusions() == {2: tuner.HUNG}
        (row,) = run().rows
        assert row.state is TuningState.MEASURED

    @pytest.mark.parametrize(
        "rest",
        [{"time_together": "hang"}, pytest.param({"time": "hang"}, marks=pytest.mark.nightly)],
    )
    def test_a_hang_that_no_kernel_alone_shows_excludes_none(
        self, stand: Stand, unkillable: None, rest: dict[str, str]
    ) -> None:
        """Together only, or each of them, as on a device that runs nothing any more."""
        stand.script(**rest)
        with pytest.raises(process.Stuck) as stuck:
            run()

        assert exclusions() == {}
        assert all(name in str(stuck.value) for name in NAMES)

    def test_a_refusal_whose_process_does_not_end_names_its_kernel(
        self, stand: Stand, unkillable: None
    ) -> None:
        """Ending it raised the error, and that of the request alone named a kernel."""
        stand.script(verify_1="stay")
        with pytest.raises(process.Stuck):
            run()

        assert exclusions() == {1: tuner.HUNG}
