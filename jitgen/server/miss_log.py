# SPDX-License-Identifier: Apache-2.0
"""What was not there when somebody asked: the last thousand misses, each with its reason."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """When who asked for which entry, and why there was none."""

    at: float
    key: str
    name: str
    token: str
    reason: str


class MissLog:
    """The last misses."""

    def __init__(self) -> None:
        self._rows: deque[Miss] = deque(maxlen=_MOST)

    def add(self, key: str, token: str, reason: str, name: str = "") -> None:
        """Note one."""
        row = Miss(at=time.time(), key=key, name=name, token=token, reason=reason)
        self._rows.append(row)

    def since(self, seconds: float) -> list[Miss]:
        """Return those of the last so many seconds, the last first."""
        first = time.time() - seconds
        return [row for row in reversed(self._rows) if row.at >= first]
