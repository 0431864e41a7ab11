# SPDX-License-Identifier: Apache-2.0
"""
The shipped form of a table: each kernel is named once, and a record is read when it is asked for.

A table of some hundred problems has half a megabyte as `jitgen tune --export` writes it, nearly all
of it names of kernels, and takes longer to read than everything else that a warm start does. Packed
it has a tenth of that, and its records are found by the slugs of their problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jitgen.documents import parse_json, read_bounded
from jitgen.events import warn_once
from jitgen.tuning.record import MAX_TABLE_BYTES, SCHEMA, BadRecord, Table, TuningRecord

PACKED = 2
"""Version of the shipped form; that of the exported one is another."""


def pack(table: Table) -> dict[str, Any]:
    """Return the shipped form of `table`."""
    names = sorted({name for each in table.records for name in (*each.times_us, *each.excluded)})
    number = {name: place for place, name in enumerate(names)}
    records = {}
    for each in table.records:
        document = each.to_json()
        records[each.problem.slug] = {
            "problem": document["problem"],
            "winner": number[each.winner],
            "times_us": {str(number[name]): time for name, time in each.times_us.items()},
            "excluded": {str(number[name]): reason for name, reason in each.excluded.items()},
            "date": each.date,
        }
    shell = {**table.to_json(), "schema": PACKED}
    return {**shell, "kernels": names, "records": records}


class Packed(Mapping[str, TuningRecord]):
    """
    The records of a packed table by the slugs of their problems, each read when it is asked for.

    One that is damaged costs a warning, and is as if it were not there.

    Args:
        document: What `pack` returned, as JSON gives it back.

    Raises:
        BadRecord: `document` is no packed table.
    """

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict) or document.get("schema") != PACKED:
            raise BadRecord(f"a shipped table must be a JSON object of schema {PACKED}")
        records, kernels = document.get("records"), document.get("kernels")
        if not isinstance(records, dict) or not isinstance(kernels, list):
            raise BadRecord("a shipped table must have an object of records and a list of kernels")
        self._records: dict[str, Any] = records
        self._kernels: list[Any] = kernels
        # Without its records it is a table as any other, and checked as that.
        self._shell = Table.from_json({**document, "schema": SCHEMA, "records": []})
        self._read: dict[str, TuningRecord] = {}

    @property
    def shell(self) -> Table:
        """The table without its records."""
        return self._shell

    def __getitem__(self, slug: str) -> TuningRecord:
        if slug not in self._read:
            if slug not in self._records:
                raise KeyError(slug)
            try:
                self._read[slug] = self._parsed(slug)
            except BadRecord as error:
                warn_once(f"shipped {slug}", "ignoring the shipped record %s: %s", slug, error)
                raise KeyError(slug) from None
        return self._read[slug]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def _parsed(self, slug: str) -> TuningRecord:
        found = self._records[slug]
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

    def _name(self, number: Any) -> Any:
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
    return Packed(parse_json(read_bounded(path, MAX_TABLE_BYTES), max_bytes=MAX_TABLE_BYTES))
