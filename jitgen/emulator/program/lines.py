# SPDX-License-Identifier: Apache-2.0
"""
Finds the line of the generated kernel that each line of PTX comes from.

PTX ISA, section "Debugging Directives: .loc". The compiler's line information has three habits that
this module undoes: column 0 marks what it could not place, lines within inline assembly count on
from the call, and a function that was inlined from a library names the library.
"""

from __future__ import annotations

import ast
import re

_LOCATION = re.compile(
    r"\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)\s+(?P<column>\d+)"
    r"(?:.*\binlined_at\s+(?P<outer_file>\d+)\s+(?P<outer_line>\d+))?"
)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_ASSEMBLY_BEGINS, _ASSEMBLY_ENDS = "// begin inline asm", "// end inline asm"


def source_lines(text: str) -> list[int | None]:
    """
    Return the kernel's line for each line of PTX `text`, None where it is not known.

    The kernel's file is the one that the first location is in. What the compiler could not place
    counts to the last line that it could.
    """
    found: list[int | None] = []
    kernel_file: str | None = None
    line: int | None = None
    is_assembly = False
    for row in text.split("\n"):
        stripped = row.strip()
        if stripped in {_ASSEMBLY_BEGINS, _ASSEMBLY_ENDS}:
            is_assembly = stripped == _ASSEMBLY_BEGINS
        elif not is_assembly and (location := _LOCATION.match(row)):
            kernel_file = kernel_file or location["file"]
            line = _line_in(kernel_file, location, line)
        found.append(line)
    return found


def source_file(text: str) -> str:
    """Return the path of the kernel's file, as the compiler of PTX `text` saw it; may be empty."""
    first = next(filter(None, map(_LOCATION.match, text.split("\n"))), None)
    return "" if first is None else dict(_FILE.findall(text)).get(first["file"], "")


def _line_in(kernel_file: str, location: re.Match[str], previous: int | None) -> int | None:
    """
    Return the line that a location names in the kernel's file, or else the previous one; None if
    both are unknown.
    """
    if location["file"] == kernel_file:
        is_placed = location["column"] != "0" or previous is None
        line = int(location["line"]) if is_placed else 0
    else:
        is_inlined = location["outer_file"] == kernel_file
        line = int(location["outer_line"]) if is_inlined else 0
    return line or previous


def functions_of(source: str) -> list[tuple[int, int, str]]:
    """Return first line, last line and name of each function in Python `source`."""
    return [
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
