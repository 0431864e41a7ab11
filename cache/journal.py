# SPDX-License-Identifier: Apache-2.0
"""
What happened since the index was last opened, one JSON array for each line.

Opening SQLite costs more than loading a kernel, so that a process which only loads kernels appends
here, 20 us each, and the next one that opens the index takes the lines over. A line is written
by a single append. A line that is lost or torn costs one count of a statistic.
"""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from typing import Any

from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.support.documents import BadDocument, parse_json

MAX_BYTES = 4 * 2**20
"""Uses are not recorded in a journal of this size, until somebody takes it over."""

_NAME = "journal"
_MAX_LINE = 4096
_MAX_RECORDS = 2**16  # at once; what is beyond is lost, as it is beyond `MAX_BYTES`


class Journal:
    """The journal below `root`; no method raises for what the disk does."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def append(self, *records: tuple[Any, ...]) -> None:
        """Add records of JSON values, each by a single append; where there is no root, nothing."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    for record in records:
                        line = json.dumps(record, separators=(",", ":")) + "\n"
                        base.append(_NAME, line.encode(), MAX_BYTES)

    def is_empty(self) -> bool:
        """Return whether there is nothing to take over."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    found = base.stat(_NAME)
                    return found is None or (stat.S_ISREG(found.st_mode) and not found.st_size)
        return True

    def take(self) -> list[list[Any]]:
        """Remove the journal and return its records; what is no record is left out."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    return _parsed(_taken(base))
        return []


def _taken(base: Folder) -> bytes:
    """Return the journal's bytes, once: nobody else gets them."""
    mine = f"{_NAME}-{unique_name()}"
    base.move(_NAME, base, mine)
    try:
        return base.read(mine, MAX_BYTES + _MAX_LINE)
    except Damaged:
        return b""
    finally:
        base.discard(mine)


def _parsed(data: bytes) -> list[list[Any]]:
    records = []
    for line in data.split(b"\n", _MAX_RECORDS)[:_MAX_RECORDS]:
        if not line.startswith(b"["):
            continue
        with suppress(BadDocument):
            record = parse_json(line, max_bytes=_MAX_LINE)
            if isinstance(record, list):
                records.append(record)
    return records
