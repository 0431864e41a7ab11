# SPDX-License-Identifier: Apache-2.0
"""
What this service built itself: digests of records, in a database of its own.

An entry whose signature no longer counts, after a key was rotated or revoked, is signed again if it
is the service's own work, and no signature can say that any more. So it is written down when it is
built. What cannot be read counts as built by somebody else, and is then compiled again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from jitgen.server.log import Log

_FILE = "built.sqlite"
_MOST = 500_000  # records: 40 MB, and more entries than a store of 20 GiB has
_SPARE = 1000  # that may be too many before the oldest are removed
_WAIT_S = 5.0


class Built:
    """
    The records of one service. Its methods block, and may be called from any thread.

    Args:
        folder: Where they are kept.
        log: Where trouble is told: a record that is not kept costs a compile one day.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self._path = folder / _FILE
        self._log = log

    def add(self, record: bytes) -> None:
        """Note that the entry whose ``meta.json`` is `record` was built here."""
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
