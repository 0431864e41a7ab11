# SPDX-License-Identifier: Apache-2.0
"""
The database of the index. It is opened when something is first read from it.

diskcache holds it, as text only (see `textdisk`). A database that is damaged, or was tampered with,
is moved aside and started anew; nothing in it is executed, followed or deleted. One that cannot be
used at the moment is left alone for 30 s.
"""

from __future__ import annotations

import os
import stat
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.support.failing import is_passing

if TYPE_CHECKING:
    from jitgen.cache.textdisk import Table

T = TypeVar("T")

_TIMEOUT_S = 2.0  # to wait for another process that writes
_MOST_BYTES = 2**24  # of the database: some 60,000 entries, and seconds to read
_REST_S = 30.0  # to leave a database alone that could not be used

_inherited: list[object] = []  # connections of a parent process, which a child must not even close


class Database:
    """
    The database under one root. It opens at the first `run`.

    No method raises for anything that the disk or the database does. Safe to use from any thread,
    and in a forked child, which opens its own connection.

    Args:
        root: Where the database lies.

    Attributes:
        path: Its file.
        reason: Why it could not be used the last time; empty if it could.
    """

    def __init__(self, root: Root) -> None:
        self.reason = ""
        self._root = root
        self._directory = root.base / "index"
        self.path = self._directory / "cache.db"
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._table: Table | None = None
        self._closing: weakref.finalize[..., Database] | None = None
        self._inode = 0
        self._rests_until = 0.0

    def run(self, operation: Callable[[Table], T], default: T) -> T:
        """
        Return the result of `operation`; if the database fails, return `default`. The index
        degrades only here.
        """
        if self._pid != os.getpid():
            _inherited.append(self._table)
            self._table, self._lock, self._pid = None, threading.RLock(), os.getpid()
            self._closing = None
        with self._lock:
            if time.monotonic() < self._rests_until:
                return default
            for _ in range(2):
                try:
                    result = operation(self._open())
                    self.reason = ""
                    return result
                except Exception as error:  # a damaged database makes diskcache raise anything
                    reason = f"{type(error).__name__}: {error}"
                    if _is_passing(error):
                        break
                    self.move_aside(reason)
            self._rests_until, self.reason = time.monotonic() + _REST_S, reason
            warn_once("cache index", "doing without the index of the kernel cache: %s", reason)
        return default

    def move_aside(self, reason: str) -> None:
        """Move the database away, for the stated reason, and make an empty folder for the next."""
        from jitgen.cache.publishing import clear_way

        self.close()
        with suppress(OSError, CacheError), self._root.create() as base:
            clear_way(base, base, "index")
            with base.service("index"):
                pass
        events.emit(Event(kind=EventKind.QUARANTINE, kernel="index", detail=reason))

    def close(self) -> None:
        """Close the database; it opens again when it is needed."""
        if self._closing is not None and self._pid == os.getpid():
            self._closing()
            self._table = self._closing = None

    def _open(self) -> Table:
        """Return the open database; open it anew if its file was removed or replaced."""
        from jitgen.cache.textdisk import Table, UnsafeRow

        with suppress(OSError):
            if self._table is not None and self.path.lstat().st_ino == self._inode:
                return self._table
        self.close()
        try:
            with self._root.create() as base, base.service("index") as folder:
                _check_files(folder)
        except Damaged as damage:
            raise UnsafeRow(str(damage)) from None
        self._table = Table(self._directory, _TIMEOUT_S)
        # A store is dropped when its last user is; no caller has to close it.
        self._closing = weakref.finalize(self, _close, self._table, self._pid)
        self._inode = self.path.lstat().st_ino
        return self._table


def _close(table: Table, pid: int) -> None:
    """Close a database that this process opened."""
    if os.getpid() == pid:
        with suppress(Exception):
            table.close()


def _check_files(folder: Folder) -> None:
    """
    Raise Damaged if a file of the database is too large or no regular file: diskcache would follow
    a link.
    """
    for name in folder.names():
        found = folder.stat(name)
        if not name.startswith("cache.db") or found is None:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise Damaged("is no regular file", folder.path / name)
        if found.st_size > _MOST_BYTES:
            raise Damaged(f"has {found.st_size} bytes", folder.path / name)


def _is_passing(error: Exception) -> bool:
    """
    Return whether the index may be intact but cannot be used at the moment, so that it must not be
    replaced.
    """
    import sqlite3

    if isinstance(error, sqlite3.Error):
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_NOMEM,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_CANTOPEN,  # another user's folder, or no descriptors left
            sqlite3.SQLITE_IOERR,
        )
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return False
    # diskcache's Timeout is told by its name, for diskcache itself may be what is missing.
    is_busy = type(error).__name__ == "Timeout"
    return is_busy or isinstance(error, (OSError, CacheError, ImportError)) or is_passing(error)
