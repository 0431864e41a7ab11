# SPDX-License-Identifier: Apache-2.0
"""
What happened since the index was last opened, one JSON array for each line.

Opening SQLite costs more than loading a kernel, so that a process which only loads kernels appends
here, 20 us each, and the next one that opens the index takes the lines over. A line is written
by a single append. A line that is lost or torn costs one count of a statistic.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitgen.cache.area import unique_name

MAX_BYTES = 4 * 2**20
"""Uses are not recorded in a journal of this size, until somebody takes it over."""

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Journal:
    """The journal in folder `directory`; no method raises for what the disk does."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal"

    def append(self, *record: Any) -> None:
        """Add one record of JSON values."""
        line = json.dumps(record, separators=(",", ":")) + "\n"
        with suppress(OSError):
            descriptor = os.open(self._path, _APPEND, 0o600)
            try:
                if os.fstat(descriptor).st_size < MAX_BYTES:
                    os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    def is_empty(self) -> bool:
        """Return whether there is nothing to take over."""
        try:
            return self._path.lstat().st_size == 0
        except OSError:
            return True

    def take(self) -> list[list[Any]]:
        """Remove the journal and return its records; what is no record is left out."""
        mine = self._path.with_name(f"journal-{unique_name()}")
        try:
            self._path.rename(mine)
            descriptor = os.open(mine, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
                lines = stream.read(2 * MAX_BYTES).splitlines()
        except OSError:
            lines = []
        with suppress(OSError):
            mine.unlink()
        records = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, list):
                    records.append(record)
        return records
