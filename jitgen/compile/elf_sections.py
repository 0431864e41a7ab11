# SPDX-License-Identifier: Apache-2.0
"""The sections of an ELF file, and what a shared library defines; see `jitgen.compile.elf`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from jitgen.compile.elf import HEADER, NO_BITS, SECTION, check_library

_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11
_UNDEFINED = 0


@dataclass(frozen=True, slots=True)
class Section:
    """
    A section of an ELF file.

    Attributes:
        name: Its name.
        kind: Its type, by number.
        flags: Its flags.
        offset, size: Where it lies in the file, and its bytes in memory.
        link: Index of another section: for symbols that of their names.
        content: Its bytes; empty where the file holds none.
    """

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    content: bytes = field(repr=False)


def sections(content: bytes) -> Iterator[Section]:
    """Yield the sections of an ELF file that `size_at` found whole."""
    header = HEADER.unpack_from(content)
    table, num_sections, names_index = header[6], header[12], header[13]
    rows = [SECTION.unpack_from(content, table + i * SECTION.size) for i in range(num_sections)]
    names = rows[names_index][4]
    for name, kind, flags, _, offset, size, link, *_ in rows:
        text = content[names + name : content.index(b"\0", names + name)].decode("ascii", "replace")
        data = b"" if kind == NO_BITS else content[offset : offset + size]
        yield Section(text, kind, flags, offset, size, link, data)


def exported(library: bytes) -> frozenset[str]:
    """
    Return the names that a shared library for this host defines.

    Raises:
        ValueError: It is no such library, or not a whole one; the message says which.
    """
    check_library(library)
    try:
        found = list(sections(library))
        names: set[str] = set()
        for table in found:
            if table.kind == _DYNAMIC_SYMBOLS:
                names |= set(_defined(table.content, found[table.link].content))
    except (struct.error, ValueError, IndexError) as error:
        raise ValueError(f"its tables contradict each other: {error}") from None
    return frozenset(names)


def _defined(symbols: bytes, names: bytes) -> Iterator[str]:
    for at in range(0, len(symbols) - _SYMBOL.size + 1, _SYMBOL.size):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(symbols, at)
        if section != _UNDEFINED:
            yield names[name : names.index(b"\0", name)].decode("ascii", "replace")
