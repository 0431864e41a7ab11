# SPDX-License-Identifier: Apache-2.0
"""
PTX and SASS with the lines of the source: each line is before the instructions that come from it.

The source is compiled again with line information, which does not change the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from jitgen.compile import inspect
from jitgen.emulator import source_lines
from jitgen.errors import ArtifactError
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.codegen.render import Source

_MARK = re.compile(r"^\s*(?:\.loc\s|\.file\s|//## File )")
"""Rows that say where code comes from; lines of the source replace them."""


@frozen
class Listing:
    """
    Code with lines of its source.

    Attributes:
        text: The rows; those of the source are comments.
        lines: For each row the line of the source that it shows or comes from; None if unknown.
    """

    text: str
    lines: tuple[int | None, ...]


def ptx(source: Source) -> Listing:
    """
    Return the PTX of a GPU kernel.

    Raises:
        As `jitgen.compile.inspect.ptx`.
    """
    text = inspect.ptx(source, line_info=True)
    return _listing(text.split("\n"), source_lines(text), source, _is_ptx)


def sass(source: Source) -> Listing:
    """
    Return the disassembly of a GPU kernel.

    Raises:
        ArtifactError: The target is the cpu.
        ToolchainError: Compiler or nvdisasm is not installed.
        CompileError: The compiler refused the source.
    """
    from jitgen.compile import compiler

    if not source.arch.is_gpu:
        raise ArtifactError(f"{source.name} is host code and has no SASS")
    made = compiler.compile_source(source, line_info=True, links=False)
    rows = inspect.sass(made.files[made.library], "--print-line-info").split("\n")
    return _listing(rows, inspect.sass_lines(rows), source, _is_sass)


def _listing(
    rows: list[str],
    lines: Iterable[int | None],
    source: Source,
    is_code: Callable[[str], bool],
) -> Listing:
    """
    Return code without the rows that mark source lines, but with each source line in front of the
    rows that come from it.
    """
    texts = source.text.split("\n")

    def placed() -> Iterator[tuple[str, int | None]]:
        last: int | None = None
        for row, line in zip(rows, lines, strict=True):
            if _MARK.match(row):
                continue
            if not is_code(row):
                yield row, None
                continue
            if line is not None and line != last:
                yield f"\t// {line}: {texts[line - 1].strip()}", line
            last = line
            yield row, line

    found = list(placed())
    return Listing(text="\n".join(row for row, _ in found), lines=tuple(n for _, n in found))


def _is_ptx(row: str) -> bool:
    """Say whether a row of PTX is an instruction: no directive, label, comment or brace."""
    text = row.strip()
    return bool(text) and text[0] not in "./${}()" and not text.endswith(":")


def _is_sass(row: str) -> bool:
    """Say whether a row of SASS is an instruction: these begin with their offset."""
    return row.lstrip().startswith("/*")
