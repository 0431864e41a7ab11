# SPDX-License-Identifier: Apache-2.0
"""
Uploads of clients, which this service does not vouch for, in a root of their own.

An upload is handed out only to a request with ``unattested=1``. It never answers a compile, a
prewarm or another service, so it can neither replace a kernel nor evict one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from jitgen.cache import Entry, Store
from jitgen.server.settings import Uploads
from jitgen.settings import settings as library

FOLDER = "uploads"


class Unattested:
    """
    The stored uploads.

    Args:
        folder: The service's folder for its own files.
        settings: The limit on their total size.
    """

    def __init__(self, folder: Path, settings: Uploads) -> None:
        self._store = Store(folder / FOLDER, "rw")
        self._inside = library.parsed({"cache_size": settings.limit})

    async def keep(self, entry: Entry) -> tuple[bool, str]:
        """
        Store `entry` without its signatures, unless there is one with its key already.

        Returns whether it was stored, and why storing failed, if it did.
        """
        return await asyncio.to_thread(self._keep, entry)

    def _keep(self, entry: Entry) -> tuple[bool, str]:
        if self._store.read(entry.key) is not None:
            return False, ""
        with library.inside(self._inside):  # publishing prunes what is above the limit
            published = self._store.publish(entry.meta, entry.files, is_fetched=True)
        return not published.why_private, published.why_private

    async def read(self, key: str) -> Entry | None:
        """Return upload `key`; None if there is none."""
        return await asyncio.to_thread(self._store.read, key)

    def close(self) -> None:
        """Close the root's index."""
        self._store.index.close()
