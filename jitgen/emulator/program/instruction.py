# SPDX-License-Identifier: Apache-2.0
"""
One PTX instruction, as text in its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

_OPENING, _CLOSING = "{[(", "}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """
    An instruction of a kernel.

    Attributes:
        index: Its position in the program; called ``at`` everywhere else.
        op: The opcode with all its modifiers: ``"ld.shared.v4.b32"``.
        parts: The opcode's parts: ``("ld", "shared", "v4", "b32")``.
        operands: Operands, split at the top level: ``("{%r1, %r2}", "[%rd4+16]")``.
        guard: The predicate register of ``@%p1``, or None.
        is_negated: Whether it is ``@!%p1``.
        line: Line of the PTX text, from 1.
        source: Line of the generated kernel, from line information; None where there is none.
        text: The whole of it on one line.
    """

    index: int
    op: str
    parts: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    is_negated: bool
    line: int
    source: int | None
    text: str

    def has(self, *parts: str) -> bool:
        """Return whether each of `parts` is a part of the opcode."""
        return all(part in self.parts for part in parts)


def split_operands(text: str) -> list[str]:
    """Return the texts between the commas outside of brackets, without surrounding blanks."""
    found, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*found, last] if last else found
