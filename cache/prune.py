# SPDX-License-Identifier: Apache-2.0
"""
Keeps the store below its size limit, and removes leftovers.

The least recently used entries go first, by the time of their folders (never by the access times
of files, which many mounts do not keep). Pinned entries, those of the last minute and those whose
lock is held are spared. Sizes are allocated blocks, as ``du`` counts them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from jitgen.cache import inventory, publishing
from jitgen.cache.entry import disk_bytes, is_key
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.index import NullIndex
from jitgen.cache.publishing import age, is_held, sweep, sweep_beside
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache.rows import IndexRow

LOW_WATER = 0.8
"""A publish that finds the store over its limit prunes it to this part of the limit."""

GRACE_S = 60.0
"""Entries that were published or used in the last `GRACE_S` seconds stay."""

QUARANTINE_S = 86400.0
"""Damaged entries stay for `QUARANTINE_S` seconds, so that they can be examined."""

ALL_S = -math.inf
"""Age in seconds that every file exceeds, also one whose time lies in the future."""

STALE_S = 3600.0
"""Age in seconds from which every draft is removed that no living process holds."""

SETTLING_S = 0.1
"""
A draft is locked within this number of seconds after its creation; an unlocked older one is
abandoned.
"""

LEDGER = "size"
_LEDGER = re.compile(r"=\d{1,18}\n(\+\d{1,18}\n)*")
_RESCAN = 512  # publishes after which the ledger is compared with the disk
_MAX_LEDGER = 2**16  # bytes
_TOGETHER = 64  # removed entries that are reported to the index together


@frozen
class Pruned:
    """
    Files that pruning removed, or would remove.

    Attributes:
        removed: Entries, the least recently used first.
        freed_bytes: Disk space of the removed files.
        kept_bytes: Disk space of the files that remain.
        swept: Names of dead drafts and of damaged entries that were removed as well.
        is_dry_run: Whether nothing was changed.
    """

    removed: tuple[inventory.EntryInfo, ...]
    freed_bytes: int
    kept_bytes: int
    swept: tuple[str, ...]
    is_dry_run: bool


def nothing(*, is_dry_run: bool) -> Pruned:
    """Return the result of pruning without a store: nothing is removed."""
    return Pruned(removed=(), freed_bytes=0, kept_bytes=0, swept=(), is_dry_run=is_dry_run)


def prune(
    base: Folder,
    index: NullIndex,
    limit_bytes: int,
    *,
    target_bytes: int,
    swept: Sequence[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """
    Prune the store to `target_bytes` if it takes more than `limit_bytes`; 0: there is no limit.

    Returns:
        What was removed, with what was `swept` before. `kept_bytes` is above the target where too
        much is spared, or cannot be removed.
    """
    found = [
        (age(os.fstat(folder.descriptor).st_mtime), key, disk_bytes(folder))
        for key, folder in inventory.each(base)
    ]
    kept = total = sum(size for _, _, size in found)
    removed = []
    spared = _spared(base) if 0 < limit_bytes < total else None
    if spared is not None:
        rows = index.rows()
        with Removing(base, index, is_dry_run=dry_run) as removing:
            for unused_s, key, size in sorted(found, key=lambda item: (-item[0], item[1])):
                if kept <= target_bytes or unused_s < GRACE_S:
                    break  # all entries after this one were used later
                if key in spared or removing.is_locked(key):
                    continue
                if info := removing.remove(key, rows.get(key)):
                    removed.append(info)
                    kept -= size
    if not dry_run:
        write_ledger(base, kept)
        for info in removed:
            events.emit(
                Event(kind=EventKind.EVICT, kernel=info.name, key=info.key, detail="size limit")
            )
    return Pruned(
        removed=tuple(removed),
        freed_bytes=total - kept,
        kept_bytes=kept,
        swept=tuple(swept),
        is_dry_run=dry_run,
    )


def _spared(base: Folder) -> frozenset[str] | None:
    """Return the pinned keys; None if they cannot be read: then every entry is spared."""
    try:
        with base.folder("pins") as pins:
            return frozenset(pins.names())
    except FileNotFoundError:
        return frozenset()
    except (OSError, Damaged) as error:
        warn_once("pins", "nothing is pruned: what is pinned cannot be read: %s", error)
        return None


class Removing:
    """
    Removes entries one after the other; a context manager that keeps the folders for this open.

    A reader that has read an entry is not affected by its removal.
    """

    def __init__(self, base: Folder, index: NullIndex, *, is_dry_run: bool = False) -> None:
        self._base, self._index, self._is_dry_run = base, index, is_dry_run
        self._opened, self._for_drafts = ExitStack(), ExitStack()
        self._locks: Folder | None = None
        self._drafts: Folder | None = None
        self._gone: list[str] = []

    def __enter__(self) -> Self:
        """Open the folders."""
        with suppress(OSError, Damaged):
            self._locks = self._opened.enter_context(self._base.folder("locks"))
        if not self._is_dry_run:
            self._open_drafts()
        return self

    def _open_drafts(self) -> None:
        self._drafts = None
        self._for_drafts.close()
        with suppress(OSError, Damaged):
            self._drafts = self._for_drafts.enter_context(self._base.service("tmp"))

    def __exit__(self, *_: object) -> None:
        """Close the folders, and remove the rows of removed entries from the index."""
        self._for_drafts.close()
        self._opened.close()
        self._forget()

    def is_locked(self, key: str) -> bool:
        """Return whether another process holds the lock of `key`."""
        return self._locks is not None and is_held(self._locks, f"{key}.lock")

    def remove(self, key: str, row: IndexRow | None = None) -> inventory.EntryInfo | None:
        """
        Remove entry `key`, whose row in the index is `row`, except in a dry run; return its
        `EntryInfo`, None if there is no such entry or it cannot be removed.
        """
        with suppress(OSError, Damaged), self._base.below("entries", key[:2]) as shard:
            info = inventory.line_in(shard, key, row, is_pinned=False)
            if info is not None and (self._is_dry_run or self._is_gone(shard, key)):
                return info
        return None

    def is_removed(self, key: str) -> bool:
        """Remove entry `key`; returns whether it was there and is gone."""
        with suppress(OSError, Damaged), self._base.below("entries", key[:2]) as shard:
            return self._is_gone(shard, key)
        return False

    def _is_gone(self, shard: Folder, key: str) -> bool:
        if self._drafts is None or not publishing.remove(shard, key, self._drafts):
            if shard.stat(key) is None:
                return False  # another process removed it
            self._open_drafts()  # another process may have put another folder there
            if self._drafts is None or not publishing.remove(shard, key, self._drafts):
                return False
        self._gone.append(key)
        if len(self._gone) >= _TOGETHER:
            self._forget()
        return True

    def _forget(self) -> None:
        gone, self._gone = self._gone, []
        self._index.forget(gone)


def remove(base: Folder, index: NullIndex, key: str) -> bool:
    """Remove entry `key`; returns whether it was there and is gone."""
    with Removing(base, index) as removing:
        return removing.is_removed(key)


def sweep_leftovers(
    base: Folder, *, quarantine_s: float, drafts_s: float, dry_run: bool = False
) -> list[str]:
    """
    Remove drafts that are older than `drafts_s` and whose process is gone, entries that were in
    quarantine for `quarantine_s`, and files that were renamed aside; returns the names.
    """
    swept: list[str] = []
    for name, seconds in (("tmp", drafts_s), ("quarantine", quarantine_s)):
        with suppress(OSError, Damaged), base.folder(name) as folder:
            swept += sweep(folder, seconds, dry_run=dry_run)
    with suppress(OSError, Damaged), base.folder("entries") as entries:
        swept += sweep_beside(entries, dry_run=dry_run)
        for shard in entries.names():
            with suppress(OSError, Damaged), entries.folder(shard) as folder:
                swept += sweep_beside(folder, dry_run=dry_run)
    with suppress(OSError):
        swept += sweep_beside(base, dry_run=dry_run)
    return swept


def sweep_rest(base: Folder) -> None:
    """
    Remove files that no entry needs: pins, journals that were being taken over, anything that is no
    entry.
    """
    with suppress(OSError):
        for name in base.names():
            if name.startswith("journal-"):
                base.discard(name)
    with suppress(OSError, Damaged), base.folder("pins") as pins:
        for name in pins.names():
            pins.discard(name)
    with suppress(OSError, Damaged), base.folder("entries") as entries:
        for name in entries.names():
            try:
                with entries.folder(name) as shard:
                    for other in (other for other in shard.names() if not is_key(other)):
                        shard.discard(other)
            except FileNotFoundError:
                continue
            except Damaged:
                entries.discard(name)


def grow_ledger(base: Folder, num_bytes: int) -> int | None:
    """
    Record that an entry of `num_bytes` was published; returns the size of the store, or None.

    The ledger is a file with the size at the last scan of the disk, ``=123``, and one line ``+45``
    for each publish since then, so that a publish need not scan all entries. Removed entries are
    not recorded, so the sum may be too large, which only leads to a scan. None: the ledger is
    missing or damaged, or a scan is due.
    """
    try:
        if base.stat(LEDGER) is None:
            return None
        base.append(LEDGER, b"+%d\n" % num_bytes, _MAX_LEDGER)
        text = base.read(LEDGER, _MAX_LEDGER).decode("ascii")
    except (OSError, Damaged, ValueError):
        return None
    if _LEDGER.fullmatch(text) is None or text.count("+") > _RESCAN:
        return None
    return sum(int(line[1:]) for line in text.splitlines())


def write_ledger(base: Folder, num_bytes: int) -> None:
    """Write a new ledger: the entries take `num_bytes`."""
    with suppress(OSError, Damaged), base.service("tmp") as drafts:
        base.replace(LEDGER, b"=%d\n" % num_bytes, drafts, sync=False)
