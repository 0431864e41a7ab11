# SPDX-License-Identifier: Apache-2.0
"""
Statistics of entries (names, sizes, uses) and remembered failures, in one database.

diskcache holds it, as text only (see `textdisk`). The entries are authoritative: if the index is
lost, only the counts of uses and the remembered failures are lost; everything else is read again
from the entries. An index that is damaged, or was tampered with, is moved aside and started anew;
nothing in it is executed, followed or deleted. 256 rows, one for each first byte of a key, hold
what is known of the entries, so that 10,000 of them are read in some 20 ms.

Opening costs tens of milliseconds, so neither loading a kernel nor publishing one does it: they
write to the `journal`. Only remembered failures, lists and counts open it.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jitgen.cache.entry import is_key
from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.failing import is_passing

if TYPE_CHECKING:
    from jitgen.cache.failures import Failure
    from jitgen.cache.rows import Change, IndexRow
    from jitgen.cache.textdisk import Table
    from jitgen.cache.traffic import Traffic

T = TypeVar("T")

_TIMEOUT_S = 2.0  # to wait for another process that writes
_MOST_BYTES = 2**24  # of the database: some 60,000 entries, and seconds to read
_REST_S = 30.0  # to leave an index alone that could not be used
_FAILURE = "failure:"
_TRAFFIC = "traffic"
_JOURNAL = "journal"
_MAX_LINE = 4096  # bytes of a line of the journal
_MAX_RECORDS = 2**16  # read at once; further records are lost, as are those beyond its size
MOST_JOURNAL_BYTES = 4 * 2**20
"""Bytes of the journal above which uses are not recorded, until a process opens the index."""

_inherited: list[object] = []  # connections of a parent process, which a child must not even close


class NullIndex:
    """
    The index of a store without one: failures are remembered by this process only, and uses are not
    recorded.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        self._failures: dict[str, Failure] = {}

    def record_use(self, key: str, tier: str = "disk") -> None:
        """Do nothing; an `Index` notes that `key` was loaded from `tier`."""

    def record_miss(self, key: str, name: str, tier: str, seconds: float) -> None:
        """
        Do nothing; an `Index` notes that kernel `name` was not on this machine: that it came from
        `tier` instead, after `seconds`.
        """

    def traffic(self) -> Traffic:
        """Return empty counts of where kernels came from: nothing is recorded here."""
        from jitgen.cache.traffic import read

        return read(None)

    def record_entry(self, key: str, row: IndexRow) -> None:
        """Do nothing; an `Index` notes that `key` was published."""

    def forget(self, keys: Iterable[str]) -> None:
        """Do nothing; an `Index` notes that entries are gone."""

    def learn(self, rows: Mapping[str, IndexRow]) -> None:
        """
        Do nothing; an `Index` adds rows that were read from the entries, and keeps recorded uses.
        """

    def rows(self) -> dict[str, IndexRow]:
        """
        Return the known rows by key: none. Those of an `Index` may lack entries, or be of removed
        ones.
        """
        return {}

    def uses(self, key: str) -> tuple[int, float]:
        """Return how often `key` was loaded from the disk, and when last (seconds since 1970)."""
        row = self.rows().get(key)
        return (row.hits, row.last_use) if row else (0, 0.0)

    def remember_failure(self, key: str, name: str, reason: str, ttl_s: float) -> None:
        """Remember for `ttl_s` seconds that kernel `name` did not compile; 0 forgets it."""
        self._failures.pop(key, None)
        if ttl_s > 0:
            from jitgen.cache.failures import failure

            self._failures[key] = failure(name, reason, ttl_s)

    def failure(self, key: str) -> Failure | None:
        """Return the failure of `key` if it is still remembered."""
        found = self._failures.get(key)
        return None if found is None or found.is_over else found

    def forget_failure(self, key: str) -> None:
        """Forget the failure of `key`."""
        self._failures.pop(key, None)

    def failures(self) -> dict[str, Failure]:
        """Return the remembered failures by key."""
        return {key: found for key in list(self._failures) if (found := self.failure(key))}

    def stats(self) -> dict[str, int]:
        """Return totals: ``entries`` that are known, ``hits``, and ``failures``."""
        rows = self.rows().values()
        hits = sum(row.hits for row in rows)
        return {"entries": len(rows), "hits": hits, "failures": len(self.failures())}

    def reset(self) -> None:
        """Forget the failures."""
        self._failures.clear()

    def close(self) -> None:
        """Do nothing; an `Index` closes its database, which opens again when it is needed."""


