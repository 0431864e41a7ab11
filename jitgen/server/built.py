# SPDX-License-Identifier: Apache-2.0
"""
A database of the entries that this service built itself: the digests of their records.

When a key was rotated or revoked, the service signs its own entries again. By then no valid
signature tells which entries those are, so each is recorded here when it is built. If the database
cannot be read, entries count as built elsewhere and are compiled again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from jitgen.server.log import Log

_FILE = "built.sqlite"
_MOST = 500_000  # records: 40 MB, and more entries than a store of 20 GiB has
_SPARE = 1000  # records above _MOST before the oldest are removed
_WAIT_S = 5.0


class Built:
    """
    The database of the entries that a service has compiled itself. Its methods block, and may be
    called from any thread.

    Args:
        folder: Folder of the database.
        log: Receives errors. A record that is not stored may cost a second compile of its kernel
            later.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self._path = folder / _FILE
        self._log = log

    def add(self, record: bytes) -> None:
        """Record that the entry whose ``meta.json`` is `record` was built here."""
        try:
            self._add(record)
        except sqlite3.OperationalError as error:  # it is busy, or the disk is full
            self._told(error)
        except sqlite3.DatabaseError as error:  # it is damaged
            self._told(error)
            with suppress(OSError, sqlite3.Error):
                self._path.replace(self._path.with_suffix(".damaged"))
                self._add(record)

    def has(self, record: bytes) -> bool:
        """Return whether the entry whose ``meta.json`` is `record` was built here."""
        if not self._path.exists():
            return False
        try:
            with closing(self._opened()) as database:
                found = database.execute("SELECT 1 FROM built WHERE record = ?", _digest(record))
                return found.fetchone() is not None
        except sqlite3.Error as error:
            self._told(error)
            return False

    def _add(self, record: bytes) -> None:
        with closing(self._opened()) as database, database:
            database.execute("INSERT OR IGNORE INTO built (record) VALUES (?)", _digest(record))
            (count, first) = database.execute("SELECT count(*), min(id) FROM built").fetchone()
            if count > _MOST + _SPARE:
                database.execute("DELETE FROM built WHERE id < ?", (first + count - _MOST,))

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_WAIT_S)
        try:
            database.execute(
                "CREATE TABLE IF NOT EXISTS built "
                "(id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL UNIQUE)"
            )
        except BaseException:
            database.close()
            raise
        return database

    def _told(self, error: sqlite3.Error) -> None:
        self._log.event("built not read", level="error", file=str(self._path), reason=str(error))


def _digest(record: bytes) -> tuple[bytes]:
    return (hashlib.sha256(record).digest(),)
