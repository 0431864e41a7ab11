# SPDX-License-Identifier: Apache-2.0
"""
Other processes and threads that stop, die, fork, ask, or take things away while a kernel compiles.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jitgen.cache import Store
from jitgen.codegen.render import render
from jitgen.compile import compiler, workers
from jitgen.errors import ResourceError
from jitgen.events import Event, events
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current
from jitgen.runtime.spec import key
from jitgen.settings import settings
from jitgen.support import forks
from tests.chaos.kernels import ARCH, CONFIGS, in_child
from tests.chaos.trouble.stand import CONFIG, OTHER, Case, Place, patched, refused, served


@contextmanager
def _during_compile(work: Callable[[], object]) -> Iterator[None]:
    """Do `work` when the first compile of the with block has begun, and before it ends."""
    real, first = compiler._compile, [True]

    def compile_source(*arguments: Any, **more: Any) -> str:
        if first:
            first.clear()
            work()
        return real(*arguments, **more)

    with patched(compiler, "_compile", compile_source):
        yield


def _meanwhile(work: Callable[[Place], object], *, kept: bool) -> Case:
    """Another process does `work` to the cache during the compile: the call gets its kernel."""

    def case(place: Place) -> str:
        with _during_compile(lambda: work(place)):
            kernel = place.get()
        assert place.is_right(kernel)
        assert bool(place.published()) == kept, place.published()
        if not place.root.is_dir():
            place.root.unlink()  # as the next one is told to
        return f"served right, {'published' if kept else 'not published'}"

    return case


def _server_signal(number: int) -> Case:
    """The process that starts compile processes is stopped, or killed."""

    def case(place: Place) -> str:
        real, first = subprocess.Popen, [True]

        def popen(command: Any, *arguments: Any, **more: Any) -> Any:
            process = real(command, *arguments, **more)
            if first and any("worker_server" in str(word) for word in command):
                first.clear()
                os.kill(process.pid, number)
            return process

        with (
            settings.scope(compile="worker"),
            patched(workers, "_START_S", 2),
            patched(workers, "_SILENCE_S", 2),
        ):
            with patched(subprocess, "Popen", popen):
                said = refused(place, ResourceError)
            return f"{said}; then {served(place)}"

    return case


def _worker_dies(place: Place) -> str:
    """The compile process itself is killed, as the kernel does when memory is short."""
    done = threading.Event()

    def hunt() -> None:
        while not done.is_set():
            for server in _children(os.getpid()):
                for worker in _children(server):
                    with suppress(OSError):
                        os.kill(worker, signal.SIGKILL)
            time.sleep(0.01)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        with settings.scope(compile="worker"):
            said = refused(place, ResourceError)
    finally:
        done.set()
        hunter.join()
    assert "SIGKILL" in said, said
    return said


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _nothing_survives(place: Place) -> str:
    """Whatever a task starts ends with it, also what has left its session."""
    before = set(_everybody())
    tasks = [{"folder": str(place.folder)}]
    outcomes = list(
        workers.run("tests.chaos.trouble.processes:escape", tasks, jobs=1, timeout_s=20, preload=())
    )
    assert outcomes[0].kind == "ok", outcomes[0]
    time.sleep(0.5)
    left = [
        process
        for process in set(_everybody()) - before
        if "sleep" in (_command_of(process)) and "4242" in _command_of(process)
    ]
    assert not left, left
    return f"nothing left of {outcomes[0].result} processes"


def escape(task: dict[str, str]) -> int:
    """Start processes that try to outlive the task."""
    for command in ("sleep 4242 & sleep 4242", "setsid sleep 4242 & setsid sleep 4242"):
        subprocess.Popen(["sh", "-c", command], cwd=task["folder"], start_new_session=True)
    time.sleep(0.3)
    return 4


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _fork_meanwhile(place: Place) -> str:
    """
    A fork during another thread's first compile: the child used to wait for ever for the import
    lock of a module that the thread was importing.
    """
    said: list[str] = []
    begun = threading.Event()

    def slowly() -> None:
        begun.set()
        time.sleep(0.5)

    def work() -> None:
        with _during_compile(slowly):
            said.append(served(place))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    start = time.monotonic()
    elsewhere = Place(place.folder / "child", b"")
    trouble = in_child(lambda: elsewhere.loader().get(OTHER, ARCH), patience_s=30)
    seconds = time.monotonic() - start
    thread.join()
    assert not trouble, trouble
    return f"{said[0]}; the fork waited for it, and the child compiled ({seconds:.1f} s)"


def _fork_too_long(place: Place) -> str:
    """The fork cannot wait: the child says what is wrong, instead of hanging."""
    begun = threading.Event()

    def slowly() -> None:
        begun.set()
        time.sleep(2)

    def work() -> None:
        with _during_compile(slowly):
            place.get()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    with patched(forks, "PATIENCE_S", 0.2):
        said = in_child(lambda: place.loader().get(OTHER, ARCH), patience_s=30)
    thread.join()
    assert said.startswith("ResourceError") and "spawn" in said, said
    return said


def _listener(place: Place) -> str:
    """A listener that asks for the very kernel whose compile it is told of used to deadlock."""
    subject, got = place.loader(), []

    def listen(_: Event) -> None:
        got.append(subject.get(CONFIG, ARCH).tier)

    with _listening(listen):
        assert place.is_right(subject.get(CONFIG, ARCH))
    assert got, "it was never called"
    return f"called {len(got)} times, each got it"


def _listener_exits(place: Place) -> str:
    def listen(_: Event) -> None:
        raise SystemExit(3)

    with _listening(listen):
        return served(place)


def _listener_forks(place: Place) -> str:
    """A listener that starts a process, and waits for it."""

    def listen(_: Event) -> None:
        assert not in_child(lambda: None, patience_s=20)

    with _listening(listen):
        return served(place)


@contextmanager
def _listening(listen: Callable[[Event], None]) -> Iterator[None]:
    stop = events.listen(listen)
    try:
        yield
    finally:
        stop()


def _interrupted(place: Place) -> str:
    """Ctrl-C in the middle leaves nothing behind."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    before = set(Path("/tmp").glob("jitgen-scratch-*"))
    try:
        with _during_compile(interrupt):
            place.get()
    except KeyboardInterrupt:
        assert set(Path("/tmp").glob("jitgen-scratch-*")) <= before
        assert not place.published()
        return "interrupted, nothing left"
    raise AssertionError("it went on")


