# SPDX-License-Identifier: Apache-2.0
"""
Entries that clients gave and nobody vouches for: in a root of their own, beside the service's.

They are handed out to whoever asks for such by name, and answer nothing else: no compile, no
prewarm, no other service. So they can neither take the place of a kernel nor push one out.
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
    Args:
        folder: Where the service keeps what is its own.
        settings: How large they may be together.
    """

    def __init__(self, folder: Path, settings: Uploads) -> None:
        self._store = Store(folder / FOLDER, "rw")
        self._inside = library.parsed({"cache_size": settings.limit})

    async def keep(self, entry: Entry) -> tuple[bool, str]:
        """
        Keep `entry`, without its signatures, unless there is one of its key: the first has it.

        Returns whether it is kept now, and why it cannot be, if so.
        """
        return await asyncio.to_thread(self._keep, entry)

    def _keep(self, entry: Entry) -> tuple[bool, str]:
        if self._store.read(entry.key) is not None:
            return False, ""
        with library.inside(self._inside):  # publishing prunes what is above the limit
            published = self._store.publish(entry.meta, entry.files, is_fetched=True)
        return not published.why_private, published.why_private

    async def read(self, key: str) -> Entry | None:
        """Return the entry `key`; None where nobody gave one."""
        return await asyncio.to_thread(self._store.read, key)

    def close(self) -> None:
        """Close what the root has open."""
        self._store.index.close()
