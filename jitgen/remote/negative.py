# SPDX-License-Identifier: Apache-2.0
"""
What this process need not ask for again, and until when.

Each kind has its own end. Somebody may be compiling what is not there, so that is asked again after
half a minute. What was refused for its signatures stays refused until the trust document changes,
or for an hour, in which it may have been signed. What came damaged may come whole a minute
later, and a service that cannot compile a kernel will not be able to in the next minute either.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from jitgen.remote.outcomes import Miss

NOT_FOUND_S = 30.0
CORRUPT_S = 60.0
UNAUTHORIZED_S = 60.0
JOB_LOST_S = 60.0
"""A service that was short of something, or has lost a job, may have what it takes by then."""

REJECTED_S = 600.0
UNTRUSTED_S = 3600.0
FAILED_S = 86400.0
"""A compiler's refusal holds for its toolchain, which the key contains."""

_MOST = 10_000


class Negatives:
    """What cannot be had, by place and key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, str, Miss]] = {}

    def remember(self, name: Hashable, miss: Miss, seconds: float, trust: str = "") -> None:
        """
        Remember that `name` cannot be had.

        Args:
            name: What: a place and a key, say.
            miss: Why.
            seconds: For how long.
            trust: Digest of the trust document that says so; empty where it has no part in it.
        """
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[name] = (time.monotonic() + seconds, trust, miss)

    def find(self, name: Hashable, trust: str = "") -> Miss | None:
        """Return why `name` cannot be had now, under this trust document; None: it may be."""
        until, before, miss = self._known.get(name, (0.0, "", None))
        is_past = time.monotonic() >= until or before not in ("", trust)
        return None if is_past else miss

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


negatives = Negatives()
"""Those of this process."""
