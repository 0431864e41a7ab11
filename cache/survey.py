# SPDX-License-Identifier: Apache-2.0
"""
Look over all entries: list, count, compare and verify them, without loading any.

Names and sizes come from the index where it knows them, else from each ``meta.json``; what was read
there is told to the index. Which entries exist is always read from the disk.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitgen.cache.entry import Damaged, Meta, is_key
from jitgen.cache.files import disk_bytes, read_entry, read_meta
from jitgen.cache.index import NullIndex
from jitgen.cache.root import Root
from jitgen.cache.rows import Row

ABSENT = "(absent)"
"""Stands for the value of a field that one of two key documents does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryInfo:
    """
    One line of a list of entries.

    Attributes:
        key: Its key.
        name: Name of the kernel; empty where ``meta.json`` is damaged.
        arch: Its target.
        size_bytes: Size of its files.
        disk_bytes: What they take on the disk, as ``du`` counts it.
        hits: How often it was loaded from the disk, as far as the index knows.
        last_use: When it was published or last used, seconds since 1970, up to an hour old.
        is_pinned: Whether pruning spares it.
    """

    key: str
    name: str
    arch: str
    size_bytes: int
    disk_bytes: int
    hits: int
    last_use: float
    is_pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """
    Totals of a store.

    Attributes:
        entries: How many.
        size_bytes: Size of their files.
        disk_bytes: What they take on the disk, as ``du`` counts it.
        limit_bytes: Limit of `disk_bytes`; 0: none.
        hits: Loads from the disk, as far as the index knows.
        failures: Remembered failures.
        pinned: Entries that pruning spares.
        quarantined: Damaged entries that wait for removal.
        tuned: Problems for which kernels were measured.
        by_arch: Entries of each target; the empty name counts damaged ones.
    """

    entries: int
    size_bytes: int
    disk_bytes: int
    limit_bytes: int
    hits: int
    failures: int
    pinned: int
    quarantined: int
    tuned: int
    by_arch: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which two key documents differ; `ABSENT` where one of them lacks it."""

    field: str
    wanted: Any
    found: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether the bytes of one entry are those that were published; `reason` says why not."""

    key: str
    name: str
    is_good: bool
    reason: str = ""


def keys(root: Root) -> list[str]:
    """Return the keys of all entries, sorted; anything that is not named by a key is left out."""
    return sorted(
        name
        for shard in _names(root.entries)
        for name in _names(root.entries / shard)
        if name[:2] == shard and is_key(name)
    )


def pinned(root: Root) -> set[str]:
    """Return the keys that pruning spares, with or without an entry."""
    return {name for name in _names(root.pins) if is_key(name)}


def known_rows(root: Root, index: NullIndex) -> dict[str, Row]:
    """Return what is known of every entry; what the index lacks is read, and told to it."""
    rows = index.rows()  # before the listing, so that an entry published meanwhile is not forgotten
    present = keys(root)
    unknown = {key: _row(root, key) for key in present if key not in rows or not rows[key].name}
    index.learn({key: row for key, row in unknown.items() if row.name})
    index.forget(rows.keys() - set(present))
    if unknown:
        rows = {**rows, **unknown, **{key: row for key, row in index.rows().items() if row.name}}
    return {key: rows[key] for key in present}


def entries(root: Root, index: NullIndex) -> Iterator[EntryInfo]:
    """Yield every entry, by key."""
    spared = pinned(root)
    base = str(root.entries)
    for key, row in known_rows(root, index).items():
        last_use = row.last_use
        with suppress(OSError):
            last_use = os.lstat(f"{base}/{key[:2]}/{key}").st_mtime  # 10,000 of them
        yield _info(key, row, last_use, is_pinned=key in spared)


def entry_info(root: Root, key: str, row: Row | None = None) -> EntryInfo:
    """Return the line of entry `key`; `row` is what is known of it, if anything."""
    row = row if row is not None and row.name else _row(root, key)
    last_use = row.last_use
    with suppress(OSError):
        last_use = root.entry(key).lstat().st_mtime
    return _info(key, row, last_use, is_pinned=os.path.lexists(root.pin(key)))


def _info(key: str, row: Row, last_use: float, *, is_pinned: bool) -> EntryInfo:
    return EntryInfo(
        key=key,
        name=row.name,
        arch=row.arch,
        size_bytes=row.size_bytes,
        disk_bytes=row.disk_bytes,
        hits=row.hits,
        last_use=last_use,
        is_pinned=is_pinned,
    )


def stats(root: Root, index: NullIndex, limit_bytes: int, *, tuned: int) -> Stats:
    """Return the totals."""
    rows = known_rows(root, index)
    return Stats(
        entries=len(rows),
        size_bytes=sum(row.size_bytes for row in rows.values()),
        disk_bytes=sum(row.disk_bytes for row in rows.values()),
        limit_bytes=limit_bytes,
        hits=sum(row.hits for row in rows.values()),
        failures=len(index.failures()),
        pinned=len(pinned(root) & rows.keys()),
        quarantined=len(_names(root.quarantine)),
        tuned=tuned,
        by_arch=dict(sorted(Counter(row.arch for row in rows.values()).items())),
    )


def verify(root: Root) -> Iterator[tuple[Verification, Damaged | None]]:
    """Yield for each entry whether it is good, and the damage if it is not; changes nothing."""
    for key in keys(root):
        try:
            entry = read_entry(root.entry(key), key)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except Damaged as damage:
            yield Verification(key=key, name="", is_good=False, reason=str(damage)), damage
        except OSError as error:
            yield Verification(key=key, name="", is_good=False, reason=str(error)), None
        else:
            yield Verification(key=key, name=entry.meta.name, is_good=True), None


def nearest(
    root: Root, document: Mapping[str, Any], limit: int
) -> list[tuple[Meta, tuple[Difference, ...]]]:
    """
    Return the entries whose key documents are closest to `document`, and in what they differ.

    Entries of the same kernel and target come first, then those with the fewest differences.
    Reads every ``meta.json``: about a second for 10,000 entries.
    """
    wanted = _flat(document)
    same = {field: value for field, value in wanted.items() if field.startswith(("config", "arch"))}
    ranked = []
    for key in keys(root):
        try:
            meta = read_meta(root.entry(key), key)
        except (Damaged, OSError):
            continue
        found = _flat(meta.key_document)
        differences = tuple(
            Difference(
                field=field, wanted=wanted.get(field, ABSENT), found=found.get(field, ABSENT)
            )
            for field in sorted(wanted.keys() | found.keys())
            if wanted.get(field, ABSENT) != found.get(field, ABSENT)
        )
        is_other = any(found.get(field, ABSENT) != value for field, value in same.items())
        ranked.append(((is_other, len(differences), key), (meta, differences)))
    ranked.sort(key=lambda item: item[0])
    return [result for _, result in ranked[:limit]]


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one, with dotted names; lists stay whole."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _row(root: Root, key: str) -> Row:
    folder = root.entry(key)
    try:
        meta = read_meta(folder, key)
    except (Damaged, OSError):
        return Row(disk_bytes=disk_bytes(folder))
    return Row(
        name=meta.name,
        arch=meta.arch,
        size_bytes=meta.size_bytes,
        disk_bytes=disk_bytes(folder),
    )


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names only: 10,000 Path objects cost 20 ms
    except OSError:
        return []