def _killed(place: Place) -> str:
    """Killed in the middle: its scratch folder is swept by the first prune an hour later."""
    said = in_child(lambda: _compile_and_die(place))
    assert said == f"ended by {-signal.SIGKILL}", said
    return "killed; nothing published"


def _compile_and_die(place: Place) -> None:
    with _during_compile(lambda: os.kill(os.getpid(), signal.SIGKILL)):
        place.get()


def _lock_holder_stops(place: Place) -> str:
    """A process holds the lock and is stopped: the others compile privately, and all is well."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with Store.open(place.root).lock(key(CONFIG, ARCH), 1):
            os.write(write, b".")
            time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    os.kill(child, signal.SIGSTOP)
    try:
        with settings.scope(lock_timeout=0.5):
            return served(place)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _threads_render(place: Place) -> str:
    """ast.parse in threads raised SystemError on Python up to 3.11.7 (gh-106905)."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                for config in CONFIGS:
                    render(config, ARCH)
        except BaseException as error:  # it would die with its thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return served(place)


def _threads_ask(place: Place) -> str:
    """32 threads want the one kernel: it is compiled once, and no thread sees half of it."""
    subject = place.loader()
    got: list[object] = []
    threads = [
        threading.Thread(target=lambda: got.append(subject.get(CONFIG, ARCH))) for _ in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 32 and len(set(map(id, got))) == 1, len(set(map(id, got)))
    return "one kernel for 32 threads"


def _reset_meanwhile(place: Place) -> str:
    """Another thread forgets the loader during the compile."""
    with settings.scope(cache_dir=place.root), _during_compile(current.get().reset):
        kernel = current.get().get_kernel(CONFIG, ARCH)
    assert place.is_right(kernel)
    assert isinstance(current.get().loader, KernelLoader)
    return "served right"


CASES: dict[str, Case] = {
    "the server of compile processes is stopped": _server_signal(signal.SIGSTOP),
    "the server of compile processes is killed": _server_signal(signal.SIGKILL),
    "the compile process is killed": _worker_dies,
    "a task starts processes in sessions of their own": _nothing_survives,
    "a fork during the compile of another thread": _fork_meanwhile,
    "a fork that cannot wait": _fork_too_long,
    "a listener asks for the same kernel": _listener,
    "a listener raises SystemExit": _listener_exits,
    "a listener starts a process": _listener_forks,
    "Ctrl-C during the compile": _interrupted,
    "kill -9 during the compile": _killed,
    "the holder of the lock is stopped": _lock_holder_stops,
    "threads render": _threads_render,
    "threads ask": _threads_ask,
    "the registry is forgotten meanwhile": _reset_meanwhile,
    "rm meanwhile": _meanwhile(lambda p: Store.open(p.root).remove(key(CONFIG, ARCH)), kept=True),
    "clear meanwhile": _meanwhile(lambda p: Store.open(p.root).clear(), kept=True),
    "prune meanwhile": _meanwhile(lambda p: Store.open(p.root).prune(1), kept=True),
    "the cache is removed meanwhile": _meanwhile(
        lambda p: shutil.rmtree(p.root, ignore_errors=True), kept=True
    ),
    "the cache becomes a file meanwhile": _meanwhile(
        lambda p: (shutil.rmtree(p.root), p.root.write_text("x")), kept=False
    ),
}
