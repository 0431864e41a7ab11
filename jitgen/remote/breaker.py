# SPDX-License-Identifier: Apache-2.0
"""
A circuit breaker for each backend, shared by the processes of a host.

::

    <root>/v1/breakers/<digest>     until when it is open, why, and for how long

The first failure opens the breaker: the backend is not asked for 30 s. Each further failure doubles
that time, up to ten minutes. When the time is over one process tries, while the others still do
without; its result holds for all. A file belongs to one host and one backend, since hosts that
share a root on a network file system may reach different backends. If the file cannot be written,
the process remembers for itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from jitgen.errors import CacheError
from jitgen.remote.outcomes import LocalFailure, RemoteError, Unreachable
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

if TYPE_CHECKING:
    from jitgen.cache import Store

FIRST_S = 30.0
MOST_S = 600.0
_FOLDER = "breakers"
_MAX_BYTES = 4096
_MAX_TEXT = 400  # characters of URL and reason: a document that is cut off is not JSON


@frozen
class State:
    """
    An open breaker: the backend is not asked.

    Attributes:
        until: Time until which it is open, in seconds since 1970.
        wait_s: Seconds for which it was opened.
        reason: Why it was opened.
    """

    until: float
    wait_s: float
    reason: str

    @property
    def left_s(self) -> float:
        """Seconds left; 0 if `until` is too far ahead, since a clock was set back then."""
        left = self.until - time.time()
        return left if 0 < left <= MOST_S else 0.0


_private: dict[str, State] = {}


class Breaker:
    """
    The breaker of one backend on this host.

    Args:
        store: The store through which the processes share it.
        url: The backend's URL.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._name = hashlib.sha256(f"{os.uname().nodename}\0{url}".encode()).hexdigest()[:32]

    def state(self) -> State | None:
        """
        Return why the backend is not asked, or was not until recently; None if nothing is wrong.
        If the file cannot be read, the state that this process remembers is used.
        """
        try:
            with self._store.notes(_FOLDER) as folder:
                found = _decoded(folder.read(self._name, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, CacheError):
            found = None
        return found or _private.get(self._name)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """
        Run a request in the with block and record its result: `Unreachable` opens the breaker, any
        other answer of the backend closes it, and `LocalFailure` changes nothing.

        Raises:
            Unreachable: The breaker is open, or another process tries the backend now.
        """
        with ExitStack() as stack:
            state = self.state()
            if state is not None:
                if state.left_s:
                    raise Unreachable(f"not asked for {state.left_s:.0f} s: {state.reason}")
                if not stack.enter_context(self._alone()):
                    raise Unreachable(f"another process tries again: {state.reason}")
            try:
                yield
            except Unreachable as error:
                wait_s = FIRST_S if state is None else min(MOST_S, 2 * state.wait_s)
                self._trip(State(until=time.time() + wait_s, wait_s=wait_s, reason=str(error)))
                raise
            except LocalFailure:  # which says nothing about the backend
                raise
            except RemoteError:  # the backend has answered
                if state is not None:
                    self.reset()
                raise
            if state is not None:
                self.reset()

    def reset(self) -> None:
        """Close the breaker: all processes may ask again."""
        _private.pop(self._name, None)
        with suppress(OSError, CacheError), self._store.notes(_FOLDER) as folder:
            folder.discard(self._name)

    def _trip(self, state: State) -> None:
        _private[self._name] = state
        document = {
            "url": self._url[:_MAX_TEXT],
            "until": state.until,
            "wait_s": state.wait_s,
            "reason": printable(state.reason)[:_MAX_TEXT],
        }
        with (
            suppress(OSError, CacheError),
            self._store.notes(_FOLDER) as folder,
            self._store.notes("tmp") as drafts,
        ):
            data = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
            folder.replace(self._name, data, drafts, sync=False)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether no other process of this host is trying now."""
        try:
            with self._store.notes(_FOLDER) as folder:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(self._name, flags, dir_fd=folder.descriptor)
        except (OSError, CacheError):
            yield True
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except BlockingIOError:
            is_alone = False
        except OSError:  # a file system without locks
            is_alone = True
        try:
            yield is_alone
        finally:
            os.close(descriptor)


def _decoded(data: bytes) -> State | None:
    try:
        document = parse_json(data, max_bytes=_MAX_BYTES)
        until, wait_s = float(document["until"]), float(document["wait_s"])
        return State(
            until=until, wait_s=min(MOST_S, max(FIRST_S, wait_s)), reason=document["reason"]
        )
    except (BadDocument, LookupError, TypeError, ValueError):
        return None