class Index(NullIndex):
    """
    The index under one root: a database, and a journal of what it has not taken over yet.

    No method raises for anything that the disk or the database does. Safe to use from any thread,
    and in a forked child, which opens its own connection.
    """

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root
        self._directory = root.base / "index"
        self._database = self._directory / "cache.db"
        self._hints = self._directory / "failed"
        self._journal = Journal(root)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._table: Table | None = None
        self._closing: weakref.finalize[..., Index] | None = None
        self._inode = 0
        self._rests_until = 0.0

    def record_use(self, key: str, tier: str = "disk") -> None:
        """Note that `key` was loaded from `tier`. Costs one append; the database stays closed."""
        self._journal.append(("use", key, tier, round(time.time())))

    def record_miss(self, key: str, name: str, tier: str, seconds: float) -> None:
        """
        Note that kernel `name` was not on this machine: that it came from `tier` instead, after
        `seconds`. Costs one append.
        """
        ms = max(0, round(seconds * 1000))
        self._journal.append(("miss", key, name, tier, ms, round(time.time())))

    def traffic(self) -> Traffic:
        """Return where kernels came from, day by day."""
        from jitgen.cache.traffic import read

        self.rows()  # takes the journal over
        if not _exists(self._database):
            return read(None)
        return read(self._run(lambda table: table.get(_TRAFFIC), None))

    def record_entry(self, key: str, row: IndexRow) -> None:
        """Note that `key` was published. Costs one append."""
        self._journal.append(("new", key, row.name, row.arch, row.size_bytes, row.disk_bytes))

    def forget(self, keys: Iterable[str]) -> None:
        """Note that entries are gone. Costs one append for each."""
        if records := [("gone", key) for key in keys]:
            self._journal.append(*records)

    def learn(self, rows: Mapping[str, IndexRow]) -> None:
        """Add rows that were read from the entries; recorded uses are kept."""
        from jitgen.cache.rows import change_rows, merged

        if rows:
            self._run(
                lambda table: change_rows(table, {key: [merged(row)] for key, row in rows.items()}),
                None,
            )

    def rows(self) -> dict[str, IndexRow]:
        """
        Return the known rows by key; some entries may be missing, and some rows be of removed
        entries.
        """
        if not _exists(self._database) and self._journal.is_empty():
            return {}
        return self._run(self._rows, {})

    def remember_failure(self, key: str, name: str, reason: str, ttl_s: float) -> None:
        """Remember for `ttl_s` seconds that kernel `name` did not compile; 0 forgets it."""
        if ttl_s <= 0:
            self.forget_failure(key)
            return
        super().remember_failure(key, name, reason, ttl_s)
        text = self._failures[key].to_json()

        def remember(table: Table) -> bool:
            table.drop_expired()
            table.set(_FAILURE + key, text, expire_s=ttl_s)
            self._hints.mkdir(mode=0o700, exist_ok=True)
            (self._hints / key).touch(mode=0o600)
            return True

        if is_key(key) and self._run(remember, False):
            del self._failures[key]  # from now on the index says so, or that it was forgotten

    def failure(self, key: str) -> Failure | None:
        """
        Return the failure of `key` if it is still remembered.

        An empty file marks that the index may have one, so that a miss costs one access to the disk
        instead of opening a database.
        """
        if not is_key(key) or not _exists(self._hints / key):
            return super().failure(key)
        from jitgen.cache.failures import parse_failure

        texts: list[str | None] = self._run(lambda table: [table.get(_FAILURE + key)], [])
        found = parse_failure(texts[0]) if texts else None
        if texts and (found is None or found.is_over):
            self._drop_hint(key)
            return None
        return found

    def forget_failure(self, key: str) -> None:
        """Forget the failure of `key`."""
        super().forget_failure(key)
        if is_key(key) and _exists(self._hints / key):
            self._run(lambda table: table.delete(_FAILURE + key), None)
            self._drop_hint(key)

    def failures(self) -> dict[str, Failure]:
        """Return the remembered failures by key."""
        try:
            hints = sorted(each.name for each in self._hints.iterdir())
        except OSError:
            hints = []
        found = {key: known for key in hints if (known := self.failure(key))}
        return super().failures() | found

    def reset(self) -> None:
        """Move the index aside and start anew."""
        super().reset()
        self._move_aside("it is rebuilt")

    def close(self) -> None:
        """Close the database; it opens again when it is needed."""
        if self._closing is not None and self._pid == os.getpid():
            self._closing()
            self._table = self._closing = None

    def _drop_hint(self, key: str) -> None:
        with suppress(OSError):
            (self._hints / key).unlink()

    def _rows(self, table: Table) -> dict[str, IndexRow]:
        from jitgen.cache.rows import SHARDS, change_rows, load_rows, parse_record

        records = [] if self._journal.is_empty() else self._journal.take()
        changes: dict[str, list[Change]] = {}
        for record in records:
            key, change = parse_record(record)
            if is_key(key):
                changes.setdefault(key, []).append(change)
        if changes:
            change_rows(table, changes)
        if records:
            from jitgen.cache.traffic import counted

            table.set(_TRAFFIC, counted(table.get(_TRAFFIC), records))
        return {key: row for shard in SHARDS for key, row in load_rows(table, shard).items()}

    def _run(self, operation: Callable[[Table], T], default: T) -> T:
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
                    self._move_aside(reason)
            self._rests_until, self.reason = time.monotonic() + _REST_S, reason
            warn_once("cache index", "doing without the index of the kernel cache: %s", reason)
        return default

    def _open(self) -> Table:
        """Return the open database; open it anew if its file was removed or replaced."""
        from jitgen.cache.textdisk import Table, UnsafeRow

        with suppress(OSError):
            if self._table is not None and self._database.lstat().st_ino == self._inode:
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
        self._inode = self._database.lstat().st_ino
        return self._table

    def _move_aside(self, reason: str) -> None:
        from jitgen.cache.publishing import clear_way

        self.close()
        with suppress(OSError, CacheError), self._root.create() as base:
            clear_way(base, base, "index")
            with base.service("index"):
                pass
        events.emit(Event(kind=EventKind.QUARANTINE, kernel="index", detail=reason))


