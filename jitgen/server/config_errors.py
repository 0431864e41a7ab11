# SPDX-License-Identifier: Apache-2.0
"""
Reads the TOML tables of an operator's file into frozen dataclasses, and collects what is wrong.

A field made by `of` carries its reader and one line of help in its metadata. All errors of a file
are reported together, a line for each.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, field
from pathlib import Path
from typing import Any, TypeVar

from jitgen.errors import SettingError
from jitgen.ownership.files import read_trusted
from jitgen.support.documents import BadDocument, parse_toml
from jitgen.support.text import shown
from jitgen.support.values import Reader

T = TypeVar("T")


def of(read: Reader, default: Any, help: str) -> Any:  # noqa: A002  # as the tables of settings say
    """Return a field that `read` reads, with its default and one line on what it is for."""
    return field(default=default, metadata={"read": read, "help": help})


def read_toml(file: Path, max_bytes: int) -> dict[str, Any]:
    """Return the document in the trusted file `file`; raises SettingError if there is none."""
    try:
        return parse_toml(read_trusted(file, max_bytes), max_bytes=max_bytes)
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror or error}") from error
    except BadDocument as error:
        raise SettingError(f"{file}: {error}") from error


class ConfigErrors:
    """
    The errors of one file.

    Attributes:
        lines: ``WHERE: WHAT`` of each, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Report that the value at `where` is wrong."""
        self.lines.append(f"{where}: {what}")

    def table(self, kind: type[T], values: Any, where: str) -> T:
        """
        Return the TOML table `values` as a `kind`, and report each field that is wrong.

        A field that is wrong or missing has its default in the result, None if it has none.
        """
        specs = {spec.name: spec for spec in dataclasses.fields(kind)}  # type: ignore[arg-type]
        read: dict[str, Any] = {}
        if not isinstance(values, dict):
            self.add(where, f"must be a table (got {shown(values)})")
            values = {}
        for name, value in values.items():
            place = f"{where}.{name}" if where else name
            if name not in specs or "read" not in specs[name].metadata:
                allowed = ", ".join(n for n, spec in specs.items() if "read" in spec.metadata)
                self.add(place, f"is not known; allowed here: {allowed}")
                continue
            try:
                read[name] = specs[name].metadata["read"](value)
            except ValueError as error:
                self.add(place, f"must be {error} (got {shown(value)})")
        for name, spec in specs.items():
            if spec.default is MISSING and spec.default_factory is MISSING and name not in values:
                self.add(f"{where}.{name}" if where else name, "is missing")
        known = {
            name: read.get(name, None if spec.default is MISSING else spec.default)
            for name, spec in specs.items()
            if spec.default_factory is MISSING
        }
        return kind(**known)


MAX_NAME = 200
"""Characters of a name, as of a builder in a signed statement; it also fits into a lease."""


def short(value: Any) -> str:
    """Read a name; names appear in signed statements, leases, logs and pages."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"a text of 1 to {MAX_NAME} printable characters")
    return value
