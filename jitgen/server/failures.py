# SPDX-License-Identifier: Apache-2.0
"""
Recent compile failures, in memory and in the store's index.

Each request for a missing entry looks here, thousands of times a minute. Opening the index takes
longer than sending an entry, so it is read only once, when the service starts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from jitgen.cache import Failure, Store
from jitgen.cache.failures import failure

_MOST = 10_000


class Failures:
    """Remembered failed compiles of one store. Only the event loop may use it."""

    def __init__(self, store: Store, ttl_s: float) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._rows: OrderedDict[str, Failure] = OrderedDict()

    async def load(self) -> None:
        """Load the failures that an earlier run stored."""
        found = await asyncio.to_thread(self._store.index.failures)
        self._rows = OrderedDict({**found, **self._rows})
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def reason(self, key: str) -> str:
        """Return why `key` did not compile; empty if no failure is remembered."""
        found = self._rows.get(key)
        if found is None:
            return ""
        if found.is_over:
            del self._rows[key]
            return ""
        return found.reason

    async def add(self, key: str, name: str, reason: str) -> None:
        """Remember that the compiler refuses kernel `name`, for the next run as well."""
        if self._ttl_s <= 0:
            return
        self._rows[key] = failure(name, reason, self._ttl_s)
        if len(self._rows) > _MOST:
            self._rows.popitem(last=False)
        index = self._store.index
        await asyncio.to_thread(index.remember_failure, key, name, reason, self._ttl_s)

    def __len__(self) -> int:
        return len(self._rows)
