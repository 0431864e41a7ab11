# SPDX-License-Identifier: Apache-2.0
"""
Whether an ELF file is whole: a shared library of the host, or a cubin inside of one.

Source: Tool Interface Standard, "Executable and Linking Format"; System V ABI, chapters 4 and 5.
Files are 64-bit and little-endian, as all are on the hosts and GPUs that the compiler knows.
"""

from __future__ import annotations

import platform
import struct

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

    The system's loader trusts what headers say, and the process ends where they say too much.
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
