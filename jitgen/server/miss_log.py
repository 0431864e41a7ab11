# SPDX-License-Identifier: Apache-2.0
"""The miss log: the last thousand requests for an absent entry, each with the reason."""

from __future__ import annotations

import time
from collections import deque

from jitgen.support.frozen import frozen

_MOST = 1000


@frozen
class Miss:
    """One miss: the time, the entry, the token that asked, and why there was no entry."""

    at: float
    key: str
    name: str
    token: str
    reason: str


class MissLog:
    """The last `_MOST` requests for absent entries."""

    def __init__(self) -> None:
        self._rows: deque[Miss] = deque(maxlen=_MOST)

    def add(self, key: str, token: str, reason: str, name: str = "") -> None:
        """Add a miss, at the present time."""
        row = Miss(at=time.time(), key=key, name=name, token=token, reason=reason)
        self._rows.append(row)

    def since(self, seconds: float) -> list[Miss]:
        """Return the misses of the last `seconds`, the latest first."""
        first = time.time() - seconds
        return [row for row in reversed(self._rows) if row.at >= first]
