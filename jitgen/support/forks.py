# SPDX-License-Identifier: Apache-2.0
"""
Forks of a process in which another thread is busy with the compiler.

While a thread imports a module, the module is locked. A forked child inherits the lock without the
thread, so importing the module in the child would wait for ever. Importing the compiler takes a
second, and each first compile imports more. So a fork waits until no thread does that, and no
thread begins before the fork is over. Only ``os.fork`` waits, and code that calls it, such as
multiprocessing; ``subprocess`` does not.

If the wait is too long, the fork goes on, and the child refuses to compile or load, which is better
than hanging.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from jitgen.errors import ResourceError

PATIENCE_S = 60.0
"""How long a fork waits for other threads."""


class _Gate:
    """Threads that are busy, and forks that wait for them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.busy: dict[int, int] = {}  # thread -> with blocks that it is in
        self.forks = 0
        self.is_torn = False

    def others(self) -> bool:
        """Return whether a thread besides this one is busy."""
        return any(thread != threading.get_ident() for thread in self.busy)

    def enter(self, depth: int) -> None:
        """Mark this thread as busy, `depth` levels deep, as soon as no fork is under way."""
        thread = threading.get_ident()
        with self.changed:
            while self.forks and thread not in self.busy:
                self.changed.wait()
            self.busy[thread] = self.busy.get(thread, 0) + depth

    def leave(self, *, wholly: bool = False) -> int:
        """
        End one level of this thread's busy work, or all levels if `wholly`; return the previous
        number of levels.
        """
        thread = threading.get_ident()
        with self.changed:
            depth = self.busy.pop(thread, 0)
            if depth > 1 and not wholly:
                self.busy[thread] = depth - 1
            self.changed.notify_all()
        return depth


_gate = _Gate()  # looked up anew each time: a forked child has another one


@contextmanager
def busy() -> Iterator[None]:
    """
    Mark work that a fork must not interrupt: importing, compiling or loading.

    Raises:
        ResourceError: This process was forked while another thread was busy.
    """
    if _gate.is_torn:
        raise ResourceError(
            f"process {os.getpid()} was forked while another thread was compiling, and can neither "
            "compile nor load kernels; fork later, or start processes with spawn"
        )
    _gate.enter(1)
    try:
        yield
    finally:
        _gate.leave()


@contextmanager
def idle() -> Iterator[None]:
    """Let forks happen while this thread, within `busy`, waits for another process."""
    depth = _gate.leave(wholly=True)
    try:
        yield
    finally:
        if depth:
            _gate.enter(depth)


class _Fork(threading.local):
    """State of a fork on this thread: the hooks that have run, and the end of its waiting."""

    hooks = 0
    deadline = 0.0


_fork = _Fork()


def _before() -> None:
    if not _fork.hooks:
        _fork.deadline = time.monotonic() + PATIENCE_S
    _fork.hooks += 1
    with _gate.changed:
        _gate.forks += 1
        while _gate.others() and (rest := _fork.deadline - time.monotonic()) > 0:
            _gate.changed.wait(rest)


def _after_in_parent() -> None:
    _fork.hooks -= 1
    with _gate.changed:
        _gate.forks -= 1
        _gate.changed.notify_all()


def _after_in_child() -> None:
    global _gate
    _fork.hooks -= 1
    before, _gate = _gate, _Gate()
    _gate.is_torn = before.is_torn or before.others()
    _gate.busy = {thread: n for thread, n in before.busy.items() if thread == threading.get_ident()}


@cache
def wait_before(hooks_of: str) -> None:
    """
    Register this module's fork hooks again, after the package `hooks_of` was imported and has
    registered its own.

    The hook that was registered last runs first, so a fork then waits for busy threads before the
    hooks of the package run. Those hooks (of filelock and concurrent.futures, for example) take
    locks that a busy thread may need to finish. Waiting twice does no harm.
    """
    del hooks_of
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


wait_before("logging")
