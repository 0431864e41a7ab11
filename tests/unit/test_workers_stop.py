# SPDX-License-Identifier: Apache-2.0
"""Compile processes that another thread ends, and forks of who started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jitgen.compile import workers
from jitgen.compile.workers import Outcome
from tests.unit.test_workers import TASKS, await_true, is_alive, pids


@pytest.fixture(autouse=True)
def tasks_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of tasks that only `sys.path` makes importable."""
    (tmp_path / "worker_tasks.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_another_thread_can_stop_it(tmp_path: Path) -> None:
    """Tasks that had no time to end have no outcome, and no process is left of them."""
    path = tmp_path / "pids"
    stop, outcomes = workers.Stop(), list[Outcome]()

    def work() -> None:
        tasks = [str(path), "/nowhere/pids"]
        outcomes.extend(
            workers.run("worker_tasks:linger", tasks, jobs=2, timeout_s=60, preload=(), stop=stop)
        )

    thread = threading.Thread(target=work)
    thread.start()
    running = pids(path)
    stop()
    thread.join(1.5)

    assert not thread.is_alive()
    assert [outcome.index for outcome in outcomes] in ([], [1])
    assert await_true(lambda: not any(map(is_alive, running)))


def test_a_run_that_is_stopped_before_it_begins() -> None:
    stop = workers.Stop()
    stop()
    run = workers.run("worker_tasks:order", [30], jobs=1, timeout_s=60, preload=(), stop=stop)

    start = time.monotonic()
    assert list(run) == []
    assert time.monotonic() - start < 5.0


def test_a_fork_that_lives_on_keeps_no_one(tmp_path: Path) -> None:
    """
    A child that was forked meanwhile holds both ends of nothing: the client's death ends all.
    """
    path = tmp_path / "pids"
    script = tmp_path / "script.py"
    script.write_text(
        "import os, threading, time\n"
        "from jitgen.compile import workers\n"
        "stop = workers.Stop()\n"
        f"run = workers.run('worker_tasks:linger', [{str(path)!r}], jobs=1, timeout_s=60,"
        " preload=(), stop=stop)\n"
        "threading.Thread(target=list, args=(run,), daemon=True).start()\n"
        f"while not os.path.exists({str(path)!r}): time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    stop.disown()\n"
        "    time.sleep(60)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), 9)\n",
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    client = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    with client.stdout:
        child = int(client.stdout.readline())
    client.wait(10)
    try:
        assert is_alive(child)
        assert await_true(lambda: not any(map(is_alive, pids(path))))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_fork_that_holds_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked as the processes began keeps the connection open for ever."""
    pair, held = workers.socket.socketpair, []

    def socketpair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        held.append(theirs.dup())
        return ours, theirs

    monkeypatch.setattr(workers.socket, "socketpair", socketpair)
    outcomes: list[Outcome] = []
    run = workers.run("worker_tasks:double", [4], jobs=1, timeout_s=30, preload=())
    thread = threading.Thread(target=lambda: outcomes.extend(run), daemon=True)
    thread.start()
    thread.join(5)
    is_over = not thread.is_alive()
    for end in held:
        end.close()

    assert is_over
    assert [outcome.result for outcome in outcomes] == [8]
