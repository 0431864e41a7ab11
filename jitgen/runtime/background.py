# SPDX-License-Identifier: Apache-2.0
"""
Compiles kernels while the program goes on.

One thread takes the requested kernels one after another, and a worker process compiles each (the
compiler is not thread-safe, it may end its process, and a serving process should keep its cores).
The thread exists only while kernels are requested, never launches a kernel, and does not keep the
program running: at exit the worker is ended, too.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakSet

from jitgen.config import Arch, Config
from jitgen.errors import CompileError, JitgenError, RememberedFailure
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime.spec import KernelSpec, serving
from jitgen.runtime.tiers import Tiers, build, readable
from jitgen.settings import settings
from jitgen.support import forks
from jitgen.support.failing import Backoff, is_certain, is_passing
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Entry
    from jitgen.compile.workers import Stop

Deliver = Callable[[Config, Arch, "Entry", str], None]
"""Called on the background thread with a kernel's entry, and the tier from which it came."""

_THREAD = "thread"
"""Key, among those of failed kernels, that stands for a thread which could not be started."""

_JOIN_S = 2.0
"""
Seconds that the end of the program waits for the thread, which ends its worker in half that time.
"""


@frozen
class _Want:
    """
    A kernel to compile, with the settings at the time of the request.

    Attributes:
        spec: The kernel.
        timeout_s: How long the compile may take.
        failure_ttl_s: How long a failure is remembered.
    """

    spec: KernelSpec
    timeout_s: float
    failure_ttl_s: float


