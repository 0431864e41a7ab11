# SPDX-License-Identifier: Apache-2.0
"""
What happens to kernels, told to whoever listens, and counted.

The warm path emits nothing: a kernel that is in memory is served without an event, and the registry
counts those itself. Listeners run on the thread that caused the event, when it has let go of every
lock of jitgen's, so that they may ask for kernels themselves. One that raises is dropped with a
warning, for a broken monitor must not stop a server; unless it ran out of memory or the like, which
may pass.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from jitgen.support.failing import is_passing
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

_log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """What can happen."""

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
    One thing that happened.

    Attributes:
        kind: What happened.
        kernel: Name of the kernel, or of the entry where the name is not known. Of a fallback: the
            kernel that was wanted. Of a budget: the kernel that is beyond JITGEN_MAX_KERNELS.
        key: Digest of the kernel's key document; empty where there is none.
        tier: Where a hit came from: ``memory``, ``disk``, ``base``, ``remote``, ``service`` or
            ``compiled``; which tier was asked, of a fetch; else empty.
        seconds: How long it took; 0 where that has no meaning. Of a queue: how long
            somebody waited for whoever compiles the same kernel.
        detail: The reason of a miss, eviction, quarantine, rejection or error; why a fetch brought
            nothing, empty if it did; of a fallback, the name of the kernel that serves meanwhile.
    """

    kind: EventKind
    kernel: str = ""
    key: str = ""
    tier: str = ""
    seconds: float = 0.0
    detail: str = ""


Listener = Callable[[Event], None]

_MOST_MISSES = 3
"""Events in a row that a listener may miss for want of something, before it is dropped."""


class _Held(threading.local):
    """What one thread has emitted and not delivered yet, and how many with blocks keep it."""

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
        """Start with a free lock: in a forked child its holder does not exist any more."""
        self._lock = threading.Lock()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns the function that ends it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def emit(self, event: Event) -> None:
        """Count `event` and hand it to every listener, now or when this thread lets go."""
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
        Keep what this thread emits in the with block until its end.

        For whoever holds a lock: a listener that needs it too would wait for ever. What a listener
        causes waits until the listener has returned.
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
            except BaseException as error:  # a listener is foreign code: any failure is its own
                self._misses[id(listener)] += 1
                if is_passing(error) and self._misses[id(listener)] < _MOST_MISSES:
                    _log.warning("an event listener failed and missed an event", exc_info=True)
                    continue  # no memory, say: the next event may find some
                _log.warning("an event listener failed and was dropped", exc_info=True)
                self._drop(listener)
            if self._misses:
                self._misses.pop(id(listener), None)

    def counts(self) -> dict[str, int]:
        """
        Return how often each kind happened, hits and loads with their tier: ``{"hit.disk": 3,
        ...}``.
        """
        with self._lock:
            return dict(self._counts)


events = EventBus()


def on_event(listener: Listener) -> Callable[[], None]:
    """
    Call `listener` with every event of this process from now on; returns the function that ends it.
    """
    return events.listen(listener)


_warned: set[str] = set()
_warn_lock = threading.Lock()


def _after_fork() -> None:
    global _warn_lock
    _warn_lock = threading.Lock()
    events.renew_lock()


os.register_at_fork(after_in_child=_after_fork)


def warn_once(topic: str, message: str, *arguments: object) -> None:
    """Log a warning the first time that `topic` comes up in this process."""
    with _warn_lock:
        if topic in _warned:
            return
        _warned.add(topic)
    _log.warning("%s", printable(message % arguments if arguments else message, keep="\n"))