def _close(table: Table, pid: int) -> None:
    """Close a database that this process opened."""
    if os.getpid() == pid:
        with suppress(Exception):
            table.close()


def _exists(path: Path) -> bool:
    """
    Return whether the file exists; False if that cannot be found out (`Path.exists` would raise an
    error).
    """
    try:
        path.lstat()
    except OSError:
        return False
    return True


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


class Journal:
    """
    Events since the index was last opened: a file with one JSON array a line.

    Opening SQLite costs more than loading a kernel, so a process which only loads kernels appends
    here, 20 us each, and the next one that opens the index takes the lines over. A line is written
    by a single append. A line that is lost or torn costs one count of a statistic. No method raises
    because of the disk.

    Args:
        root: Where the file lies.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    def append(self, *records: tuple[object, ...]) -> None:
        """Add records of JSON values, each by a single append. Does nothing without a root."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    for record in records:
                        line = json.dumps(record, separators=(",", ":")) + "\n"
                        base.append(_JOURNAL, line.encode(), MOST_JOURNAL_BYTES)

    def is_empty(self) -> bool:
        """Return whether the journal has no records."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    found = base.stat(_JOURNAL)
                    return found is None or (stat.S_ISREG(found.st_mode) and not found.st_size)
        return True

    def take(self) -> list[list[object]]:
        """Remove the journal and return its records, without malformed ones."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    return _records(_taken(base))
        return []


def _taken(base: Folder) -> bytes:
    """Remove the journal and return its bytes, which no other process gets."""
    mine = f"{_JOURNAL}-{unique_name()}"
    base.move(_JOURNAL, base, mine)
    try:
        return base.read(mine, MOST_JOURNAL_BYTES + _MAX_LINE)
    except Damaged:
        return b""
    finally:
        base.discard(mine)


def _records(data: bytes) -> list[list[object]]:
    records = []
    for line in data.split(b"\n", _MAX_RECORDS)[:_MAX_RECORDS]:
        if not line.startswith(b"["):
            continue
        with suppress(BadDocument):
            record = parse_json(line, max_bytes=_MAX_LINE)
            if isinstance(record, list):
                records.append(record)
    return records
