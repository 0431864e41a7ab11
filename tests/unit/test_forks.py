# SPDX-License-Identifier: Apache-2.0
"""Forks while other threads are busy: the child can work, or says at once why it cannot."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from jitgen.errors import ResourceError
from jitgen.support import forks

# Python from 3.12 on warns of every fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

LIMIT_S = 20.0
PAUSE_S = 0.3


@pytest.fixture(autouse=True)
def gate(monkeypatch: pytest.MonkeyPatch) -> forks._Gate:
    """A gate of this test's own, so that one that fails leaves nothing behind."""
    monkeypatch.setattr(forks, "_gate", forks._Gate())
    return forks._gate


def in_child(work: Callable[[], object]) -> str:
    """Do `work` in a forked child; return what it returned, or raised, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:  # whatever it is, it is the result
            said = f"{type(error).__name__}: {error}"
        with suppress(BaseException):
            os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    try:
        if not select.select([read], [], [], LIMIT_S)[0]:
            os.kill(child, signal.SIGKILL)
            return "hung"
        return os.read(read, 4096).decode()
    finally:
        os.close(read)
        os.waitpid(child, 0)


@contextmanager
def busy_thread(work: Callable[[], object]) -> Iterator[None]:
    """Have another thread do `work` while it is busy; it has begun when the block does."""
    begun = threading.Event()

    def run() -> None:
        with forks.busy():
            begun.set()
            work()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(LIMIT_S)
    try:
        yield
    finally:
        thread.join(LIMIT_S)


def use() -> str:
    """Be busy for a moment, as a child that compiles is."""
    with forks.busy(), forks.busy():
        return "worked"


class TestWaiting:
    def test_an_import_of_another_thread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A fork during another thread's compile used to hang the child on an import lock."""
        (tmp_path / "slowly_imported.py").write_text(f"import time\ntime.sleep({PAUSE_S})\n")
        monkeypatch.syspath_prepend(tmp_path)

        def work() -> str:
            __import__("slowly_imported")
            return use()

        with busy_thread(work):
            time.sleep(PAUSE_S / 3)
            said = in_child(work)
        sys.modules.pop("slowly_imported")

        assert said == "worked"

    def test_it_waits_no_longer_than_it_must(self) -> None:
        """It used not to wait at all; the last of several threads decides."""
        done: list[float] = []

        def work(seconds: float) -> None:
            time.sleep(seconds)
            done.append(seconds)

        with busy_thread(lambda: work(PAUSE_S)), busy_thread(lambda: work(0.01)):
            start = time.monotonic()
            said = in_child(lambda: len(done))
            seconds = time.monotonic() - start

        assert said == "2"
        assert seconds < PAUSE_S + 5

    def test_a_thread_that_waits_for_a_process_is_not_waited_for(self) -> None:
        """A compile process may take minutes, and for nothing that a fork could break."""
        go = threading.Event()

        def work() -> None:
            with forks.busy(), forks.idle():
                go.wait(LIMIT_S)

        with busy_thread(work):
            start = time.monotonic()
            while forks._gate.others() and time.monotonic() - start < LIMIT_S:
                time.sleep(0.001)
            said = in_child(use)
            seconds = time.monotonic() - start
            go.set()

        assert (said, forks._gate.busy) == ("worked", {})
        assert seconds < LIMIT_S / 2

    def test_a_fork_within(self, gate: forks._Gate) -> None:
        """The thread that forks does not wait for itself, and goes on being busy on both sides."""
        with forks.busy(), forks.busy():
            said = in_child(lambda: (use(), list(forks._gate.busy.values())))
            assert gate.busy == {threading.get_ident(): 2}

        assert said == "('worked', [2])"
        assert gate.busy == {}

    def test_no_thread_begins_during_a_fork(self, gate: forks._Gate) -> None:
        """A thread that began while the fork was made used to leave its locks in the child."""
        entered = threading.Event()

        def work() -> None:
            with forks.busy():
                entered.set()

        forks._before()
        thread = threading.Thread(target=work)
        thread.start()
        began_early = entered.wait(PAUSE_S)
        forks._after_in_parent()
        thread.join(LIMIT_S)

        assert not began_early
        assert entered.is_set()
        assert (gate.forks, gate.busy) == (0, {})

    def test_who_is_busy_may_go_deeper_during_a_fork(self) -> None:
        """Otherwise the fork would wait for a thread that waits for the fork."""
        deeper, said = threading.Event(), []

        def work() -> None:
            while not forks._gate.forks:
                time.sleep(0.001)
            with forks.busy():
                deeper.set()

        with busy_thread(work):
            said.append(in_child(use))

        assert (said, deeper.is_set()) == (["worked"], True)

    def test_threads_fork_at_once(self, gate: forks._Gate) -> None:
        """A gate that only knows whether there is a fork would open with the first of them."""
        said: list[str] = []
        threads = [threading.Thread(target=lambda: said.append(in_child(use))) for _ in range(4)]
        with busy_thread(lambda: time.sleep(PAUSE_S)):
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join(LIMIT_S)

        assert said == ["worked"] * 4
        assert (gate.forks, gate.busy) == (0, {})


