# SPDX-License-Identifier: Apache-2.0
"""
Kernels that are compiled while the program goes on.

One thread takes one wanted kernel after another, has a worker process compile it (the compiler is
not thread-safe, and a serving process should keep its cores), and hands over the entry. The thread
exists only while something is wanted, never launches anything, and does not keep the program from
ending: at exit the worker is ended with it.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakSet

from jitgen.errors import CompileError, JitgenError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.model import Arch, KernelConfig
from jitgen.runtime.entries import readable
from jitgen.runtime.key import key
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.build.workers import Stop
    from jitgen.cache import Entry, Store

Deliver = Callable[[KernelConfig, Arch, "Entry", str], None]
"""Called on the background's thread with a kernel's entry, and ``compiled`` or ``disk``."""

_JOIN_S = 2.0
"""How long the end of the program waits for the thread, which ends its worker within half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    """
    A kernel to compile, with the settings of when it was asked for.

    Attributes:
        config: Its config.
        arch: The target.
        key: Digest of its key document.
        timeout_s: How long the compile may take.
        failure_ttl_s: How long a failure is remembered.
    """

    config: KernelConfig
    arch: Arch
    key: str
    timeout_s: float
    failure_ttl_s: float


class Background:
    """
    The kernels of one registry that are being compiled for later. Safe to use from any thread.

    A kernel is compiled once however often it is wanted, and by one process of all that share its
    store. One that fails is warned of once and left alone for JITGEN_FAILURE_TTL seconds.
    """

    def __init__(self, store: Store, deliver: Deliver) -> None:
        self._store = store
        self._deliver = deliver
        self._private: Store | None = None
        self._failed: dict[str, float] = {}  # key -> when it may be tried again
        self._is_closed = False
        self._stop: Stop | None = None
        self._begin()
        _backgrounds.add(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[_Want] = deque()
        self._pending: set[str] = set()
        self._thread: threading.Thread | None = None

    def want(self, config: KernelConfig, arch: Arch) -> None:
        """Have `config` compiled, unless it is on its way or failed not long ago; never waits."""
        name = key(config, arch)
        with self._guard:
            is_failed = time.monotonic() < self._failed.get(name, 0.0)
            if self._is_closed or is_failed or name in self._pending:
                return
            want = _Want(
                config=config,
                arch=arch,
                key=name,
                timeout_s=settings.compile_timeout,
                failure_ttl_s=settings.failure_ttl,
            )
            self._queue.append(want)
            self._pending.add(name)
            trouble = self._ensure_thread()
        if trouble:
            self._fail(want, trouble)

    def _ensure_thread(self) -> str:
        """Start the thread unless it runs; returns why there is none."""
        if self._thread is not None and self._thread.is_alive():
            return ""
        _close_at_exit()
        thread = threading.Thread(target=self._work, name="jitgen-compile", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads, or is ending
            self._queue.clear()
            self._pending.clear()
            return str(error)
        self._thread = thread
        return ""

    def close(self) -> None:
        """End what is under way, and compile nothing more; waits for that, but not for long."""
        with self._guard:
            self._is_closed = True
            thread, stop = self._thread, self._stop
        if stop is not None:
            stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def after_fork(self) -> None:
        """Start anew in a forked child: thread and worker are its parent's."""
        if self._stop is not None:
            self._stop.disown()
            self._stop = None
        self._private = None
        self._begin()

    def _work(self) -> None:
        while True:
            with self._guard:
                if self._is_closed or not self._queue:
                    self._pending.clear()
                    self._thread = None
                    return
                want = self._queue.popleft()
            try:
                self._compile(want)
            except Exception as error:  # whoever is told of a kernel may raise anything
                if not self._is_closed:
                    self._fail(want, _words(error))
            finally:
                with self._guard:
                    self._pending.discard(want.key)

    def _compile(self, want: _Want) -> None:
        """
        Compile and deliver one kernel.

        Raises:
            JitgenError: It cannot be had.
            OSError: No worker process can be started.
        """
        if failure := self._store.index.failure(want.key):
            raise CompileError(want.config.name(want.arch), failure.reason)
        for store in self._stores():
            entry = readable(store, want.config, want.arch, tells_miss=False)
            is_new = entry is None and self._run(want, store)
            entry = entry or readable(store, want.config, want.arch, tells_miss=False)
            if entry is not None:
                if is_new:
                    self._tell(want, entry)
                self._deliver(want.config, want.arch, entry, "compiled" if is_new else "disk")
                return
        raise CompileError(want.config.name(want.arch), "its files were lost")

    def _stores(self) -> Iterator[Store]:
        """Yield where to compile to: a private store too, where the registry's is not written."""
        if self._store.mode == "rw":
            yield self._store
        if self._private is None:
            self._private = _private_store()
        yield self._private

    def _run(self, want: _Want, store: Store) -> bool:
        """
        Compile `want` into `store` in a worker; returns whether this worker compiled it.

        Raises:
            JitgenError: It failed, or the background was closed.
            OSError: No process can be started.
        """
        from jitgen.build import workers
        from jitgen.runtime.task import TASK, compile_task

        stop = workers.Stop()
        with self._guard:
            self._stop = stop
            if self._is_closed:
                stop()
        tasks = [compile_task(store, want.config, want.arch)]
        try:
            outcomes = list(workers.run(TASK, tasks, jobs=1, timeout_s=want.timeout_s, stop=stop))
        finally:
            with self._guard:
                self._stop = None
        if not outcomes:
            raise JitgenError("it was ended")
        error = outcomes[0].error or outcomes[0].result.get("error", "")
        if error:
            raise JitgenError(error)
        return bool(outcomes[0].result["is_new"])

    def _tell(self, want: _Want, entry: Entry) -> None:
        events.emit(
            Event(
                kind=EventKind.COMPILE,
                kernel=entry.meta.name,
                key=want.key,
                seconds=entry.meta.compile_s,
            )
        )

    def _fail(self, want: _Want, reason: str) -> None:
        name = want.config.name(want.arch)
        self._failed[want.key] = time.monotonic() + want.failure_ttl_s
        warn_once(
            f"background {want.key}",
            "%s could not be compiled in the background: %s; calls that want it keep using "
            "another kernel",
            name,
            reason,
        )
        events.emit(Event(kind=EventKind.ERROR, kernel=name, key=want.key, detail=reason))


def _words(error: Exception) -> str:
    """Return the reason of a failure; an error of a kind that nobody foresaw is named."""
    if isinstance(error, CompileError):
        return error.reason
    is_foreseen = isinstance(error, (OSError, JitgenError))
    return str(error) if is_foreseen else f"{type(error).__name__}: {error}"


def _private_store() -> Store:
    """Return a store in a folder that is removed when this process ends."""
    from jitgen.cache import Store
    from jitgen.cache.area import build_area, keep

    with build_area(None) as folder:
        keep(folder)
    return Store.open(folder / "cache", mode="rw")


_backgrounds: WeakSet[Background] = WeakSet()


@cache
def _close_at_exit() -> None:
    """Have every worker ended at exit: before the stores' own clean-up, which is older."""
    atexit.register(_close_all)


def _close_all() -> None:
    for background in list(_backgrounds):
        background.close()
