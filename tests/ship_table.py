# SPDX-License-Identifier: Apache-2.0
"""
Make tables that `jitgen tune --export` wrote those that come with jitgen.

    python -m tests.ship_table EXPORTED.json...
"""

from __future__ import annotations

import sys
from pathlib import Path

from jitgen.documents import parse_json, read_bounded
from jitgen.errors import ConfigError
from jitgen.tuning.known import file_of
from jitgen.tuning.packed import pack
from jitgen.tuning.record import MAX_TABLE_BYTES, Table


def main(names: list[str]) -> None:
    """Pack each table into the folder of its target."""
    for name in names:
        data = read_bounded(Path(name), MAX_TABLE_BYTES)
        table = Table.from_json(parse_json(data, max_bytes=MAX_TABLE_BYTES))
        path = file_of(table.arch, table.device)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack(table))
        print(f"{path}: {len(table.records)} records, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ConfigError, OSError, ValueError) as reason:
        sys.exit(f"{type(reason).__name__}: {reason}")
