# SPDX-License-Identifier: Apache-2.0
"""
Keep the store below its size limit, and remove what nobody will miss.

The least recently used entries go first, by the time of their folders (never by the access times
of files, which many mounts do not keep). Spared are pinned entries, those of the last minute, and
those whose lock is held. Sizes are allocated blocks, as ``du`` counts them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitgen.cache import survey
from jitgen.cache.area import STALE_S, discard, sweep, unique_name
from jitgen.cache.files import disk_bytes
from jitgen.cache.index import NullIndex
from jitgen.cache.lock import is_locked
from jitgen.cache.root import Root
from jitgen.events import Event, EventKind, events

LOW_WATER = 0.8
"""A publish that finds the store over its limit prunes it to this part of the limit."""

GRACE_S = 60.0
"""Entries that were published or used in the last `GRACE_S` seconds stay."""

QUARANTINE_S = 86400.0
"""Damaged entries stay for `QUARANTINE_S` seconds, for whoever wants to look at one."""

_LEDGER = re.compile(r"=\d{1,18}\n(\+\d{1,18}\n)*")
_RESCAN = 512  # publishes after which the ledger is compared with the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """
    What pruning removed, or would remove.

    Attributes:
        removed: Entries, the least recently used first.
        freed_bytes: What they took on the disk.
        kept_bytes: What the rest takes.
        swept: Names of stale build areas and of damaged entries that were removed as well.
        is_dry_run: Whether nothing was changed.
    """

    removed: tuple[survey.EntryInfo, ...]
    freed_bytes: int
    kept_bytes: int
    swept: tuple[str, ...]
    is_dry_run: bool


def prune(
    root: Root,
    index: NullIndex,
    limit_bytes: int,
    *,
    target_bytes: int,
    swept: Sequence[Path] = (),
    dry_run: bool = False,
) -> Pruned:
    """
    Prune the store to `target_bytes` if it takes more than `limit_bytes`; 0: there is no limit.

    Returns:
        What was removed, with what was `swept` before. `kept_bytes` is above the target where too
        much is spared.
    """
    found = []
    for key in survey.keys(root):
        folder = root.entry(key)
        with suppress(OSError):
            found.append((folder.lstat().st_mtime, key, disk_bytes(folder)))
    kept = total = sum(size for _, _, size in found)
    removed = []
    if 0 < limit_bytes < total:
        spared = survey.pinned(root)
        rows = index.rows()
        for used, key, size in sorted(found):
            if kept <= target_bytes or time.time() - used < GRACE_S:
                break  # all that follow were used later
            if key in spared or is_locked(root.lock(key)):
                continue
            info = survey.entry_info(root, key, rows.get(key))
            if dry_run or remove(root, index, key):
                removed.append(info)
                kept -= size
    if not dry_run:
        write_ledger(root, kept)
        for info in removed:
            events.emit(
                Event(kind=EventKind.EVICT, kernel=info.name, key=info.key, detail="size limit")
            )
    return Pruned(
        removed=tuple(removed),
        freed_bytes=total - kept,
        kept_bytes=kept,
        swept=tuple(path.name for path in swept),
        is_dry_run=dry_run,
    )


def remove(root: Root, index: NullIndex, key: str) -> bool:
    """
    Remove entry `key`; returns whether it was there.

    It goes in one step, by a rename, so that no reader sees half of it; a reader that has opened
    its files keeps them.
    """
    grave = root.tmp / unique_name()
    try:
        root.entry(key).rename(grave)
    except OSError:
        return False
    discard(grave)
    index.forget([key])
    return True


def sweep_leftovers(root: Root, *, quarantine_s: float, dry_run: bool = False) -> list[Path]:
    """Remove build areas whose process is gone, and what lay in quarantine for `quarantine_s`."""
    return [
        *sweep(root.tmp, STALE_S, dry_run=dry_run),
        *sweep(root.quarantine, quarantine_s, dry_run=dry_run),
    ]


def grow_ledger(root: Root, num_bytes: int) -> int | None:
    """
    Note that an entry of `num_bytes` was published; returns the size of the store, or None.

    The ledger is a file with the size at the last look at the disk, ``=123``, and one line
    ``+45`` for each publish since: no publish has to look at all entries. Removed entries are not
    noted, so that the sum may be too large, which costs a look. None: it is missing or damaged, or
    it is time to look.
    """
    try:
        descriptor = os.open(root.ledger, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"+%d\n" % num_bytes)
            text = os.pread(descriptor, 2**16, 0).decode("ascii")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    if _LEDGER.fullmatch(text) is None or text.count("+") > _RESCAN:
        return None
    return sum(int(line[1:]) for line in text.splitlines())


def write_ledger(root: Root, num_bytes: int) -> None:
    """Start the ledger anew: the entries take `num_bytes`."""
    new = root.tmp / f"size-{unique_name()}"
    with suppress(OSError):
        new.write_text(f"={num_bytes}\n", encoding="ascii")
        new.replace(root.ledger)
