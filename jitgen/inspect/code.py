# SPDX-License-Identifier: Apache-2.0
"""
Source, PTX and SASS as lines, each with the line of the source that it comes from.

The compiler writes the line of the source into PTX (``.loc``). ptxas records the line of PTX of
each machine instruction, and nvdisasm prints it. So the origins of both are found through PTX,
where `jitgen.emulator` corrects the lines that the compiler wrote. One line of source gives many
lines of PTX in several places, because loops are unrolled and functions inlined. So a line of code
has one origin, but an origin has many lines. ptxas records no lines for warpgroup MMAs, which would
therefore get the line of the instruction before. Their order is the same in PTX and in machine
code, so the n-th one of PTX is the n-th one of the machine code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitgen.emulator import source_lines
from jitgen.support.frozen import frozen

PYTHON, PTX, SASS, HOST = "python", "ptx", "sass", "host"

_PLACE = re.compile(r'//## File "\.nv_debug_ptx_txt[^"]*", line (\d+)')
LINES = "--print-line-info-ptx"
"""Options of nvdisasm for `sass`."""

_WARPGROUP_MMA, _OF_MACHINE = "wgmma.mma_async", ("HGMMA", "QGMMA", "IGMMA", "BGMMA")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*$")
_LABEL = re.compile(r"^(\.L[\w$]*):")
_MNEMONIC = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_FILE_FORMAT = ":     file format "  # behind the name of a file that was there for a moment
_LONG = re.compile(r"\w{80,}")  # names that the compiler makes of types


@frozen
class Line:
    """
    One line of code.

    Attributes:
        text: The line.
        origin: The line of the source that it comes from, counted from 1; None if it is not known
            and for lines that are no code.
        number: Its number in its text, counted from 1; 0 for code with addresses.
        operation: The first word of a machine instruction, such as ``FFMA``; empty for other lines.
    """

    text: str
    origin: int | None = None
    number: int = 0
    operation: str = ""


@frozen
class Listing:
    """
    A text of code.

    Attributes:
        language: ``python``, ``ptx``, ``sass`` or ``host``.
        title: Its title.
        lines: Its lines.
    """

    language: str
    title: str
    lines: tuple[Line, ...]

    @property
    def operations(self) -> Counter[str]:
        """How often each machine instruction occurs."""
        return Counter(line.operation for line in self.lines if line.operation)

    @property
    def origins(self) -> Counter[int]:
        """How many instructions come from each line of the source."""
        return Counter(
            line.origin for line in self.lines if line.origin is not None and line.operation
        )


def source(text: str) -> Listing:
    """Return the listing of a generated source."""
    rows = text.rstrip("\n").split("\n")
    lines = tuple(
        Line(text=row, origin=number, number=number) for number, row in enumerate(rows, start=1)
    )
    return Listing(language=PYTHON, title="Source", lines=lines)


def ptx(text: str) -> Listing:
    """
    Return the listing of PTX with line information, without the directives for it; lines have the
    numbers that findings of the emulator use.
    """
    return Listing(language=PTX, title="PTX", lines=tuple(_ptx(text)))


def _ptx(text: str) -> Iterator[Line]:
    rows = text.rstrip("\n").split("\n")
    for number, (row, origin) in enumerate(zip(rows, source_lines(text), strict=False), start=1):
        words = row.split(None, 2)
        if words[:1] == [".section"] and words[1].startswith(".debug"):
            return  # and nothing but that follows
        if words[:1] not in ([".loc"], [".file"]):
            place = origin if _is_ptx(row) else None
            yield Line(text=_LONG.sub("…", row.rstrip()), origin=place, number=number)


def _is_ptx(row: str) -> bool:
    """Return whether a line of PTX is an instruction."""
    text = row.strip()
    return bool(text) and not text.startswith((".", "//", "{", "}", "$", ")")) and text[-1] != ":"


def sass(text: str, ptx_text: str) -> Listing:
    """
    Return the listing of the output of nvdisasm with `LINES`, for code from PTX with line
    information.
    """
    origins = source_lines(ptx_text)
    lines = _placed(list(_sass(text, origins)), _matrix_origins(ptx_text, origins))
    return Listing(language=SASS, title="SASS", lines=tuple(lines))


def _sass(text: str, origins: Sequence[int | None]) -> Iterator[Line]:
    origin: int | None = None
    for row in text.split("\n"):
        if place := _PLACE.search(row):
            number = int(place[1])
            origin = origins[number - 1] if 0 < number <= len(origins) else None
        elif found := _INSTRUCTION.match(row):
            address, rest = found[1], _LONG.sub("…", found[2])
            word = _MNEMONIC.match(rest)
            yield Line(text=f"{address} {rest}", origin=origin, operation=word[1] if word else "?")
        elif label := _LABEL.match(row.strip()):
            yield Line(text=f"{label[1]}:")


def _matrix_origins(text: str, origins: Sequence[int | None]) -> list[int | None]:
    """Return the line of the source of each warpgroup MMA of PTX, in order."""
    rows = zip(text.split("\n"), origins, strict=False)
    return [origin for row, origin in rows if row.lstrip().startswith(_WARPGROUP_MMA)]


def _placed(lines: list[Line], origins: list[int | None]) -> Iterator[Line]:
    """
    Yield `lines`, in which warpgroup MMAs get the lines of the source that they come from.

    Args:
        lines: Lines of machine code.
        origins: The line of the source of each warpgroup MMA of the PTX; None if it is not known.
            If the machine code has another number of them, all get None, or the only line if there
            is just one.
    """
    total = sum(line.operation in _OF_MACHINE for line in lines)
    if total != len(origins):  # a loop was unrolled below PTX
        only = origins[0] if len(set(origins)) == 1 else None
        origins = [only] * total
    rest = iter(origins)
    for line in lines:
        yield replace(line, origin=next(rest)) if line.operation in _OF_MACHINE else line


def host(text: str) -> Listing:
    """Return the listing of the disassembly of a host function."""
    rows = (row.rstrip() for row in text.split("\n"))
    lines = tuple(Line(text=_LONG.sub("…", row)) for row in rows if row and _FILE_FORMAT not in row)
    return Listing(language=HOST, title="Host code", lines=lines)


CLASSES = {
    "matrix": ("tensor cores", ("*GMMA", "*MMA", "UTC*", "LDTM", "STTM")),
    "copy": ("bulk copies (TMA)", ("UTMA*", "UBLK*", "LDGSTS")),
    "shared": ("shared memory", ("LDS", "STS", "LDSM", "STSM", "ATOMS", "LDSM*", "STSM*", "STAS")),
    "global": ("global memory", ("LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG")),
    "spill": ("local memory", ("LDL", "STL")),
    "constant": ("constants", ("LDC", "ULDC", "LDCU")),
    "order": (
        "synchronisation",
        (
            *("SYNCS", "BAR", "MEMBAR", "FENCE", "WARPGROUP", "DEPBAR", "WARPSYNC", "BSSY"),
            *("BSYNC", "BREAK", "ELECT", "UCGABAR*", "NANOSLEEP", "USETMAXREG", "ACQBULK"),
            *("PREEXIT", "ERRBAR", "CCTL*", "UTCBAR", "LDGDEPBAR", "WARPGROUPSET", "YIELD"),
        ),
    ),
    "float": ("float arithmetic", ("F*", "HFMA*", "HADD*", "HMUL*", "HSET*", "HMNMX*", "MUFU")),
    "convert": ("conversions", ("F2*", "I2*", "FRND")),
    "warp": ("between lanes", ("SHFL", "VOTE*", "MATCH", "REDUX", "CREDUX", "R2UR")),
    "control": ("control", ("BRA", "BRX", "JMP*", "EXIT", "CALL", "RET", "NOP", "BPT", "KILL")),
}
"""
Classes of machine instructions, with their titles; anything else is integer arithmetic. A star
matches any letters; the longest matching pattern counts.
"""

INTEGER = "integer", "integers and moves"


def class_of(operation: str) -> str:
    """Return the class of a machine instruction, by its first word."""
    best, found = 0, INTEGER[0]
    for name, (_, patterns) in CLASSES.items():
        for pattern in patterns:
            if len(pattern) > best and _fits(operation, pattern):
                best, found = len(pattern), name
    return found


def _fits(operation: str, pattern: str) -> bool:
    if pattern.startswith("*"):
        return operation.endswith(pattern[1:])
    return operation.startswith(pattern[:-1]) if pattern.endswith("*") else operation == pattern


def by_class(operations: Counter[str]) -> dict[str, Counter[str]]:
    """Return the counts of the operations of each class, the class with the most first."""
    found: dict[str, Counter[str]] = {}
    for operation, count in operations.items():
        found.setdefault(class_of(operation), Counter())[operation] = count
    return dict(sorted(found.items(), key=lambda item: -item[1].total()))


def class_title(name: str) -> str:
    """Return the title of a class of machine instructions."""
    return INTEGER[1] if name == INTEGER[0] else CLASSES[name][0]
