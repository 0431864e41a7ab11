# SPDX-License-Identifier: Apache-2.0
"""
Make tables that `jitgen tune --export` wrote those that come with jitgen.

    python -m tests.ship_table [--add] EXPORTED.json...

With --add the shipped table keeps what an exported one does not have: some buckets measured again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from jitgen.errors import ConfigError
from jitgen.selection.measurements import file_of
from jitgen.selection.packed import pack, read
from jitgen.selection.record import MAX_TABLE_BYTES, Table
from jitgen.support.documents import parse_json, read_bounded


def main(arguments: list[str]) -> None:
    """Pack each table into the folder of its target."""
    names = [each for each in arguments if each != "--add"]
    for name in names:
        data = read_bounded(Path(name), MAX_TABLE_BYTES)
        table = Table.from_json(parse_json(data, max_bytes=MAX_TABLE_BYTES))
        if len(names) < len(arguments):
            table = added(table)
        path = file_of(table.arch, table.device)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack(table))
        print(f"{path}: {len(table.records)} records, {path.stat().st_size:,} bytes")


def added(table: Table) -> Table:
    """Return `table` with what only the shipped one has, whose conditions stay."""
    packed = read(file_of(table.arch, table.device))
    records = {**packed, **{record.problem.slug: record for record in table.records}}
    return replace(packed.shell, records=tuple(records.values()))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ConfigError, OSError, ValueError) as reason:
        sys.exit(f"{type(reason).__name__}: {reason}")
