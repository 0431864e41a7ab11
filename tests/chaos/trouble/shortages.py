# SPDX-License-Identifier: Apache-2.0
"""
Too little of something: memory, stack, processes, threads, descriptors, disk, time.

Such failures used to be remembered for 24 hours, by everyone, as if the compiler had refused the
kernel; now they are this process's own, and tried again some seconds later.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from jitgen.cache import scratch
from jitgen.compile import compiler
from jitgen.errors import CompileTimeout, ResourceError
from jitgen.settings import settings
from jitgen.support import failing
from tests.chaos.kernels import ARCH
from tests.chaos.trouble.stand import CONFIG, Case, Place, environment, patched, refused, served


@contextmanager
def _limit(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _raising(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def _compiler_raises(error: BaseException) -> Case:
    """The compiler fails in this process; one of its own then has the last word."""

    def case(place: Place) -> str:
        with patched(compiler, "_compile", _raising(error)):
            return served(place)

    return case


def _compiler_raises_here_only(place: Place) -> str:
    with (
        settings.scope(compile="process"),
        patched(compiler, "_compile", _raising(MemoryError("1 GiB"))),
    ):
        return refused(place, ResourceError)


def _no_memory_in_worker(place: Place) -> str:
    """LLVM calls abort() where memory runs out: in a process of its own that costs one compile."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    with settings.scope(compile="worker"), _limit(resource.RLIMIT_AS, used + 40 * 2**20):
        return refused(place, ResourceError)


def _no_processes(place: Place) -> str:
    """EAGAIN from fork, seen by the background: it tries again, instead of in 24 hours."""
    again = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    with settings.scope(compile="worker"):
        with patched(subprocess, "Popen", _raising(again)):
            said = refused(place, ResourceError)
        subject = place.loader()
        assert subject.find(CONFIG, ARCH) is None
        with patched(subprocess, "Popen", _raising(again)):
            subject.background.want(CONFIG, ARCH)
            time.sleep(0.5)
            assert subject.find(CONFIG, ARCH) is None
        until = time.monotonic() + 30
        while subject.find(CONFIG, ARCH) is None and time.monotonic() < until:
            time.sleep(0.1)
        kernel = subject.find(CONFIG, ARCH)
        assert kernel is not None, "the background never tried again"
        assert place.is_right(kernel)
        subject.background.close()
    return f"{said}; the background got it a little later"


def _backs_off(place: Place) -> str:
    """A hot loop does not start a compile with each call."""
    tries = []

    def fail(*_: object, **__: object) -> NoReturn:
        tries.append(time.monotonic())
        raise MemoryError("1 GiB")

    subject = place.loader()
    with settings.scope(compile="process"), patched(compiler, "_compile", fail):
        until, refusals = time.monotonic() + 2.5, 0
        while time.monotonic() < until:
            try:
                subject.get(CONFIG, ARCH)
            except ResourceError as error:
                refusals, text = refusals + 1, str(error)
            time.sleep(0.01)
        assert 2 <= len(tries) <= 3 and refusals > 50, (tries, refusals)
        assert "some seconds" in text, text
    time.sleep(failing.RETRY_FIRST_S * 4)
    assert place.is_right(subject.get(CONFIG, ARCH))
    return f"{len(tries)} tries for {refusals} calls in 2.5 s, then served right"


@contextmanager
def _descriptors(left: int) -> Iterator[None]:
    """Take all descriptors of this process but `left`."""
    most = max(map(int, os.listdir("/proc/self/fd"))) + 40
    with _limit(resource.RLIMIT_NOFILE, most):
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for descriptor in taken[: min(left, len(taken))]:
                os.close(descriptor)
        try:
            yield
        finally:
            for descriptor in taken[left:]:
                os.close(descriptor)


def _no_descriptors(place: Place) -> str:
    """A server with too many connections."""
    with _descriptors(0):
        said = refused(place, ResourceError)
    return f"{said}; then {served(place)}"