class TestTooLong:
    """A fork that cannot wait used to leave a child that hangs."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forks, "PATIENCE_S", 0.05)

    def test_the_child_says_what_to_do(self) -> None:
        with busy_thread(lambda: time.sleep(PAUSE_S)):
            said = in_child(use)

        assert said.startswith("ResourceError: process ")
        assert "forked while another thread was compiling" in said
        assert said.endswith("spawn")
        assert "\n" not in said

    def test_so_do_its_children(self) -> None:
        """A grandchild has the same locks."""
        with busy_thread(lambda: time.sleep(PAUSE_S)):
            said = in_child(lambda: in_child(use))

        assert said.startswith("ResourceError")

    def test_the_parent_and_its_later_children_can_work(self) -> None:
        with busy_thread(lambda: time.sleep(PAUSE_S)):
            in_child(use)

        assert use() == "worked"
        assert in_child(use) == "worked"

    def test_the_child_remembers_no_thread_of_the_parent(self) -> None:
        """Its own forks would wait in vain for a thread that does not exist."""
        with busy_thread(lambda: time.sleep(PAUSE_S)):
            said = in_child(lambda: (forks._gate.busy, forks._gate.forks, forks._gate.is_torn))

        assert said == "({}, 0, True)"


def test_an_error_is_no_longer_busy(gate: forks._Gate) -> None:
    """A compile that fails must not stop forks for ever."""

    def fail() -> None:
        with forks.busy():
            with pytest.raises(ValueError, match="inside"), forks.idle():
                raise ValueError("inside")
            assert gate.busy == {threading.get_ident(): 1}
            raise ResourceError("outside")

    with pytest.raises(ResourceError, match="outside"):
        fail()

    assert gate.busy == {}


def test_idle_outside_of_busy(gate: forks._Gate) -> None:
    """A thread that waits for a process without being busy is not busy afterwards."""
    with forks.idle():
        assert gate.busy == {}

    assert gate.busy == {}


HOOKS = """
import os, sys, threading, time
from jitgen.support import forks
forks.PATIENCE_S = 1.0
lock, begun = threading.Lock(), threading.Event()
os.register_at_fork(  # as filelock and concurrent.futures do
    before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
)
for package in sys.argv[1:]:
    forks.wait_before(package)

def work():
    with forks.busy():
        begun.set()
        time.sleep(0.2)
        with lock:  # what the fork waits for needs what an earlier hook has taken
            pass

threading.Thread(target=work).start()
begun.wait()
child = os.fork()
if child == 0:
    os._exit(int(forks._gate.is_torn))
print("torn" if os.waitpid(child, 0)[1] else "whole", forks._gate.forks)
"""


@pytest.mark.parametrize(
    ("packages", "expected"), [([], "torn 0"), (["late"], "whole 0"), (["late", "late"], "whole 0")]
)
def test_hooks_that_were_registered_later(packages: list[str], expected: str) -> None:
    """
    Hooks of packages that were imported later ran first, and took locks that the thread that the
    fork then waited for needed: the fork waited until its patience was over.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOKS, *packages],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stdout.strip() == expected, done.stderr
