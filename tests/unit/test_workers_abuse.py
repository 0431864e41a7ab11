# SPDX-License-Identifier: Apache-2.0
"""Compile processes under abuse: hostile folders, helpers that hang, tasks that hide."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitgen.autotune.process import Worker
from jitgen.compile import workers
from jitgen.compile.workers import OutcomeKind
from tests.unit.test_workers import await_true, is_alive

REPOSITORY = Path(__file__).parents[2]
HOSTILE = "import os\nopen(os.environ['MARK'], 'a').write(__name__ + '\\n')\nraise SystemExit(1)\n"
SHADOWED = ("json", "socket", "select", "ctypes", "tempfile", "faulthandler", "tvm_ffi", "cutlass")
TASKS = """
import os, signal, subprocess, sys, time

def double(task):
    return task * 2

def stop_server(path):
    with open(path, "w") as file:
        file.write(str(os.getppid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(60)

def hide(path):
    '''Start a process of its own session, which starts one more; tell their ids; end.'''
    subprocess.Popen(
        [sys.executable, "-c", "import os, subprocess, sys, time\\n"
         "inner = subprocess.Popen(['sleep', '60'], start_new_session=True)\\n"
         "open(sys.argv[1] + '.part', 'w').write(f'{os.getpid()} {inner.pid}')\\n"
         "os.rename(sys.argv[1] + '.part', sys.argv[1])\\n"
         "time.sleep(60)", path],
        start_new_session=True,
    )
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()

def hide_and_wait(path):
    hide(path)
    time.sleep(60)

def hide_and_stop_server(path):
    hide(path)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(60)
"""


class Trials:
    """What the process of a measurement serves here."""

    def double(self, number: int) -> int:
        return number * 2


@pytest.fixture(autouse=True)
def tasks_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "abuse_tasks.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")


class TestWorkingFolder:
    """A module in the working folder used to run in every compile and tuning process."""

    @pytest.fixture
    def mark(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A working folder full of modules that leave a mark when they are imported."""
        folder = tmp_path / "hostile"
        folder.mkdir()
        for name in SHADOWED:
            (folder / f"{name}.py").write_text(HOSTILE, encoding="utf-8")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MARK", str(tmp_path / "mark"))
        monkeypatch.setattr(sys, "path", ["", ".", *sys.path])  # as in a REPL
        return tmp_path / "mark"

    def test_compile_processes(self, mark: Path) -> None:
        (outcome,) = workers.run("abuse_tasks:double", [4], jobs=1, timeout_s=60)

        assert outcome.result == 8
        assert not mark.exists()

    def test_measuring_processes(self, mark: Path) -> None:
        with Worker("tests.unit.test_workers_abuse:Trials", {}) as worker:
            assert worker.ask("double", 4, timeout_s=60) == 8

        assert not mark.exists()

    def test_a_checkout_as_working_folder_still_works(self, tmp_path: Path) -> None:
        """``python -c`` finds jitgen in the working folder; so do its compile processes."""
        code = (
            "import sys; sys.path = ['', *(p for p in sys.path if 'site' in p or 'lib' in p)]\n"
            "from jitgen.compile import workers\n"
            "print(workers.__file__)\n"
            "TASK = 'jitgen.support.text:printable'\n"
            "run = workers.run(TASK, ['ok'], jobs=1, timeout_s=60, preload=())\n"
            "print([o.result for o in run])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )

        assert done.stdout.splitlines()[-1] == "['ok']"


class TestHangs:
    def test_a_server_that_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the server enforced the time limit: where it hung, the client waited for ever."""
        monkeypatch.setattr(workers, "_SILENCE_S", 2)
        path = tmp_path / "server"
        start = time.monotonic()
        outcomes = list(
            workers.run(
                "abuse_tasks:stop_server", [str(path), str(path)], jobs=1, timeout_s=1, preload=()
            )
        )

        assert time.monotonic() - start < 10
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.CRASH] * 2
        assert "did not answer and was killed" in (outcomes[0].error or "")
        assert await_true(lambda: not is_alive(int(path.read_text())))

    def test_what_hides_below_a_server_that_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who killed the server left alive what its tasks had started in sessions of their own."""
        monkeypatch.setattr(workers, "_SILENCE_S", 2)
        path = tmp_path / "hidden"
        task = "abuse_tasks:hide_and_stop_server"
        list(workers.run(task, [str(path)], jobs=1, timeout_s=60, preload=()))

        hidden = [int(word) for word in path.read_text().split()]
        assert len(hidden) == 2
        assert await_true(lambda: not any(map(is_alive, hidden)))

    def test_a_preload_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Importing early had no limit at all."""
        monkeypatch.setattr(workers, "_START_S", 1.0)
        (tmp_path / "modules" / "slow_module.py").write_text("import time\ntime.sleep(60)\n")
        start = time.monotonic()
        (outcome,) = workers.run(
            "abuse_tasks:double", [4], jobs=1, timeout_s=60, preload=("slow_module",)
        )

        assert time.monotonic() - start < 10
        assert outcome.kind == OutcomeKind.CRASH
        assert "did not answer" in (outcome.error or "")

    @pytest.mark.nightly
    def test_a_task_that_takes_its_time_is_no_hang(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server tells that it lives while a task is silent."""
        monkeypatch.setattr(workers, "_SILENCE_S", 2)
        (tmp_path / "modules" / "quick_beat.py").write_text(
            "from jitgen.compile import worker_server\nworker_server._HEARTBEAT_S = 0.5\n"
        )
        (outcome,) = workers.run("time:sleep", [4], jobs=1, timeout_s=60, preload=("quick_beat",))

        assert outcome.kind is OutcomeKind.OK


class TestHiding:
    """A process that left its task's process group used to survive it."""

    def pids(self, path: Path) -> list[int]:
        assert await_true(path.exists)
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]

    @pytest.mark.parametrize(("name", "timeout_s"), [("hide", 60.0), ("hide_and_wait", 1.0)])
    def test_it_ends_with_its_task(self, tmp_path: Path, name: str, timeout_s: float) -> None:
        path = tmp_path / "pids"
        list(
            workers.run(f"abuse_tasks:{name}", [str(path)], jobs=1, timeout_s=timeout_s, preload=())
        )

        assert await_true(lambda: not any(map(is_alive, self.pids(path))))

    def test_it_ends_with_the_client(self, tmp_path: Path) -> None:
        path = tmp_path / "pids"
        code = (
            "from jitgen.compile import workers\n"
            f"list(workers.run('abuse_tasks:hide_and_wait', [{str(path)!r}], jobs=1, timeout_s=60,"
            " preload=()))\n"
        )
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tmp_path / 'modules'}{os.pathsep}{REPOSITORY}",
        }
        client = subprocess.Popen([sys.executable, "-c", code], env=environment)
        running = self.pids(path)
        client.send_signal(signal.SIGKILL)
        client.wait()

        assert await_true(lambda: not any(map(is_alive, running)))


class TestScarcity:
    def test_no_fork(self, tmp_path: Path) -> None:
        """A server that cannot fork answers for the task; it used to die with all of them."""
        (tmp_path / "modules" / "no_forks.py").write_text(
            "import errno, os\n"
            "real, calls = os.fork, []\n"
            "def fork():\n"
            "    calls.append(1)\n"
            "    if len(calls) == 1:\n"
            "        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
            "    return real()\n"
            "os.fork = fork\n"
        )
        outcomes = list(
            workers.run("abuse_tasks:double", [1, 2], jobs=1, timeout_s=60, preload=("no_forks",))
        )

        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.CRASH, OutcomeKind.OK]
        assert os.strerror(errno.EAGAIN) in (outcomes[0].error or "")
