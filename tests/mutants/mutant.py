# SPDX-License-Identifier: Apache-2.0
"""One mistake: a piece of a generated source, and what takes its place."""

from __future__ import annotations

import ast
from itertools import accumulate
from typing import NamedTuple

_SHOWN = 60
"""Characters of each end of a long text that are shown."""


class Mutant(NamedTuple):
    """One mistake: what stands from character `start` to before `end` is `new`."""

    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return `text` with the mistake."""
        return text[: self.start] + self.new + text[self.end :]

    def shown(self, text: str) -> str:
        """Return the number of the line, the line, and the mistake in it."""
        number = text.count("\n", 0, self.start) + 1
        line = text.split("\n")[number - 1].strip()
        return f"line {number}: {line}   [{_short(self.old)} -> {_short(self.new)}]"


class Text:
    """A source, and where its nodes stand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]

    def at(self, line: int, column: int) -> int:
        """Return the character at column `column` of line `line`, which counts from 1."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node starts and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def mutant(self, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """Return the mistake that a node is `new`."""
        return Mutant(*self.span(node), self.of(node), new)


def _short(text: str) -> str:
    """Return a text on one line, of a long one its start and its end."""
    text = " ".join(text.split())
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} ... {text[-_SHOWN:]}"
