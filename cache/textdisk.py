# SPDX-License-Identifier: Apache-2.0
"""
diskcache, reduced to a table of text.

diskcache pickles by default, and the row in the database says whether to unpickle: a user who can
write the file can run code (CVE-2025-69872), with ``JSONDisk`` as well. Rows may also name files,
which it reads and deletes. `TextDisk` does neither: keys and values are text or bytes inside the
database, and any other row raises `UnsafeRow` before anything is decoded, opened or removed.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn, cast

import diskcache

DATABASE = "cache.db"
MAX_BYTES = 2**22  # of a row: some 20,000 entries whose keys share a byte, 5 million in all
_STEP, _MOST_STEPS = 10**5, 200  # instructions of SQLite's virtual machine: 1 to 2 s in all
_RAW = 1  # diskcache's mode of a value that lies in the database as it is
_SETTINGS = {
    # All of them, each time: diskcache keeps settings in the database and would inherit others.
    "cull_limit": 0,
    "eviction_policy": "none",
    "size_limit": 2**40,
    "statistics": 0,
    "tag_index": 0,
    "disk_min_file_size": 2**31,
    "disk_pickle_protocol": 0,
    "sqlite_auto_vacuum": 1,
    "sqlite_cache_size": 2**11,
    # A write-ahead log is mapped into memory, and truncating a mapped file ends the process.
    "sqlite_journal_mode": "truncate",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 0,  # a power failure may cost the index, which is rebuilt
}


class UnsafeRow(ValueError):
    """A row of the database is not one that jitgen wrote."""


class TextDisk(diskcache.Disk):  # diskcache has no types
    """Keys are text, values are text or bytes; nothing is pickled, and no file is ever named."""

    def put(self, key: object) -> tuple[str, bool]:
        """Return `key` as the database holds it."""
        if type(key) is not str:
            raise UnsafeRow(f"a key must be text, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        """Return the key of a row."""
        if type(key) is not str or not raw:
            raise UnsafeRow("the index holds a key that is not text")
        return key

    def store(
        self,
        value: object,
        read: bool,
        key: object = None,  # noqa: ARG002  # diskcache's signature
    ) -> tuple[int, int, None, str | memoryview]:
        """Return size, mode, file name and value as the database holds them."""
        if read or type(value) not in (str, bytes):
            raise UnsafeRow(f"a value must be text or bytes, not {type(value).__name__}")
        return (
            0,
            _RAW,
            None,
            value if isinstance(value, str) else sqlite3.Binary(cast("bytes", value)),
        )

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> str | bytes:
        """Return the value of a row."""
        if mode != _RAW or filename is not None or read or type(value) not in (str, bytes):
            raise UnsafeRow(f"the index holds a row of mode {mode!r} that names {filename!r}")
        return cast("str | bytes", value)

    def filename(self, *_: object, **__: object) -> NoReturn:
        """Raise `UnsafeRow`: values lie in the database, never in files."""
        raise UnsafeRow("the index keeps no files")

    def remove(self, file_path: object) -> None:
        """Remove nothing, whatever a row names."""


class _Cache(diskcache.Cache):
    """
    diskcache over one connection that refuses rows too long for memory, and statements that never
    end, because a database may have been tampered with.

    diskcache itself has a connection for each thread, which no other thread may close. Only one
    thread at a time uses the index, so one connection is enough, and its last user can close it.

    Each time it starts, diskcache writes every setting in two transactions, each table in one, and
    waits 60 s for a lock. Here one transaction has them all, and waits `timeout_s` seconds.

    Raises:
        sqlite3.Error: Another process writes for longer than that, or the file is no database.
    """

    _only: sqlite3.Connection | None = None
    _is_open = False

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._only = sqlite3.connect(
            directory / DATABASE, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            self._only.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
            for name, value in _SETTINGS.items():  # some cannot be set within a transaction
                if name.startswith("sqlite_"):
                    self._set(name.removeprefix("sqlite_"), value)
            self._con.execute("BEGIN IMMEDIATE")
            super().__init__(str(directory), timeout=timeout_s, disk=TextDisk, **_SETTINGS)
            self._con.execute("COMMIT")
        except BaseException:
            self._only.close()  # nothing else knows the connection
            raise
        self._is_open = True

    @property
    def _con(self) -> sqlite3.Connection:
        if self._only is None:
            raise sqlite3.ProgrammingError("the index is closed")
        steps = itertools.count()  # from 0 for each statement: each asks for the connection
        self._only.set_progress_handler(lambda: next(steps) >= _MOST_STEPS, _STEP)
        return self._only

    def _set(self, pragma: str, value: object) -> None:
        """Set `pragma`, unless it has `value`: setting some of them writes to the database."""
        if self._con.execute(f"PRAGMA {pragma}").fetchone() != (value,):
            self._con.execute(f"PRAGMA {pragma} = {value}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the database in the with block, under one lock instead of many."""
        connection = self._con
        connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.rollback()

    def close(self) -> None:
        """
        Close the connection for good: only a new object sets one up again. While an object is set
        up, do nothing: diskcache would open its connection once more there.
        """
        if self._is_open and self._only is not None:
            self._only.close()
            self._only = None


class Table:
    """The part of ``diskcache.Cache`` that the index uses, typed."""

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._cache = _Cache(directory, timeout_s)

    def get(self, key: str) -> str | None:
        """Return the text under `key`; None where there is none, or it has expired."""
        value = self._cache.get(key)
        if value is not None and type(value) is not str:
            raise UnsafeRow("the index holds a value that is not text")
        return value

    def set(self, key: str, value: str, expire_s: float | None = None) -> None:
        """Store `value`, for `expire_s` seconds if given."""
        self._cache.set(key, value, expire=expire_s)

    def delete(self, key: str) -> None:
        """Forget `key`."""
        self._cache.delete(key)

    def drop_expired(self) -> None:
        """Remove the rows whose time is over; reading ignores them anyway."""
        self._cache.expire()

    def transaction(self) -> AbstractContextManager[None]:
        """Make everything in the with block one transaction, which no other process can enter."""
        return cast("AbstractContextManager[None]", self._cache.transact())

    def reading(self) -> AbstractContextManager[None]:
        """Read one state of the table in the with block, at the cost of a single lock."""
        return self._cache.reading()

    def __iter__(self) -> Iterator[str]:
        return iter(self._cache)

    def close(self) -> None:
        """Close the connection, which all threads share."""
        self._cache.close()
