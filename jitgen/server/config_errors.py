# SPDX-License-Identifier: Apache-2.0
"""
Reads the TOML tables of an operator's file into frozen dataclasses, and collects the errors.

A field made by `jitgen.support.codec.of` has its reader and one line of help. All errors of a file
are reported together, a line for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from jitgen.errors import SettingError
from jitgen.ownership.files import read_trusted
from jitgen.support.codec import read
from jitgen.support.documents import BadDocument, parse_toml
from jitgen.support.text import shown

T = TypeVar("T")


def read_toml(file: Path, max_bytes: int) -> dict[str, object]:
    """
    Return the document in the trusted file `file`; raises SettingError if it cannot be read or is
    no TOML.
    """
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

    def table(self, kind: type[T], values: object, where: str) -> T:
        """
        Return the TOML table `values` as a `kind`, and report each field that is wrong.

        A field that is wrong or missing has its default in the result, None if it has none.
        """
        if not isinstance(values, dict):
            self.add(where, f"must be a table (got {shown(values)})")
            values = {}
        return read(kind, values, self.add, where)


MAX_NAME = 200
"""Characters of a name, as of a builder in a signed statement; it also fits into a lease."""


def short(value: object) -> str:
    """
    Read a name: 1 to `MAX_NAME` printable characters, since names appear in signed statements,
    leases, logs and pages.
    """
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"a text of 1 to {MAX_NAME} printable characters")
    return value
