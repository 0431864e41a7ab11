# SPDX-License-Identifier: Apache-2.0
"""
What the machine code of an artifact says of its kernels: registers of a thread at launch.

The machine code lies as an ELF file inside the host part. PTX does not know this number: ptxas
chooses it.

Sources: System V ABI, chapter "Object Files" (64-bit ELF, little-endian); attributes of sections
``.nv.info`` have the numbers that ``cuobjdump -elf`` gives names to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAGIC = b"\x7fELF\x02\x01"
_CUDA = 190
_SYMBOLS = 2
_SIZED = 4
_REGCOUNT = 0x2F

Section = tuple[int, ...]


def registers(library: bytes) -> dict[str, int]:
    """Return the registers of a thread of each kernel; nothing where there is no machine code."""
    start = library.find(_MAGIC)
    while start >= 0:
        try:
            found = dict(_registers(library[start:]))
        except (struct.error, ValueError, IndexError):
            found = {}  # bytes that look like the beginning of a file
        if found:
            return found
        start = library.find(_MAGIC, start + 1)
    return {}


def _registers(image: bytes) -> Iterator[tuple[str, int]]:
    header = _HEADER.unpack_from(image)
    if header[2] != _CUDA:
        return
    table, number, names_index = header[6], header[12], header[13]
    sections = [_SECTION.unpack_from(image, table + i * _SECTION.size) for i in range(number)]
    names = sections[names_index][4]
    symbols = next(section for section in sections if section[1] == _SYMBOLS)
    for section in sections:
        if _text(image, names + section[0]).startswith(".nv.info"):
            for symbol, count in _counts(image[section[4] : section[4] + section[5]]):
                yield _name(image, sections, symbols, symbol), count


def _text(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode("ascii", "replace")


def _name(image: bytes, sections: list[Section], symbols: Section, number: int) -> str:
    """Return the name of a symbol by its number."""
    name = _SYMBOL.unpack_from(image, symbols[4] + number * _SYMBOL.size)[0]
    return _text(image, sections[symbols[6]][4] + name)


def _counts(info: bytes) -> Iterator[tuple[int, int]]:
    """Yield symbol and registers of each function that a .nv.info section speaks of."""
    position = 0
    while position + 4 <= len(info):
        form, number, value = struct.unpack_from("<BBH", info, position)
        position += 4
        if form == _SIZED:
            if number == _REGCOUNT:
                symbol, count = struct.unpack_from("<II", info, position)
                yield symbol, count
            position += value
