# SPDX-License-Identifier: Apache-2.0
"""
The negative cache of a process: failed requests that are not repeated for a while.

The classes of `jitgen.remote.outcomes` say for how long each kind of failure is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from jitgen.remote.outcomes import Miss

_MOST = 10_000


class Negatives:
    """Failed requests by backend and key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, str, Miss]] = {}

    def remember(self, name: Hashable, miss: Miss, seconds: float, trust: str = "") -> None:
        """
        Remember a failed request.

        Args:
            name: Identifies the request: backend, purpose and key, say.
            miss: The failure.
            seconds: For how long to remember it.
            trust: Digest of the trust document that caused it; empty if none did.
        """
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[name] = (time.monotonic() + seconds, trust, miss)

    def find(self, name: Hashable, trust: str = "") -> Miss | None:
        """Return the remembered failure of `name` under this trust document; None without one."""
        until, before, miss = self._known.get(name, (0.0, "", None))
        is_past = time.monotonic() >= until or before not in ("", trust)
        return None if is_past else miss

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


negatives = Negatives()
"""The negative cache of this process."""
