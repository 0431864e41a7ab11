# SPDX-License-Identifier: Apache-2.0
"""Compile processes, without the compiler: isolation, time limits, crashes, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jitgen.compile import capacity, workers
from jitgen.compile.workers import Outcome, OutcomeKind

TASKS = '''
import os, signal, subprocess, sys, time

notes = []

def note(tasks):
    notes.append([*tasks])

def noted(task):
    return notes

def double(task):
    return task * 2

def environment(task):
    return {name: os.environ.get(name) for name in task}

def can_import(task):
    try:
        __import__(task)
    except ImportError:
        return False
    return True

def is_loaded(task):
    return task in sys.modules

def num_threads(task):
    return len(os.listdir("/proc/self/task"))

def fail(task):
    raise ValueError(task)

def leave(task):
    sys.exit(task)

def unanswerable(task):
    return object()

def by_name(task):
    print("about to", task, flush=True)
    if task == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "abort":
        os.abort()
    if task == "exit":
        os._exit(3)
    if task == "silent":
        os._exit(0)
    if task == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return task

def linger(path):
    """Start a process of its own, tell both ids, and sleep."""
    helper = subprocess.Popen(["sleep", "60"])
    with open(path + ".part", "w") as file:
        file.write(f"{os.getpid()} {helper.pid}")
    os.rename(path + ".part", path)
    time.sleep(60)

def leave_helper_behind(path):
    helper = subprocess.Popen(["sleep", "60"])
    return helper.pid

def kill_server(task):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def order(task):
    time.sleep(task)
    return os.getpid()

def talk(task):
    os.write(1, b"x" * 200_000 + b"the end")
    os._exit(1)
'''


@pytest.fixture(autouse=True)
def tasks_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of tasks that only `sys.path` makes importable."""
    (tmp_path / "worker_tasks.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def call(name: str, *tasks: object, jobs: int = 2, timeout_s: float = 30.0) -> list[Outcome]:
    """Run one of the functions above, and return its outcomes in the order of the tasks."""
    outcomes = workers.run(
        f"worker_tasks:{name}", tasks, jobs=jobs, timeout_s=timeout_s, preload=()
    )
    return sorted(outcomes, key=lambda outcome: outcome.index)


def is_alive(pid: int) -> bool:
    """Whether process `pid` runs: one that waits to be collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def await_true(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pids(path: Path) -> list[int]:
    assert await_true(path.exists)
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


class TestRun:
    def test_each_task_has_one_outcome(self) -> None:
        outcomes = call("double", 1, "ab", [2], 4.5)

        assert [outcome.task for outcome in outcomes] == [1, "ab", [2], 4.5]
        assert [outcome.result for outcome in outcomes] == [2, "abab", [2, 2], 9.0]
        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.OK}
        assert all(outcome.error is None and outcome.seconds > 0 for outcome in outcomes)

    def test_no_tasks_start_no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere")

        assert call("double") == []

    def test_outcomes_come_as_tasks_end(self) -> None:
        outcomes = workers.run("worker_tasks:order", [0.5, 0.0], jobs=2, timeout_s=30, preload=())

        assert [outcome.index for outcome in outcomes] == [1, 0]

    def test_each_task_has_its_own_process(self) -> None:
        outcomes = call("order", 0, 0, 0, 0, jobs=1)

        assert len({outcome.result for outcome in outcomes}) == 4

    def test_task_must_be_json(self) -> None:
        with pytest.raises(TypeError):
            call("double", object())

    def test_large_task_and_result(self) -> None:
        """Neither a pipe's nor a socket's buffer limits them."""
        (outcome,) = call("double", "x" * 1_000_000)

        assert len(outcome.result) == 2_000_000

    def test_processes_see_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
        names = ["CUDA_VISIBLE_DEVICES", "CUTE_DSL_DISABLE_FILE_CACHING", "CUTE_DSL_LINEINFO"]

        (outcome,) = call("environment", names)

        assert list(outcome.result.values()) == ["", "1", None]

    def test_preload_and_without(self) -> None:
        def result(name: str, module: str) -> object:
            run = workers.run(
                f"worker_tasks:{name}",
                [module],
                jobs=1,
                timeout_s=30,
                preload=("wave", "no_such_module"),
                without=("colorsys",),
            )
            return next(run).result

        assert result("is_loaded", "wave") is True
        assert result("can_import", "colorsys") is False
        assert result("is_loaded", "jitgen.compile.workers") is False

    def test_a_function_is_called_once_with_all_tasks_before_the_first(self) -> None:
        run = workers.run(
            "worker_tasks:noted", [3, 4], jobs=2, timeout_s=30, preload=("worker_tasks:note",)
        )

        assert [outcome.result for outcome in run] == [[[3, 4]], [[3, 4]]]

    def test_a_function_that_fails_in_advance_costs_no_task(self) -> None:
        run = workers.run(
            "worker_tasks:double", [3], jobs=1, timeout_s=30, preload=("worker_tasks:fail",)
        )

        assert [outcome.result for outcome in run] == [6]

    def test_forks_from_a_single_thread(self) -> None:
        (outcome,) = call("num_threads", None)

        assert outcome.result == 1


class TestFailures:
    def test_exception_is_an_error(self) -> None:
        (outcome,) = call("fail", "bad tile")

        assert outcome.kind == OutcomeKind.ERROR
        assert outcome.error == "ValueError: bad tile"
        assert "in fail" in outcome.log

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("leave", "SystemExit: 0"),
            ("unanswerable", "TypeError: Object of type object is not JSON serializable"),
            ("no_such_function", "AttributeError: module 'worker_tasks' has no attribute"),
        ],
    )
    def test_other_ways_to_fail(self, name: str, error: str) -> None:
        (outcome,) = call(name, 0)

        assert outcome.kind == OutcomeKind.ERROR
        assert (outcome.error or "").startswith(error)

    def test_missing_module_is_an_error(self) -> None:
        (outcome,) = workers.run("no_such_module:f", [0], jobs=1, timeout_s=30, preload=())

        assert outcome.error == "ModuleNotFoundError: No module named 'no_such_module'"

    @pytest.mark.parametrize(
        ("how", "error"),
        [
            ("segfault", "the process was killed by SIGSEGV"),
            ("abort", "the process was killed by SIGABRT"),
            ("exit", "the process exited with status 3"),
            ("silent", "the process exited without an answer"),
            ("kill", "the process was killed by SIGKILL: most likely memory ran out"),
        ],
    )
    def test_crash_costs_its_own_task(self, how: str, error: str) -> None:
        crash, other = call("by_name", how, "nothing", jobs=1)

        assert crash.kind == OutcomeKind.CRASH
        assert (crash.error or "").startswith(error)
        assert f"about to {how}" in crash.log
        assert other.result == "nothing"

    def test_crash_shows_where(self) -> None:
        """A crash of native code leaves the Python stack that called it."""
        (outcome,) = call("by_name", "segfault")

        assert "in by_name" in outcome.log

    def test_log_is_the_tail(self) -> None:
        (outcome,) = call("talk", None)

        assert outcome.log.endswith("the end")
        assert len(outcome.log) == 4096

    def test_server_that_dies_costs_what_is_left(self) -> None:
        """Every task gets an outcome even where the helper process itself is killed."""
        outcomes = call("kill_server", 0, 0, 0)

        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.CRASH}
        assert "signal 9" in (outcomes[0].error or "")


class TestEnding:
    def test_timeout_kills_the_task_and_what_it_started(self, tmp_path: Path) -> None:
        path = tmp_path / "pids"
        start = time.monotonic()

        (outcome,) = call("linger", str(path), timeout_s=1.0)

        assert outcome.kind == OutcomeKind.TIMEOUT
        assert 1.0 <= outcome.seconds < 5.0
        assert time.monotonic() - start < 10.0
        assert await_true(lambda: not any(map(is_alive, pids(path))))

    def test_timeout_costs_its_own_task(self) -> None:
        outcomes = call("order", 20, 0, 0, jobs=2, timeout_s=1.0)

        assert [str(outcome.kind) for outcome in outcomes] == ["timeout", "ok", "ok"]

    def test_helper_left_behind_ends_with_its_task(self) -> None:
        (outcome,) = call("leave_helper_behind", "")

        assert await_true(lambda: not is_alive(outcome.result))

    def test_closing_the_iterator_ends_everything(self, tmp_path: Path) -> None:
        path = tmp_path / "pids"
        run = workers.run("worker_tasks:by_name", ["first"], jobs=1, timeout_s=60, preload=())
        next(run)
        run.close()  # type: ignore[attr-defined]
        mixed = workers.run(
            "worker_tasks:linger",
            [str(path), str(tmp_path / "missing" / "pids")],
            jobs=2,
            timeout_s=60,
            preload=(),
        )
        assert next(mixed).kind == OutcomeKind.ERROR
        running = pids(path)
        start = time.monotonic()

        mixed.close()  # type: ignore[attr-defined]

        assert time.monotonic() - start < 15
        assert await_true(lambda: not any(map(is_alive, running)))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_client_that_dies_leaves_no_orphans(self, tmp_path: Path, number: int) -> None:
        """
        A script without a ``__main__`` guard, ended in the middle of its tasks.
        """
        path = tmp_path / "pids"
        script = tmp_path / "script.py"
        script.write_text(
            "import signal\n"
            "from jitgen.compile import workers\n"
            # A shell's background jobs, this test among them, inherit a SIGINT that is ignored.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"run = workers.run('worker_tasks:linger', [{str(path)!r}], jobs=1, timeout_s=60,"
            " preload=())\n"
            "print(list(run))\n",
            encoding="utf-8",
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        client = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL
        )
        running = pids(path)
        assert all(map(is_alive, running))

        client.send_signal(number)

        assert client.wait(10) != 0
        assert await_true(lambda: not any(map(is_alive, running)))

    def test_works_from_a_command_line(self, tmp_path: Path) -> None:
        """``python -c`` and a REPL have no file that could be imported again."""
        code = (
            "from jitgen.compile import workers\n"
            "run = workers.run('worker_tasks:double', [4], jobs=1, timeout_s=60, preload=())\n"
            "print([o.result for o in run])"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        arguments = [[sys.executable, "-c", code], [sys.executable, "-"]]
        for argument in arguments:
            done = subprocess.run(
                argument, input=code, env=environment, capture_output=True, text=True, check=True
            )

            assert done.stdout.strip() == "[8]"


class TestDefaultJobs:
    def test_a_request_is_kept(self) -> None:
        assert capacity.default_jobs(7) == 7

    @pytest.mark.parametrize(
        ("cpu_max", "memory_max", "memory_current", "stat", "jobs"),
        [
            ("max 100000", "max", "0", "", 8),
            ("150000 100000", "max", "0", "", 2),
            ("max 100000", str(4 * 2**30), str(2 * 2**30), "", 3),
            ("max 100000", str(4 * 2**30), str(2 * 2**30), f"inactive_file {2**30}", 5),
            ("max 100000", str(2**30), str(2**30), "", 1),
            (None, None, None, None, 8),
        ],
        ids=["no limit", "cores", "memory", "cached files", "none left", "no group"],
    )
    def test_machine_and_control_group_limit(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cpu_max: str | None,
        memory_max: str | None,
        memory_current: str | None,
        stat: str | None,
        jobs: int,
    ) -> None:
        """8 cores and 64 GiB, in a container that allows less; no file is there without one."""
        files = {
            "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {64 * 2**20} kB\n",
            "/proc/self/cgroup": "1:cpu:/\n0::/a/b\n",
            "/sys/fs/cgroup/a/cpu.max": cpu_max,
            "/sys/fs/cgroup/a/b/memory.max": memory_max,
            "/sys/fs/cgroup/a/b/memory.current": memory_current,
            "/sys/fs/cgroup/a/b/memory.stat": stat,
        }
        monkeypatch.setattr(capacity, "_read", lambda path: files.get(str(path)) or "")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

        assert capacity.default_jobs() == jobs

    def test_here(self) -> None:
        assert 1 <= capacity.default_jobs() <= (os.cpu_count() or 1)
