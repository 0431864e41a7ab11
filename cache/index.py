# SPDX-License-Identifier: Apache-2.0
"""
Statistics of entries (names, sizes, uses) and remembered failures, in one database.

The entries are authoritative: if the index is lost, only the counts of uses and the remembered
failures are lost; everything else is read again from the entries. 256 rows of the `database`, one
for each first byte of a key, hold what is known of the entries, so that 10,000 of them are read in
some 20 ms.

Opening costs tens of milliseconds, so neither loading a kernel nor publishing one does it: they
write to the `journal`. Only remembered failures, lists and counts open it.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jitgen.cache.entry import is_key
from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.support.documents import BadDocument, parse_json

if TYPE_CHECKING:
    from jitgen.cache.database import Database
    from jitgen.cache.failures import Failure
    from jitgen.cache.rows import Change, IndexRow
    from jitgen.cache.textdisk import Table
    from jitgen.cache.traffic import Traffic

T = TypeVar("T")

_FAILURE = "failure:"
_TRAFFIC = "traffic"
_JOURNAL = "journal"
_MAX_LINE = 4096  # bytes of a line of the journal
_MAX_RECORDS = 2**16  # read at once; further records are lost, as are those beyond its size
MOST_JOURNAL_BYTES = 4 * 2**20
"""Bytes of the journal above which uses are not recorded, until a process opens the index."""


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
    and in a forked child.
    """

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root
        self._hints = root.base / "index" / "failed"
        self._journal = Journal(root)

    @cached_property
    def _database(self) -> Database:
        from jitgen.cache.database import Database

        return Database(self._root)

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

        if not _exists(self._database.path) and self._journal.is_empty():
            return read(None)
        return read(self._run(self._traffic, None))

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
        if not _exists(self._database.path) and self._journal.is_empty():
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
        self._database.move_aside("it is rebuilt")

    def close(self) -> None:
        """Close the database; it opens again when it is needed."""
        self._database.close()

    def _drop_hint(self, key: str) -> None:
        with suppress(OSError):
            (self._hints / key).unlink()

    def _rows(self, table: Table) -> dict[str, IndexRow]:
        from jitgen.cache.rows import SHARDS, load_rows

        self._take_over(table)
        with table.reading():
            return {key: row for shard in SHARDS for key, row in load_rows(table, shard).items()}

    def _traffic(self, table: Table) -> str | None:
        self._take_over(table)
        return table.get(_TRAFFIC)

    def _take_over(self, table: Table) -> None:
        """Enter the records of the journal into the rows and the counts of traffic."""
        from jitgen.cache.rows import change_rows, parse_record
        from jitgen.cache.traffic import counted

        records = [] if self._journal.is_empty() else self._journal.take()
        if not records:
            return
        changes: dict[str, list[Change]] = {}
        for record in records:
            key, change = parse_record(record)
            if is_key(key):
                changes.setdefault(key, []).append(change)
        with table.transaction():
            change_rows(table, changes)
            table.set(_TRAFFIC, counted(table.get(_TRAFFIC), records))

    def _run(self, operation: Callable[[Table], T], default: T) -> T:
        """Return the result of `operation`; if the database fails, return `default`."""
        result = self._database.run(operation, default)
        self.reason = self._database.reason
        return result


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
