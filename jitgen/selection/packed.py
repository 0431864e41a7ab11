# SPDX-License-Identifier: Apache-2.0
"""
The shipped form of a table: each kernel is named once, and a record is read when it is needed.

A table of some hundred problems has half a megabyte as `jitgen tune --export` writes it, nearly all
of it names of kernels, and takes longer to read than everything else that a warm start does. Packed
it has a third of that. It is JSON, with a line for each record that begins with the slug of its
problem: so a record is found as text, and nothing but it and the head is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from jitgen.events import warn_once
from jitgen.selection.record import MAX_TABLE_BYTES, SCHEMA, BadRecord, Table, TuningRecord
from jitgen.support.documents import parse_json, read_bounded

_SEARCHES = 32
"""
Number of records that are searched in the text one by one, before an index of all is made: a warm
start needs a few records, a plan needs thousands.
"""

PACKED = 2
"""Version of the shipped form; that of the exported one is another."""


_BEGIN = b',\n "records": {\n'
"""Bytes between the head and the first record."""


def pack(table: Table) -> bytes:
    """Return the shipped form of `table`."""
    names = sorted({name for each in table.records for name in (*each.times_us, *each.excluded)})
    number = {name: place for place, name in enumerate(names)}
    head = {**table.to_json(), "schema": PACKED, "kernels": names}
    del head["records"]
    rows = ",\n".join(_line_of(record, number) for record in table.records).encode("ascii")
    return json.dumps(head, indent=1)[:-2].encode("ascii") + _BEGIN + rows + b"\n}\n}\n"


def _line_of(record: TuningRecord, number: Mapping[str, int]) -> str:
    document = record.to_json()
    short = {
        "problem": document["problem"],
        "winner": number[record.winner],
        "times_us": {str(number[name]): time for name, time in record.times_us.items()},
        "excluded": {str(number[name]): reason for name, reason in record.excluded.items()},
        "date": record.date,
    }
    return f"{json.dumps(record.problem.slug)}: {json.dumps(short, separators=(',', ':'))}"


class Packed(Mapping[str, TuningRecord]):
    """
    The records of a packed table by the slugs of their problems, each read when it is asked for.

    A damaged record gives a warning and is ignored.

    Args:
        data: A table in the shipped form, as `pack` returns it.

    Raises:
        ValueError: `data` is no packed table: `BadRecord`, or its head is no JSON.
    """

    def __init__(self, data: bytes) -> None:
        head, begin, records = data.partition(_BEGIN)
        document = parse_json(head + b"}" if begin else data, max_bytes=MAX_TABLE_BYTES)
        if not isinstance(document, dict) or document.get("schema") != PACKED or not begin:
            raise BadRecord(f"a shipped table must be a JSON object of schema {PACKED}")
        kernels = document.get("kernels")
        if not isinstance(kernels, list):
            raise BadRecord("a shipped table must have a list of kernels")
        self._kernels: list[str] = kernels
        self._records = b"\n" + records  # so that each of them follows a line's end
        # Without its records it is an ordinary table, and is checked as one.
        self._shell = Table.from_json({**document, "schema": SCHEMA, "records": []})
        self._read: dict[str, TuningRecord] = {}
        self._searches = 0
        self._places: dict[bytes, int] | None = None

    @property
    def shell(self) -> Table:
        """The table without its records: device, target and conditions."""
        return self._shell

    def __getitem__(self, slug: str) -> TuningRecord:
        if slug not in self._read:
            line = self._line(slug)
            if not line:
                raise KeyError(slug)
            try:
                self._read[slug] = self._parsed(slug, line)
            except ValueError as error:
                warn_once(f"shipped {slug}", "ignoring the shipped record %s: %s", slug, error)
                raise KeyError(slug) from None
        return self._read[slug]

    def __iter__(self) -> Iterator[str]:
        for line in self._records.splitlines():
            if line.startswith(b'"'):
                yield line[1 : line.index(b'"', 1)].decode("ascii")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _line(self, slug: str) -> bytes:
        """Return the bytes of the record of `slug`; empty if there is none."""
        start = self._place(f'"{slug}": '.encode("ascii"))
        if not start:
            return b""
        end = self._records.find(b"\n", start)
        line = self._records[start:end] if end >= 0 else self._records[start:]
        return line.partition(b": ")[2].rstrip(b",")

    def _place(self, begin: bytes) -> int:
        """Return the position of the line that begins with `begin`; 0 if there is none."""
        self._searches += 1
        if self._searches <= _SEARCHES:
            return self._records.find(b"\n" + begin) + 1
        if self._places is None:
            places: dict[bytes, int] = {}
            start = 1
            for line in self._records[1:].split(b"\n"):
                places.setdefault(line.partition(b": ")[0] + b": ", start)
                start += len(line) + 1
            self._places = places
        return self._places.get(begin, 0)

    def _parsed(self, slug: str, line: bytes) -> TuningRecord:
        found = parse_json(line)
        try:
            document = {
                **found,
                "schema": SCHEMA,
                "winner": self._name(found["winner"]),
                **{
                    part: {self._name(number): value for number, value in found[part].items()}
                    for part in ("times_us", "excluded")
                },
            }
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise BadRecord(f"{type(error).__name__}: {error}") from None
        record = TuningRecord.from_json(document)
        if record.problem.slug != slug:
            raise BadRecord("it belongs to another problem")
        return record

    def _name(self, number: str | int) -> str:
        place = int(number)
        if place < 0:
            raise IndexError(f"there is no kernel {place}")
        return self._kernels[place]


def read(path: Path) -> Packed:
    """
    Return the shipped table in `path`.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such table: `BadRecord`, or no JSON.
    """
    return Packed(read_bounded(path, MAX_TABLE_BYTES))
