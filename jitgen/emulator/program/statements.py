# SPDX-License-Identifier: Apache-2.0
"""
The body of a kernel as statements, each with the scope that gives its names a meaning.

Inline assembly stands in braces, may stand in others, and calls its registers and labels as it
likes: ``{ .reg .pred P1; AGAIN: ...; @P1 bra DONE; bra AGAIN; DONE: }``. PTX ISA, sections
"Statements", "Identifiers" and "{}" of the control flow instructions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from jitgen.errors import UnsupportedPtx

_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*\.(?:loc|file)\b[^\n]*", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<label>[A-Za-z_$][\w$]*)\s*:(?!:)|(?P<statement>[^;{}\s][^;]*);)"
)
_NAME = re.compile(r"(?<![\w$%.@])%?[A-Za-z_$][\w$]*")


@dataclass(slots=True)
class Scope:
    """
    The names that are declared between two braces.

    Attributes:
        number: 0 for the kernel's own, which keeps its names.
        parent: The scope around it.
        unique: For each name that it declares, the one that no other scope has.
    """

    number: int = 0
    parent: Scope | None = None
    unique: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Scope:
        """The outermost scope around it: that of the kernel or of one call of a function."""
        return self if self.parent is None else self.parent.root

    def declare(self, name: str, *, is_register: bool) -> str:
        """Add a name and return its unique one; those of registers begin with ``%``."""
        unique = f"{name}@{self.number}" if self.number else name
        if is_register:
            unique = f"%{unique.lstrip('%')}"
        self.unique[name] = unique
        return unique

    def resolve(self, text: str) -> str:
        """Return `text` with unique names."""
        return _NAME.sub(lambda found: self._resolve(found[0]), text)

    def _resolve(self, name: str) -> str:
        scope: Scope | None = self
        while scope:
            if name in scope.unique:
                return scope.unique[name]
            scope = scope.parent
        return name


@dataclass(frozen=True, slots=True)
class Statement:
    """
    A label, a directive or an instruction.

    Attributes:
        text: Text of the statement on one line, without the semicolon; for a label its unique name.
        is_label: Whether it is a label.
        line: Line on which it begins, from 1.
        scope: Scope in which it stands.
    """

    text: str
    is_label: bool
    line: int
    scope: Scope


def without_comments(text: str) -> str:
    """Return PTX with blanks for comments and line information; lines keep their numbers."""
    return _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def scan(
    text: str, start: int, end: int, scope: Scope, numbers: Iterator[int]
) -> Iterator[Statement]:
    """
    Yield the statements in ``text[start:end]``, which holds no comments.

    Names are declared as the iteration comes to them, so labels can only be resolved after it.

    Args:
        text: PTX.
        start: Index in `text` at which the statements begin.
        end: Index in `text` at which they end.
        scope: The scope around all of them.
        numbers: Numbers for further scopes.

    Raises:
        UnsupportedPtx: A text is not a statement.
    """
    newlines = [found.start() for found in re.finditer("\n", text)]
    position = start
    while token := _TOKEN.match(text, position, end):
        kind = token.lastgroup or ""
        if token["brace"] == "{":
            scope = Scope(next(numbers), scope)
        elif token["brace"]:
            scope = scope.parent or scope
        else:
            words = " ".join(token[kind].split())
            is_label = kind == "label"
            name = scope.declare(words, is_register=False) if is_label else words
            line = bisect_right(newlines, token.start(kind)) + 1
            yield Statement(name, is_label, line, scope)
        position = token.end()
    if text[position:end].strip():
        line = bisect_right(newlines, position) + 1
        raise UnsupportedPtx(f"PTX line {line}: no statement ends here")
