# SPDX-License-Identifier: Apache-2.0
"""
Lists, counts, compares and verifies all entries, without loading any kernel.

Names and sizes come from the index if it has them, otherwise from each ``meta.json``, and are then
added to the index. The list of entries is always read from the disk.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from jitgen.cache.entry import Meta, disk_bytes, is_key, read_entry, read_meta
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.index import NullIndex
from jitgen.cache.rows import MAX_NAME, IndexRow
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache.layers import Layers
    from jitgen.support import vocabulary as v
    from jitgen.support.codec import one_of

ABSENT = "(absent)"
"""Value shown for a field that one of two key documents does not have."""


@frozen
class EntryInfo:
    """
    One line of a list of entries.

    Attributes:
        key: Its key.
        name: Name of the kernel; empty where ``meta.json`` is damaged.
        arch: Its target.
        size_bytes: Size of its files.
        disk_bytes: Disk space in bytes, as ``du`` counts it.
        hits: Number of recorded loads from the disk.
        last_use: Time at which it was published or last used, seconds since 1970, up to an hour
            old.
        is_pinned: Whether pruning spares it.
        base: The read-only root that it lies in; empty for the store's own.
    """

    key: v.Key
    name: v.Name
    arch: v.ArchName
    size_bytes: v.Bytes
    disk_bytes: v.Bytes
    hits: v.Count
    last_use: v.Since1970
    is_pinned: bool
    base: Annotated[str, v.said("the base it lies in; empty: the own root")] = ""


@frozen
class Stats:
    """
    Totals of a store.

    Attributes:
        entries: Number of entries.
        size_bytes: Size of the entries' files.
        disk_bytes: Disk space in bytes, as ``du`` counts it.
        limit_bytes: Limit of `disk_bytes`; 0: none.
        hits: Number of recorded loads from the disk.
        failures: Number of remembered failures.
        pinned: Number of pinned entries, which pruning keeps.
        quarantined: Number of damaged entries that wait for removal.
        tuned: Number of problems for which kernels were measured.
        by_arch: Entries of each target; the empty name counts damaged ones.
    """

    entries: v.Count
    size_bytes: v.Bytes
    disk_bytes: v.Bytes
    limit_bytes: v.Bytes
    hits: v.Count
    failures: v.Count
    pinned: v.Count
    quarantined: v.Count
    tuned: v.Count
    by_arch: Annotated[dict[str, v.Count], v.by("target; empty: damaged")]


@frozen
class Difference:
    """One field in which two key documents differ; `ABSENT` where one of them lacks it."""

    field: str
    wanted: object
    found: object


@frozen
class Verification:
    """
    Whether the bytes of one entry are those that were published.

    Attributes:
        key: Its key.
        name: Name of the kernel; empty where it is not good.
        is_good: Whether the bytes are those that were published.
        reason: Why they are not; empty if they are.
        fate: What was done with the entry: ``quarantined``, ``removed``, ``hidden``, or empty.
        base: The read-only root that it lies in; empty for the store's own.
    """

    key: v.Key
    name: v.Name
    is_good: bool
    reason: v.Reason = ""
    fate: Annotated[str, one_of("", "quarantined", "removed", "hidden")] = field(
        default="", compare=False
    )
    base: str = ""


def keys_in(entries: Folder, prefix: str = "") -> Iterator[str]:
    """
    Yield the keys of all entries that begin with `prefix`, sorted; anything that is not named by a
    key is left out.
    """
    for name in sorted(entries.names()):
        if not name.startswith(prefix[:2]):
            continue
        found: list[str] = []
        with suppress(OSError, Damaged), entries.folder(name) as shard:
            found = [key for key in shard.names() if key[:2] == name and is_key(key)]
        yield from sorted(key for key in found if key.startswith(prefix))


def keys(base: Folder, prefix: str = "") -> list[str]:
    """Return the keys of all entries below `base` that begin with `prefix`, sorted."""
    with suppress(OSError, Damaged), base.folder("entries") as entries:
        return list(keys_in(entries, prefix))
    return []


def each(base: Folder) -> Iterator[tuple[str, Folder]]:
    """Yield key and folder, open until the next one, of every entry that can be opened."""
    with suppress(OSError, Damaged), base.folder("entries") as entries:
        for name in sorted(entries.names()):
            with suppress(OSError, Damaged), entries.folder(name) as shard:
                for key in sorted(key for key in shard.names() if key[:2] == name and is_key(key)):
                    with suppress(OSError, Damaged), shard.folder(key) as folder:
                        yield key, folder


def pinned(base: Folder) -> set[str]:
    """Return the keys that pruning spares, with or without an entry."""
    return {name for name in _names(base, "pins") if is_key(name)}


def known_rows(base: Folder, index: NullIndex) -> dict[str, IndexRow]:
    """Return the row of every entry; the index gets missing rows, and loses those of no entry."""
    rows = index.rows()  # before the listing, so that an entry published meanwhile is not forgotten
    present = keys(base)
    missing = {key for key in present if key not in rows or not rows[key].name}
    unknown = {key: _row(base, key) for key in missing}
    index.learn({key: row for key, row in unknown.items() if row.name})
    index.forget(rows.keys() - set(present))
    if unknown:
        rows = {**rows, **unknown, **{key: row for key, row in index.rows().items() if row.name}}
    return {key: rows[key] for key in present}


def entries(base: Folder, index: NullIndex) -> list[EntryInfo]:
    """Return the `EntryInfo` of every entry, sorted by key."""
    spared = pinned(base)
    found = []
    with suppress(OSError, Damaged), base.folder("entries") as folder:
        for key, row in known_rows(base, index).items():
            last_use = row.last_use
            with suppress(OSError):  # for 10,000 entries, cheaper than opening each folder
                last_use = os.stat(
                    f"{key[:2]}/{key}", dir_fd=folder.descriptor, follow_symlinks=False
                ).st_mtime
            found.append(_info(key, row, last_use, is_pinned=key in spared))
    return found


def entries_below(layers: Layers, hidden: set[str]) -> Iterator[EntryInfo]:
    """
    Yield the information about each entry of the read-only roots.

    Args:
        layers: The roots.
        hidden: Keys of entries that are left out.
    """
    for key, folder, root in layers.each():
        if key not in hidden:
            last_use = os.fstat(folder.descriptor).st_mtime
            row = _row_of(folder, key)
            yield _info(key, row, last_use, is_pinned=False, base=str(root.path))


def entry_info(base: Folder, key: str) -> EntryInfo | None:
    """
    Return the `EntryInfo` of entry `key`, with 0 hits, as those are in the index; None if there is
    no such entry, or it cannot be looked at.
    """
    with suppress(OSError, Damaged), base.below("entries", key[:2]) as shard:
        return line_in(shard, key, None, is_pinned=key in pinned(base))
    return None


def line_in(shard: Folder, key: str, row: IndexRow | None, *, is_pinned: bool) -> EntryInfo | None:
    """
    Return the `EntryInfo` of entry `key` in the folder `shard`; None if there is no such entry, or
    it cannot be looked at.

    Args:
        shard: The folder of entries whose keys share the first byte.
        key: The entry's key.
        row: Its row in the index, if there is one.
        is_pinned: Whether pruning spares it.
    """
    with suppress(OSError, Damaged):
        found = shard.stat(key)
        if found is not None:
            if row is None or not row.name:
                row = IndexRow()
                with suppress(OSError, Damaged), shard.folder(key) as folder:
                    row = _row_of(folder, key)
            return _info(key, row, found.st_mtime, is_pinned=is_pinned)
    return None


def _info(
    key: str, row: IndexRow, last_use: float, *, is_pinned: bool, base: str = ""
) -> EntryInfo:
    return EntryInfo(
        key=key,
        name=row.name,
        arch=row.arch,
        size_bytes=row.size_bytes,
        disk_bytes=row.disk_bytes,
        hits=row.hits,
        last_use=last_use,
        is_pinned=is_pinned,
        base=base,
    )


def stats(base: Folder | None, index: NullIndex, limit_bytes: int, *, tuned: int) -> Stats:
    """Return the totals of the store in `base`; zeros without one. `tuned` is passed on."""
    rows = {} if base is None else known_rows(base, index)
    return Stats(
        entries=len(rows),
        size_bytes=sum(row.size_bytes for row in rows.values()),
        disk_bytes=sum(row.disk_bytes for row in rows.values()),
        limit_bytes=limit_bytes,
        hits=sum(row.hits for row in rows.values()),
        failures=len(index.failures()),
        pinned=0 if base is None else len(pinned(base) & rows.keys()),
        quarantined=0 if base is None else len(_names(base, "quarantine")),
        tuned=tuned,
        by_arch=dict(sorted(Counter(row.arch for row in rows.values()).items())),
    )


def verify(base: Folder) -> Iterator[Verification]:
    """Yield for each entry whether it is good; changes nothing."""
    for key in keys(base):
        try:
            with base.below("entries", key[:2], key) as folder:
                yield verification(folder, key)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except (OSError, Damaged) as error:
            yield Verification(key=key, name="", is_good=False, reason=str(error))


def verification(folder: Folder, key: str) -> Verification:
    """Return whether the entry in `folder` is good."""
    try:
        entry = read_entry(folder, key)
    except (OSError, Damaged) as error:
        return Verification(key=key, name="", is_good=False, reason=str(error))
    return Verification(key=key, name=entry.meta.name, is_good=True)


def fate(base: Folder, key: str) -> str:
    """
    Return where a damaged entry went: ``quarantined``, ``removed``, or empty if it is still there.
    """
    if entry_info(base, key) is not None:
        return ""
    is_kept = any(name.startswith(f"{key}-") for name in _names(base, "quarantine"))
    return "quarantined" if is_kept else "removed"


def metas(base: Folder) -> Iterator[Meta]:
    """Yield the record of every entry whose record is good."""
    for key, folder in each(base):
        with suppress(OSError, Damaged):
            yield read_meta(folder, key)


def nearest(
    found: Iterable[Meta], document: Mapping[str, object], limit: int
) -> list[tuple[Meta, tuple[Difference, ...]]]:
    """
    Return the records of the same operation whose key documents are closest to `document`, each
    with the differences.

    Entries of the same kernel and target come first, then those with the fewest differences.
    """
    wanted = _flat(document)
    same = {field: value for field, value in wanted.items() if field.startswith(("config", "arch"))}

    def distance(meta: Meta) -> tuple[bool, int, str]:
        fields = _flat(meta.key_document)
        is_other = any(fields.get(field, ABSENT) != value for field, value in same.items())
        return is_other, len(_differing(wanted, fields)), meta.key

    alike = (meta for meta in found if _operation(meta.key_document) == _operation(document))
    # Only the best few are held in memory at a time.
    nearest = heapq.nsmallest(limit, alike, key=distance)
    return [(meta, compared(meta, document)) for meta in nearest]


def compared(meta: Meta, document: Mapping[str, object]) -> tuple[Difference, ...]:
    """Return the fields in which `document` and the key document of a record differ."""
    wanted, found = _flat(document), _flat(meta.key_document)
    return tuple(
        Difference(field=field, wanted=wanted.get(field, ABSENT), found=found.get(field, ABSENT))
        for field in sorted(_differing(wanted, found))
    )


def _operation(document: Mapping[str, object]) -> object:
    """Return the name of the operation in a key document; None if it has none."""
    config = document.get("config")
    return config.get("op") if isinstance(config, dict) else None


def _differing(wanted: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    """Return in which fields two flat documents differ."""
    return [
        field
        for field in wanted.keys() | found.keys()
        if wanted.get(field, ABSENT) != found.get(field, ABSENT)
    ]


def _flat(document: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested objects as a single object with dotted names; lists stay whole."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _row(base: Folder, key: str) -> IndexRow:
    with suppress(OSError, Damaged), base.below("entries", key[:2], key) as folder:
        return _row_of(folder, key)
    return IndexRow()


def _row_of(folder: Folder, key: str) -> IndexRow:
    try:
        meta = read_meta(folder, key)
    except (Damaged, OSError):
        return IndexRow(disk_bytes=disk_bytes(folder))
    return IndexRow(
        name=meta.name[:MAX_NAME],
        arch=meta.arch[:MAX_NAME],
        size_bytes=meta.size_bytes,
        disk_bytes=disk_bytes(folder),
    )


def _names(base: Folder, name: str) -> list[str]:
    with suppress(OSError, Damaged), base.folder(name) as folder:
        return folder.names()
    return []
