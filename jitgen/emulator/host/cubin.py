# SPDX-License-Identifier: Apache-2.0
"""
Facts about kernels in the machine code of an artifact: their registers, and whether ptxas omitted
``setmaxnreg``.

The machine code is an ELF file inside the host part. The number of registers of a thread at launch
is not in PTX: ptxas chooses it, and omits ``setmaxnreg`` if it cannot apply it.

Sources: System V ABI, chapter "Object Files" (64-bit ELF, little-endian); attributes of sections
``.nv.info`` have the numbers that ``cuobjdump -elf`` gives names to, instructions (of 16 bytes)
those that ``nvdisasm -hex`` shows, the same for Hopper and Blackwell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from jitgen.emulator.host import elf

_CUDA = 190
_SIZED = 4
_REGCOUNT = 0x2F

_INSTRUCTION = 16
_OPCODE, _USETMAXREG = 0xFFF, 0x9C8


@dataclass(frozen=True, slots=True)
class MachineCode:
    """
    The properties of a kernel's machine code.

    Attributes:
        registers: Registers of a thread at launch; 0 if there is no machine code.
        has_setmaxnreg: Whether it has a setmaxnreg; true if there is no machine code.
    """

    registers: int = 0
    has_setmaxnreg: bool = True


def kernels(library: bytes) -> dict[str, MachineCode]:
    """
    Return the properties of each kernel's machine code, by name; empty if there is no machine code.
    """
    start = library.find(elf.MAGIC)
    while start >= 0:
        try:
            found = dict(_kernels(library[start:]))
        except (struct.error, ValueError, IndexError):
            found = {}  # bytes that look like the beginning of a file
        if found:
            return found
        start = library.find(elf.MAGIC, start + 1)
    return {}


def _kernels(image: bytes) -> Iterator[tuple[str, MachineCode]]:
    if elf.machine(image) != _CUDA:
        return
    sections = elf.sections(image)
    names = [symbol.name for symbol in elf.symbols(image, sections, elf.SYMBOLS)]
    contents = {section.name: image[section.start : section.stop] for section in sections}
    for title, content in contents.items():
        if title.startswith(".nv.info"):
            for symbol, count in _counts(content):
                name = names[symbol]
                yield name, MachineCode(count, _has_setmaxnreg(contents.get(f".text.{name}", b"")))


def _has_setmaxnreg(code: bytes) -> bool:
    words = (
        int.from_bytes(code[at : at + 2], "little") for at in range(0, len(code), _INSTRUCTION)
    )
    return any(word & _OPCODE == _USETMAXREG for word in words)


def _counts(info: bytes) -> Iterator[tuple[int, int]]:
    """Yield symbol and registers of each function that a .nv.info section describes."""
    position = 0
    while position + 4 <= len(info):
        form, number, value = struct.unpack_from("<BBH", info, position)
        position += 4
        if form == _SIZED:
            if number == _REGCOUNT:
                symbol, count = struct.unpack_from("<II", info, position)
                yield symbol, count
            position += value
