# SPDX-License-Identifier: Apache-2.0
"""Tables of measurements: ``jitgen tune --export`` and ``--import``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from jitgen.cli.output import ExitCode, Output, counted
from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.selection.record import MAX_TABLE_BYTES, BadRecord
from jitgen.support import vocabulary as v
from jitgen.support.documents import BadDocument, parse_json, read_bounded, read_stream
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

if TYPE_CHECKING:
    from jitgen.autotune import TuningReport
    from jitgen.cache import Store

STANDARD_OUTPUT = Path("-")
"""The path that stands for standard output."""

_LONG = 80  # characters of a table's description
_MOST_SKIPPED = 20  # records of an imported table that are named on a terminal


@frozen
class _HereAndThere:
    """A condition on this machine, and on the machine where a table was measured."""

    here: object
    there: object


@frozen
class _TakenOver:
    device: str
    arch: v.ArchName
    taken: v.Count
    skipped: Annotated[Mapping[str, v.Reason], v.by("problem")]
    differences: Mapping[str, _HereAndThere]


def export_to_file(
    output: Output, store: Store, arch: Arch, path: Path, report: TuningReport | None
) -> None:
    """
    Write the table of what `report` measured, or without it of all that this machine measured for
    `arch`, to a file or standard output.

    Raises:
        ConfigError: Nothing was measured, or the file cannot be written.
    """
    from jitgen.autotune import export_table

    problems = None if report is None else [row.problem for row in report.rows]
    table = export_table(store, arch, problems)
    if report is None and not table.records:
        raise ConfigError(f"nothing was measured for {arch} here; run: jitgen tune PLAN")
    text = json.dumps(table.to_json(), indent=1) + "\n"
    if path == STANDARD_OUTPUT:
        output.text(text)
        return
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    output.note(f"wrote {counted(len(table.records), 'record')} of {table.device} to {path}")


def import_from_file(output: Output, path: Path, arch: Arch | None) -> int:
    """
    Take over the records of a table in a file or from standard input; return the exit code.

    Raises:
        ConfigError: It cannot be read, is no table, or is for another target than `arch`.
    """
    from jitgen.autotune import import_table
    from jitgen.cache import Store

    try:
        data = (
            read_stream(sys.stdin.buffer, MAX_TABLE_BYTES)
            if str(path) == "-"
            else read_bounded(path, MAX_TABLE_BYTES)
        )
        document = parse_json(data, max_bytes=MAX_TABLE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except BadDocument as error:
        raise ConfigError(f"{path} is no JSON table: {error}") from error
    if arch is not None and isinstance(document, dict) and document.get("arch") != str(arch):
        raise ConfigError(f"{path} is for {shown(document.get('arch'))}, not for {arch}")
    try:
        found = import_table(Store.open(), document)
    except BadRecord as error:
        raise ConfigError(f"{path} is no table: {error}") from error

    def human() -> None:
        output.line(f"took over {counted(len(found.taken), 'record')} of {found.table.device}")
        for name, (here, there) in found.differences.items():
            output.note(f"measured with {name} {str(there)[:_LONG]}; here it is {here}")
        for name, reason in list(found.skipped.items())[:_MOST_SKIPPED]:
            output.note(f"left out {name}: {reason}")
        if (rest := len(found.skipped) - _MOST_SKIPPED) > 0:
            output.note(f"left out {rest} more; --json names them all")

    document = _TakenOver(
        device=found.table.device,
        arch=found.table.arch,
        taken=len(found.taken),
        skipped=found.skipped,
        differences={
            name: _HereAndThere(here=here, there=there)
            for name, (here, there) in found.differences.items()
        },
    )
    output.report("tune", document, human)
    return ExitCode.OK
