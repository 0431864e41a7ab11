# SPDX-License-Identifier: Apache-2.0
"""
Sections and symbols of an ELF file.

Source: System V ABI, chapter "Object Files" (64-bit ELF, little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\x7fELF\x02\x01"
SYMBOLS, DYNAMIC_SYMBOLS = 2, 11
"""Types of sections with symbols."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class Section(NamedTuple):
    """
    A section of an ELF file.

    Attributes:
        name: Its name.
        kind: Its type, by number.
        start, stop: Offsets in the file of its first byte and after its last.
        link: Index of another section: for symbols that of their names.
    """

    name: str
    kind: int
    start: int
    stop: int
    link: int


class Symbol(NamedTuple):
    """
    A symbol of an ELF file.

    Attributes:
        name: Its name.
        offset: Offset in the file at which the name begins.
        info: Its binding (upper four bits) and type.
        section: Index of its section; 0 if another file has to provide it.
    """

    name: str
    offset: int
    info: int
    section: int


def machine(image: bytes) -> int:
    """
    Return the number of the architecture of an ELF file; raises struct.error if the file is too
    short.
    """
    return int(_HEADER.unpack_from(image)[2])


def sections(image: bytes) -> list[Section]:
    """
    Return the sections of a file that begins with `MAGIC`.

    Raises:
        struct.error, ValueError, IndexError: It is cut off.
    """
    header = _HEADER.unpack_from(image)
    table, number, names = header[6], header[12], header[13]
    found = [_SECTION.unpack_from(image, table + i * _SECTION.size) for i in range(number)]
    texts = found[names][4]
    return [
        Section(_text(image, texts + name), kind, start, start + size, link)
        for name, kind, _, _, start, size, link, *_ in found
    ]


def symbols(image: bytes, every: list[Section], kind: int) -> Iterator[Symbol]:
    """
    Yield the symbols in the section of type `kind`; none where `every` has no such section.

    Raises:
        struct.error, ValueError, IndexError: The file is cut off.
    """
    for table in every:
        if table.kind == kind:
            names = every[table.link].start
            for at in range(table.start, table.stop, _SYMBOL.size):
                name, info, _, section, _, _ = _SYMBOL.unpack_from(image, at)
                yield Symbol(_text(image, names + name), names + name, info, section)


def _text(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode("ascii", "replace")
