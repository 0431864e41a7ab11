# SPDX-License-Identifier: Apache-2.0
"""
The rows of the index, one for each entry, in 256 JSON objects.

One object holds the entries whose keys share their first byte: 256 small texts are read and parsed
ten times faster than 10,000 rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from jitgen.cache.entry import is_key
from jitgen.support.documents import BadDocument, parse_json

if TYPE_CHECKING:
    from jitgen.cache.textdisk import Table

SHARDS = tuple(f"{number:02x}" for number in range(256))


class IndexRow(NamedTuple):
    """
    Statistics of one entry.

    Attributes:
        name: Name of the kernel; empty where only uses are known.
        arch: Its target.
        size_bytes: Size of its files.
        disk_bytes: Disk space in bytes.
        hits: Number of times it was loaded from the disk.
        last_use: Time at which it was loaded last, in seconds since 1970; 0: never.
    """

    name: str = ""
    arch: str = ""
    size_bytes: int = 0
    disk_bytes: int = 0
    hits: int = 0
    last_use: float = 0.0


MAX_NAME = 256
"""Characters of a name that the index keeps; a config's own has 150 at most."""

_TYPES = [str, str, int, int, int, float]
_MOST = 2**62  # largest number: beyond any size or time

Change = Callable[[IndexRow], IndexRow | None]
"""A change of a row: takes the old row, or None, and returns the new one; None removes it."""


def merged(new: IndexRow) -> Change:
    """Return the change that replaces a row by `new` and keeps its number of uses."""
    return lambda row: new._replace(
        hits=row.hits + new.hits, last_use=max(row.last_use, new.last_use)
    )


def parse_record(record: list[object]) -> tuple[str, Change]:
    """Return the key of a journal record, empty for a bad one, and its change of the row."""
    match record:
        case ["use", str(key), str(), int(when)] if 0 <= when < _MOST:
            return key, lambda row: row._replace(
                hits=row.hits + 1, last_use=max(row.last_use, float(when))
            )
        case ["miss", str(key), str(), "remote" | "service", int(), int(when)] if (
            0 <= when < _MOST
        ):  # it was stored here and loaded
            return key, lambda row: row._replace(
                hits=row.hits + 1, last_use=max(row.last_use, float(when))
            )
        case ["new", str(key), str(name), str(arch), int(size_bytes), int(disk_bytes)] if (
            0 <= size_bytes < _MOST and 0 <= disk_bytes < _MOST
        ):
            row = IndexRow(name=name, arch=arch, size_bytes=size_bytes, disk_bytes=disk_bytes)
            return key, merged(row)
        case ["gone", str(key)]:
            return key, lambda _: None
    return "", lambda row: row


def change_rows(table: Table, changes: Mapping[str, Iterable[Change]]) -> None:
    """Apply `changes` to the rows of their keys, in one transaction."""
    shards: dict[str, list[str]] = {}
    for key in changes:
        shards.setdefault(key[:2], []).append(key)
    with table.transaction():
        for shard, keys in shards.items():
            rows = load_rows(table, shard)
            for key in keys:
                row: IndexRow | None = rows.pop(key, None)
                for change in changes[key]:
                    row = change(row or IndexRow())
                if row is not None:
                    rows[key] = row
            table.set(shard, json.dumps({key: list(row) for key, row in rows.items()}))


def load_rows(table: Table, shard: str) -> dict[str, IndexRow]:
    """Return the rows of the keys that begin with `shard`, without malformed ones."""
    from jitgen.cache.textdisk import MAX_BYTES

    text = table.get(shard)
    rows: dict[str, IndexRow] = {}
    with suppress(BadDocument, AttributeError):
        data = (text or "{}").encode("utf-8", "replace")
        for key, values in parse_json(data, max_bytes=MAX_BYTES).items():
            if _is_row(values) and key[:2] == shard and is_key(key):
                rows[key] = IndexRow(*values)
    return rows


def _is_row(values: object) -> bool:
    if not isinstance(values, list) or [type(value) for value in values] != _TYPES:
        return False
    return all(0 <= value < _MOST for value in values[2:])