class Background:
    """
    The kernels of one loader that are being compiled for later. Safe to use from any thread.

    A kernel is compiled once, no matter how often it is requested, by one of the processes that
    share the store. If the compiler refuses it, there is one warning, and the kernel is not tried
    again while the store remembers the refusal. Every other failure may be temporary: no memory,
    processes or descriptors, or a disk that does not answer. Then the kernel is tried again some
    seconds later, and after that with growing delays.
    """

    def __init__(self, tiers: Tiers, deliver: Deliver) -> None:
        self._tiers = tiers
        self._deliver = deliver
        self._refused: set[str] = set()  # keys of reported refusals, which the index limits
        self._backoff = Backoff()
        self._is_closed = False
        self._stop: Stop | None = None
        self._begin()
        _backgrounds.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, _Want]] = []  # when to try it, on the monotonic clock
        self._pending: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_stalled(self) -> bool:
        """
        Whether a kernel is requested and no thread could be started; it is then compiled only after
        another request.
        """
        return bool(self._queue) and (self._thread is None or not self._thread.is_alive())

    def want(self, config: Config, arch: Arch) -> None:
        """
        Request that `config` is compiled, unless that is in progress or known to fail; never waits.
        """
        spec = serving(config, arch)
        if spec.key in self._refused and self._tiers.store.index.failure(spec.key):
            return
        with self._changed:
            if self._is_closed or (spec.key in self._pending and not self.is_stalled):
                return
            if spec.key not in self._pending:
                want = _Want(
                    spec=spec,
                    timeout_s=settings.compile_timeout,
                    failure_ttl_s=settings.failure_ttl,
                )
                self._queue.append((time.monotonic(), want))
                self._pending.add(spec.key)
            trouble = "" if self._backoff.waits(_THREAD) else self._ensure_thread()
        if trouble:
            self._tell_failure(spec, trouble)

    def _ensure_thread(self) -> str:
        """
        Start the thread unless it runs; return the reason if it cannot be started, else an empty
        text.
        """
        self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            return ""
        _close_at_exit()
        context = copy_context()  # the settings of the session that wants it
        thread = threading.Thread(
            target=context.run, args=(self._work,), name="jitgen-compile", daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # no more threads, or the process is ending
            again_s = self._backoff.failed(_THREAD, str(error))
            return f"{error}; trying again in {again_s:g} s, when it is wanted again"
        self._backoff.succeeded(_THREAD)
        self._thread = thread
        return ""

    def close(self) -> None:
        """End the running compile, and start no others; waits for that a limited time."""
        with self._changed:
            self._is_closed = True
            if self.is_stalled:
                self._queue.clear()
                self._pending.clear()
            thread, stop = self._thread, self._stop
            self._changed.notify_all()
        if stop is not None:
            stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def after_fork(self) -> None:
        """Reset the state in a forked child, because thread and worker belong to its parent."""
        if self._stop is not None:
            self._stop.disown()
            self._stop = None
        self._backoff = Backoff()
        self._begin()

    def _work(self) -> None:
        while (want := self._next()) is not None:
            again_s: float | None = None
            try:
                with events.held(), forks.busy():
                    self._compile(want)
            except Exception as error:  # the caller's `deliver` may raise anything
                again_s = self._again_s(want, error)
            with self._changed:
                if again_s is None:
                    self._pending.discard(want.spec.key)
                else:
                    self._queue.append((time.monotonic() + again_s, want))

    def _again_s(self, want: _Want, error: Exception) -> float | None:
        """
        Report a kernel that failed with `error`, and return the seconds until the next try; None if
        the compiler refused it for certain.
        """
        again_s: float | None = None
        if is_certain(error):
            self._refused.add(want.spec.key)
        else:
            reason, foreseen = str(error), is_passing(error)
            again_s = self._backoff.failed(want.spec.key, reason, is_foreseen=foreseen)
        if not self._is_closed:
            then = "" if again_s is None else f"; trying again in {again_s:g} s"
            with suppress(Exception):  # there may be no memory left for the report
                self._tell_failure(want.spec, _words(error) + then)
        return again_s

    def _next(self) -> _Want | None:
        """
        Wait until it is time for the next kernel, and return it; None if no kernel is requested, or
        after `close`.
        """
        with self._changed:
            while self._queue and not self._is_closed:
                self._queue.sort(key=lambda item: item[0])
                wait_s = self._queue[0][0] - time.monotonic()
                if wait_s <= 0:
                    return self._queue.pop(0)[1]
                self._changed.wait(wait_s)
            self._queue.clear()
            self._pending.clear()
            self._thread = None
            return None

    def _compile(self, want: _Want) -> None:
        """
        Compile and deliver one kernel.

        Raises:
            JitgenError: It cannot be compiled or fetched.
        """
        if failure := self._tiers.store.index.failure(want.spec.key):
            raise RememberedFailure(want.spec.name, failure.reason)
        found = readable(self._tiers, want.spec, tells_miss=False)
        entry, tier = found or self._build(want)
        self._deliver(want.spec.config, want.spec.arch, entry, tier)
        self._backoff.succeeded(want.spec.key)

    def _build(self, want: _Want) -> tuple[Entry, str]:
        from jitgen.compile.compile import Where
        from jitgen.compile.workers import Stop

        stop = Stop()
        with self._changed:
            self._stop = stop
            if self._is_closed:
                stop()
        try:
            return build(
                self._tiers,
                want.spec,
                where=Where.WORKER,
                timeout_s=want.timeout_s,
                failure_ttl_s=want.failure_ttl_s,
                stop=stop,
            )
        finally:
            with self._changed:
                self._stop = None

    def _tell_failure(self, spec: KernelSpec, reason: str) -> None:
        warn_once(
            f"background {spec.key}",
            "%s could not be compiled in the background: %s; calls that want it keep using "
            "another kernel",
            spec.name,
            reason,
        )
        events.emit(Event(kind=EventKind.ERROR, kernel=spec.name, key=spec.key, detail=reason))


def _words(error: Exception) -> str:
    """Return the reason of a failure; with the name of the class if the error was not foreseen."""
    if isinstance(error, CompileError):
        return error.reason
    is_foreseen = isinstance(error, (OSError, JitgenError))
    return str(error) if is_foreseen else f"{type(error).__name__}: {error}"


_backgrounds: WeakSet[Background] = WeakSet()


@cache
def _close_at_exit() -> None:
    """
    Register a function that ends every worker at exit, before the clean-up of the stores, which was
    registered earlier.
    """
    atexit.register(_close_all)


def _close_all() -> None:
    for background in list(_backgrounds):
        background.close()
