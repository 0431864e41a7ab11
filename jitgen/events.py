# SPDX-License-Identifier: Apache-2.0
"""
Events of kernels: delivered to listeners, and counted.

The warm path emits no event for a kernel that is in memory; the registry counts those itself.
Listeners run on the thread that caused the event, after it has released every lock of jitgen's, so
that a listener may request kernels itself. A listener that raises is dropped with a warning, since
a broken monitor must not stop a server. A listener may fail a few times in a row because memory or
another resource ran out, since that may pass.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from jitgen.errors import InputError
from jitgen.support.failing import is_passing
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

_log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """Kind of an event."""

    RENDER = "render"
    HIT = "hit"
    MISS = "miss"
    FETCH = "fetch"
    REJECT = "reject"
    COMPILE = "compile"
    LOAD = "load"
    FALLBACK = "fallback"
    EVICT = "evict"
    QUARANTINE = "quarantine"
    BUDGET = "budget"
    QUEUE = "queue"
    ERROR = "error"


@frozen
class Event:
    """
    One event.

    Attributes:
        kind: Its kind.
        kernel: Name of the kernel, or of the entry if the name is not known. Of a fallback: the
            kernel that was wanted. Of a budget: the kernel that is beyond JITGEN_MAX_KERNELS.
        key: Digest of the kernel's key document; empty if there is none.
        tier: Tier of a hit: ``memory``, ``disk``, ``base``, ``remote``, ``service`` or
            ``compiled``; of a fetch: the tier that was asked; else empty.
        seconds: Duration; 0 where that has no meaning. Of a queue: the wait for another thread or
            process that compiles the same kernel.
        detail: Reason of a miss, eviction, quarantine, rejection or error; of a fetch: why it
            failed, empty if it did not; of a fallback: the kernel that serves meanwhile.
    """

    kind: EventKind
    kernel: str = ""
    key: str = ""
    tier: str = ""
    seconds: float = 0.0
    detail: str = ""


Listener = Callable[[Event], None]

_MOST_MISSES = 3
"""
Events in a row for which a listener may fail because a resource ran out, before it is dropped.
"""


class _Held(threading.local):
    """Events of one thread that are not delivered yet, and the depth of `EventBus.held` blocks."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: deque[Event] = deque()


class EventBus:
    """Listeners and counters of one process; safe to use from any thread."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._misses: Counter[int] = Counter()  # by the identity of a listener
        self._held = _Held()

    def renew_lock(self) -> None:
        """Replace the lock: the thread that holds it may not exist in a forked child."""
        self._lock = threading.Lock()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """
        Call `listener` with every event from now on; return a function that removes the listener.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def emit(self, event: Event) -> None:
        """Count `event` and deliver it to every listener, now or at the end of a `held` block."""
        with self._lock:
            self._counts[f"{event.kind}.{event.tier}" if event.tier else str(event.kind)] += 1
            listeners = self._listeners
        if not listeners:
            return
        with self.held():
            self._held.waiting.append(event)

    @contextmanager
    def held(self) -> Iterator[None]:
        """
        Defer the events of this thread to the end of the with block.

        Use it around code that holds a lock, since a listener that needs the lock would deadlock.
        An event that a listener causes is deferred until that listener has returned.
        """
        held = self._held
        held.depth += 1
        try:
            yield
        finally:
            try:
                while held.depth == 1 and held.waiting:
                    self._deliver(held.waiting.popleft())
            finally:
                held.depth -= 1

    def _deliver(self, event: Event) -> None:
        with self._lock:
            listeners = self._listeners
        for listener in listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a listener is foreign code, and may raise anything
                self._misses[id(listener)] += 1
                if is_passing(error) and self._misses[id(listener)] < _MOST_MISSES:
                    _log.warning("an event listener failed and missed an event", exc_info=True)
                    continue  # no memory, say; there may be some at the next event
                _log.warning("an event listener failed and was dropped", exc_info=True)
                self._drop(listener)
            if self._misses:
                self._misses.pop(id(listener), None)

    def counts(self) -> dict[str, int]:
        """
        Return the number of events by kind, and tier if they have one: ``{"hit.disk": 3, ...}``.
        """
        with self._lock:
            return dict(self._counts)


events = EventBus()


def on_event(listener: Listener) -> Callable[[], None]:
    """
    Call `listener` with every event of this process from now on; return a function that removes the
    listener.

    Raises:
        InputError: `listener` cannot be called.
    """
    if not callable(listener):
        raise InputError("listener", f"must be a function (got {type(listener).__name__})")
    return events.listen(listener)


_warned: set[str] = set()
_warn_lock = threading.Lock()


def _after_fork() -> None:
    global _warn_lock
    _warn_lock = threading.Lock()
    events.renew_lock()


os.register_at_fork(after_in_child=_after_fork)


def warn(message: str) -> None:
    """Log a warning."""
    _log.warning("%s", printable(message, keep="\n"))


def warn_once(topic: str, message: str, *arguments: object) -> None:
    """Log a warning the first time that `topic` comes up in this process."""
    with _warn_lock:
        if topic in _warned:
            return
        _warned.add(topic)
    _log.warning("%s", printable(message % arguments if arguments else message, keep="\n"))
