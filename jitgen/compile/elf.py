# SPDX-License-Identifier: Apache-2.0
"""
Checks whether an ELF file is whole, a host's shared library or a cubin inside of one, and reads its
sections.

Source: Tool Interface Standard, "Executable and Linking Format"; System V ABI, chapters 4 and 5.
Files are 64-bit and little-endian, as all are on the hosts and GPUs that the compiler knows.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\x7fELF\x02\x01"
MACHINE_CUDA = 190
_MACHINES = {"x86_64": 62, "aarch64": 183}

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
NO_BITS = 8
_SHARED_LIBRARY = 3
_LOADED = 1


def size_at(content: bytes, start: int, machine: int) -> int:
    """
    Return the size of the ELF file for `machine` that begins at `start`; 0 where there is none, or
    where `content` ends before it does.
    """
    if len(content) - start < HEADER.size or not content.startswith(MAGIC, start):
        return 0
    header = HEADER.unpack_from(content, start)
    segments, sections_ = header[5], header[6]
    segment_size, num_segments, section_size, num_sections = header[9:13]
    end = max(segments + segment_size * num_segments, sections_ + section_size * num_sections)
    if header[2] != machine or section_size != SECTION.size or start + end > len(content):
        return 0
    for index in range(num_sections):
        section = SECTION.unpack_from(content, start + sections_ + index * section_size)
        if section[1] != NO_BITS:
            end = max(end, section[4] + section[5])
    return end if start + end <= len(content) else 0


def check_library(library: bytes) -> None:
    """
    Raise ValueError unless `library` is a whole shared library for this host.

    The system's loader trusts the headers: if they name bytes beyond the end of the file, the
    process crashes.
    """
    if not size_at(library, 0, _MACHINES.get(platform.machine(), 0)):
        raise ValueError(f"it is no ELF file for {platform.machine()}, or is cut off")
    header = HEADER.unpack_from(library)
    table, size, num_segments = header[5], header[9], header[10]
    if header[1] != _SHARED_LIBRARY or size != _SEGMENT.size:
        raise ValueError("it is no shared library")
    for index in range(num_segments):
        kind, _, offset, _, _, in_file, *_ = _SEGMENT.unpack_from(library, table + index * size)
        if kind == _LOADED and offset + in_file > len(library):
            raise ValueError("it is cut off")


_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11
_UNDEFINED = 0


class Section(NamedTuple):
    """
    A section of an ELF file.

    Attributes:
        name: Its name.
        kind: Its type, by number.
        flags: Its flags.
        offset, size: Offset of the section in the file, and its bytes in memory.
        link: Index of a related section: of a table of symbols, the section with their names.
        content: Its bytes; empty where the file holds none.
    """

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    content: bytes


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
