# SPDX-License-Identifier: Apache-2.0
"""Reads a rendered kernel without running it: its constants, its blocks."""

from __future__ import annotations

import re
from contextlib import suppress

_OPAQUE = re.compile(
    r'[fF]?(?:"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*')|#[^\n]*",
    re.DOTALL,
)
"""Strings and comments. Names in them are not uses, except in strings with values in them."""

_CONSTANT = re.compile(r"^([A-Z][A-Z0-9_]*) = (.+)$", re.MULTILINE)
_ALLOWED = {"min": min, "max": max, "__builtins__": {}}


def masked(text: str) -> str:
    """
    Return a text of the same length with spaces for strings and comments. Strings with values in
    them (f-strings) stay, because names in them are uses.
    """

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] in "fF":
            return found
        if "\n" not in found:
            return " " * len(found)
        return "\n".join(" " * len(line) for line in found.split("\n"))

    return _OPAQUE.sub(blank, text)


def constants(text: str) -> dict[str, object]:
    """
    Return the constants of a module, by name, that can be computed from literals and each other.
    """
    known: dict[str, object] = {}
    for name, expression in _CONSTANT.findall(text):
        with suppress(Exception):  # an expression that cannot be evaluated here
            known[name] = value(expression, known)
    return known


def value(expression: str, known: dict[str, object]) -> object:
    """Return the value of an expression of constants; errors of its evaluation are raised."""
    match = re.fullmatch(r"cutlass\.const_expr\((.+)\)", expression)
    code = compile((match[1] if match else expression).strip(), "", "eval", dont_inherit=True)
    return eval(code, _ALLOWED, known)  # noqa: S307  # a constant of a template, which is code


def decided(expression: str, known: dict[str, object]) -> bool | None:
    """Return whether a condition holds; None if that depends on the run."""
    if not re.search(r"[A-Z]", expression):
        return None
    try:
        return bool(value(expression, known))
    except Exception:  # a name that is no constant, a call
        return None


def indent_of(line: str) -> int:
    """Return the number of spaces that a line begins with."""
    return len(line) - len(line.lstrip(" "))


def end_of_block(plain: list[str], i: int) -> int:
    """
    Return the index of the line after the block that line `i` opens, blank lines at its end not
    counted.
    """
    end, indent = i + 1, indent_of(plain[i])
    for k in range(i + 1, len(plain)):
        if plain[k].strip():
            if indent_of(plain[k]) <= indent:
                break
            end = k + 1
    return end


def dedented(lines: list[str]) -> list[str]:
    """Return lines with one level of indentation less."""
    return [line.removeprefix("    ") for line in lines]
