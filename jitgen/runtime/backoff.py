# SPDX-License-Identifier: Apache-2.0
"""
When to try again what failed for lack of something: seconds later, and each time twice as many.

This is private to one process. What this machine is short of says nothing to another one, and a
minute later it may say nothing here.
"""

from __future__ import annotations

import threading
import time

FIRST_S = 1.0
MOST_S = 60.0


class Backoff:
    """The failures of one process, by key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._tries: dict[str, int] = {}
        self._until: dict[str, tuple[float, str]] = {}

    def failed(self, key: str, reason: str) -> float:
        """Note that `key` failed for `reason`; returns in how many seconds to try again."""
        with self._guard:
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            seconds = min(MOST_S, FIRST_S * float(1 << min(tries - 1, 10)))
            self._until[key] = (time.monotonic() + seconds, reason)
            return seconds

    def succeeded(self, key: str) -> None:
        """Forget that `key` ever failed."""
        with self._guard:
            self._tries.pop(key, None)
            self._until.pop(key, None)

    def waits(self, key: str) -> str:
        """Return why `key` failed if it is too early to try again; else an empty reason."""
        with self._guard:
            until, reason = self._until.get(key, (0.0, ""))
        return reason if time.monotonic() < until else ""
