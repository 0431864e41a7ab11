# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while a neighbour serves, and how it ends: kills, failures, exits, forks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.cache.folder import Folder
from jitgen.compile import isolated
from jitgen.events import Event, EventKind
from jitgen.runtime.session import current
from jitgen.runtime.spec import key
from jitgen.support import failing
from tests.compile.fallback_calls import (
    FEW,
    MANY,
    NEIGHBOUR,
    WANTED,
    await_true,
    call,
    children,
    serving,
    settle,
    worker,
)


class TestTrouble:
    @pytest.fixture(autouse=True)
    def no_second_try(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is tried again some seconds later is tried after these tests."""
        monkeypatch.setattr(failing, "RETRY_FIRST_S", 60.0)

    def check_stays(self, caplog: pytest.LogCaptureFixture, reason: str) -> None:
        """Assert that the neighbour keeps serving, and that the reason was told once."""
        settle()
        call(MANY)
        call(MANY - 1)
        settle()

        assert serving() == {NEIGHBOUR}
        assert caplog.text.count("could not be compiled in the background") == 1
        assert reason in caplog.text

    def test_a_worker_that_is_killed(
        self, fallback_root: Path, patient: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The compile process dies: the neighbour keeps serving, with one warning."""
        call(MANY)
        os.kill(worker(patient), signal.SIGKILL)

        self.check_stays(caplog, "was killed by SIGKILL")

    def test_a_worker_that_is_killed_is_tried_again(
        self, fallback_root: Path, patient: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A signal says nothing about the kernel: it used to mean a day with the neighbour."""
        monkeypatch.setattr(failing, "RETRY_FIRST_S", 0.1)
        call(MANY)
        os.kill(worker(patient), signal.SIGKILL)
        patient.touch()
        await_true(lambda: not current.get().loader.background._pending)
        call(MANY)

        assert serving() == {WANTED}
        assert not Store.open(fallback_root).index.failures()

    def test_the_process_that_starts_workers_is_killed(
        self, fallback_root: Path, patient: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Not the process that multiprocessing may have started for other tests."""
        before = children(os.getpid())
        call(MANY)
        worker(patient)
        for server in {*children(os.getpid())} - {*before}:
            os.kill(server, signal.SIGKILL)

        self.check_stays(caplog, "signal 9")

    def test_a_compile_that_takes_too_long(
        self,
        fallback_root: Path,
        patient: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setenv("JITGEN_COMPILE_TIMEOUT", "0.1")
        call(MANY)

        self.check_stays(caplog, "the time limit was reached")

    def test_a_compile_that_failed_before(
        self,
        fallback_root: Path,
        heard: list[Event],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """What the cache remembers is not tried again: no process is started."""
        name = key(WANTED, jitgen.Arch.CPU)
        current.get().store.index.remember_failure(name, "it", "the compiler said no", 60)
        monkeypatch.setattr(sys, "executable", "/nowhere")
        call(MANY)

        self.check_stays(caplog, "the compiler said no")
        errors = [event for event in heard if event.kind == EventKind.ERROR]
        assert [(event.key, event.detail) for event in errors] == [(name, "the compiler said no")]

    def test_a_compile_that_fails(
        self,
        fallback_root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The compiler refuses it in the worker: that is remembered for every process."""
        (tmp_path / "refusing_tasks.py").write_text(
            "from jitgen.errors import CompileError\n"
            "from jitgen.compile import isolated\n"
            "def refuse(source, *_, **__):\n"
            "    raise CompileError(source.name, 'the compiler said no')\n"
            "def build(asked):\n"
            "    isolated.compile_source = refuse\n"
            "    return isolated.compile_task(asked)\n",
            encoding="utf-8",
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(isolated, "TASK", "refusing_tasks:build")
        call(MANY)

        self.check_stays(caplog, "the compiler said no")
        failure = Store.open(fallback_root).index.failure(key(WANTED, jitgen.Arch.CPU))
        assert failure is not None
        assert failure.reason == "the compiler said no"

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("mode", ["ro", "off"])
    def test_a_cache_that_is_not_written(
        self, fallback_root: Path, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        """The switch needs no cache: the worker's result comes through a private folder."""
        monkeypatch.setenv("JITGEN_CACHE", mode)
        call(FEW)
        call(MANY)
        assert serving() == {NEIGHBOUR}
        settle()
        call(MANY)

        assert serving() == {NEIGHBOUR, WANTED}
        assert len(list(fallback_root.rglob("kernel.so"))) == 1

    def test_a_cache_that_cannot_be_written(
        self,
        fallback_root: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its result cannot be published: it serves this process then."""
        call(FEW)

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Folder, "write", full)
        call(MANY)
        settle()
        call(MANY)

        assert serving() == {NEIGHBOUR, WANTED}
        assert "background" not in caplog.text
        assert len(list(fallback_root.rglob("kernel.so"))) == 1


ENDING = """
import atexit, os, sys, time
from jitgen.compile import isolated
from jitgen.runtime import background
from tests.compile import fallback_calls as t
background._JOIN_S = 40.0  # what ends sooner did not wait for it in vain
end = []
atexit.register(lambda: print(time.monotonic() - end[0], flush=True))
t.call(t.MANY)
assert t.serving() == {t.NEIGHBOUR}
print(t.worker(gate), *t.children(os.getpid()), flush=True)
end.append(time.monotonic())
"""


class TestEnding:
    def test_exit_while_a_worker_compiles(self, fallback_root: Path, patient: Path) -> None:
        """The program ends at once, and takes its processes along."""
        code = f"import sys; sys.path.insert(0, {str(patient.parent)!r})\n{ENDING}".replace(
            "end = []",
            "from pathlib import Path; isolated.TASK = 'patient_tasks:build'; "
            f"gate = Path({str(patient)!r}); end = []",
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        pids, seconds = done.stdout.splitlines()

        assert float(seconds) < 20
        assert len(pids.split()) == 2
        await_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.split()), 5.0)
        assert not done.stderr

    def test_a_fork_starts_anew(self, fallback_root: Path, patient: Path) -> None:
        """A child awaits nothing of its parent's, and its end does not disturb the parent's."""
        call(MANY)
        worker(patient)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert serving() == set()
                call(MANY)
                current.get().loader.background.close()
                code = 0
            finally:
                os._exit(code)

        assert os.waitpid(child, 0)[1] == 0
        patient.touch()
        settle()
        call(MANY)
        assert serving() == {WANTED}

    def test_a_forked_child_switches_too(
        self, fallback_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The neighbour was remembered before the fork; the child has a worker of its own."""
        monkeypatch.setattr(failing, "RETRY_FIRST_S", 60.0)
        with jitgen.settings.scope(compile_timeout=0):
            call(MANY)
            settle()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                current.get().loader.background._backoff = failing.Backoff()
                call(MANY)
                settle()
                call(MANY)
                code = 0 if serving() == {WANTED} else 2
            finally:
                os._exit(code)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert serving() == {NEIGHBOUR}

    def test_reset_ends_the_worker(self, fallback_root: Path, patient: Path) -> None:
        before = children(os.getpid())
        call(MANY)
        worker(patient)
        pids = {*children(os.getpid())} - {*before}
        current.get().reset()

        assert pids
        assert not pids & {*children(os.getpid())}
        call(FEW)
        assert serving() == {NEIGHBOUR}
