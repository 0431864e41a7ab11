# SPDX-License-Identifier: Apache-2.0
"""
A place that does not answer is asked by one process of a host, and then by none for a while.

::

    <root>/v1/breakers/<digest>     until when, why, and how long the next time

The first failure closes the way for 30 s, each further one for twice as long, up to ten minutes.
When the time is over one process tries, while the others still go without; what comes of it holds
for all. A file is of one host and one place: a root on a network file system is shared by hosts
that may reach different places. Where nothing can be written, the process remembers for itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

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
_MAX_TEXT = 400  # characters of URL and reason: what was cut off would be no JSON


@frozen
class State:
    """
    Why a place is not asked.

    Attributes:
        until: Until when, in seconds since 1970.
        wait_s: How long that was.
        reason: What happened.
    """

    until: float
    wait_s: float
    reason: str

    @property
    def left_s(self) -> float:
        """Seconds left. A time too far ahead comes from a clock that was set back: none are."""
        left = self.until - time.time()
        return left if 0 < left <= MOST_S else 0.0


_private: dict[str, State] = {}


class Breaker:
    """
    Whether one place is asked, by this host.

    Args:
        store: Where its processes tell each other.
        url: The place.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._name = hashlib.sha256(f"{os.uname().nodename}\0{url}".encode()).hexdigest()[:32]

    def state(self) -> State | None:
        """
        Return why it is not asked now, or was not a while ago; None where nothing is wrong. What
        cannot be read says nothing: then this process goes by what it knows itself.
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
        Let the with block ask the place, and keep what comes of it: `Unreachable` closes the way,
        any other answer opens it, and what was in the way here changes nothing.

        Raises:
            Unreachable: It is closed.
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
                self._close(State(until=time.time() + wait_s, wait_s=wait_s, reason=str(error)))
                raise
            except LocalFailure:  # which says nothing about the place
                raise
            except RemoteError:  # it has answered
                if state is not None:
                    self.open()
                raise
            if state is not None:
                self.open()

    def open(self) -> None:
        """Let everybody ask again."""
        _private.pop(self._name, None)
        with suppress(OSError, CacheError), self._store.notes(_FOLDER) as folder:
            folder.discard(self._name)

    def _close(self, state: State) -> None:
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
        """Yield whether no other process of this host is trying just now."""
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
        document: Any = parse_json(data, max_bytes=_MAX_BYTES)
        until, wait_s = float(document["until"]), float(document["wait_s"])
        return State(
            until=until, wait_s=min(MOST_S, max(FIRST_S, wait_s)), reason=document["reason"]
        )
    except (BadDocument, LookupError, TypeError, ValueError):
        return None