def _few_descriptors(place: Place) -> str:
    """From none left to enough: wherever they run out, it is the right kernel or one error."""
    outcomes: dict[str, int] = {}
    for left in range(30):
        with _descriptors(left):
            try:
                kernel = place.get()
                what = f"right ({kernel.tier})"
                assert place.is_right(kernel) or "linked" in kernel.entry.why_private
            except ResourceError:
                what = "refused"
        outcomes[what] = outcomes.get(what, 0) + 1
        place.loader().store.clear()
    return f"30 counts: {outcomes}"


def _no_threads(place: Place) -> str:
    """Deep in a stack, and no thread can be started either."""
    can_not = RuntimeError("can't start new thread")
    with patched(threading.Thread, "start", _raising(can_not)):
        return _deep(lambda: refused(place, ResourceError))


def _deep(work: Any) -> Any:
    """Return what `work` returns, called with hardly a frame left."""
    frames, frame = 0, sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back  # type: ignore[assignment]

    def dive(rest: int) -> Any:
        return work() if rest <= 0 else dive(rest - 1)

    return dive(sys.getrecursionlimit() - frames - 60)


def _deep_stack(place: Place) -> str:
    """
    Compile deep in a stack: the failure used to be remembered for 24 hours, by everyone, as a
    RecursionError of the compiler.
    """
    return str(_deep(lambda: served(place)))


def _deep_from_disk(place: Place) -> str:
    """
    Load from the disk deep in a stack: jitgen used to take a good entry, which it had no room to
    parse, for a damaged one.
    """
    place.get()
    return str(_deep(lambda: served(place)))


def _small_stack(place: Place) -> str:
    """A thread of 128 KiB: no room for a compiler, so one of the settings sends it elsewhere."""
    said: list[str] = []
    threading.stack_size(128 * 1024)
    try:
        with settings.scope(compile="worker"):
            thread = threading.Thread(target=lambda: said.append(served(place)))
            thread.start()
            thread.join()
    finally:
        threading.stack_size(0)
    return said[0]


def _small_files(place: Place) -> str:
    """A limit on the size of files, as `ulimit -f` sets it."""
    with _limit(resource.RLIMIT_FSIZE, 2000):
        return refused(place, ResourceError)


def _no_temporary_folder(place: Place) -> str:
    with environment(TMPDIR=str(place.folder / "missing")):
        return served(place)


def _closed_temporary_folder(place: Place) -> str:
    """Let no place for scratch folders be writable."""
    real = scratch._places
    nowhere = [place.folder / "missing"]
    with patched(scratch, "_places", lambda: iter(nowhere)):
        said = refused(place, ResourceError)
    assert scratch._places is real
    return said


def _full_temporary_folder(place: Place) -> str:
    with patched(scratch, "_ROOM", 2**60):
        return refused(place, ResourceError)


def _time_is_up(place: Place) -> str:
    with settings.scope(compile="worker", compile_timeout=0.02):
        return refused(place, CompileTimeout)


CASES: dict[str, Case] = {
    "no memory for the compiler in this process": _compiler_raises(MemoryError("1 GiB")),
    "no memory for the compiler, nowhere else to go": _compiler_raises_here_only,
    "no memory for a worker": _no_memory_in_worker,
    "an input/output error in this process": _compiler_raises(OSError(errno.EIO, "I/O error")),
    "the interpreter fails in this process (gh-106905)": _compiler_raises(SystemError("AST")),
    "the compiler fails in this process only": _compiler_raises(RuntimeError("ICE")),
    "an unknown type of error": _compiler_raises(LookupError("?")),
    "no process can be started": _no_processes,
    "a hot loop in need": _backs_off,
    "no descriptors": _no_descriptors,
    "few descriptors": _few_descriptors,
    "no threads, deep in a stack": _no_threads,
    "deep in a stack": _deep_stack,
    "deep in a stack, from disk": _deep_from_disk,
    "a thread with a small stack": _small_stack,
    "a limit on files": _small_files,
    "no folder for temporary files": _no_temporary_folder,
    "no folder for temporary files at all": _closed_temporary_folder,
    "a full folder for temporary files": _full_temporary_folder,
    "the time is up": _time_is_up,
}
