# SPDX-License-Identifier: Apache-2.0
"""Replaces loops of one pass in a rendered kernel by their bodies for pass 0."""

from __future__ import annotations

import re

from jitgen.codegen.known import dedented, end_of_block, masked, value

_LOOP = re.compile(r"( *)for (\w+) in cutlass\.range_constexpr\((.+)\):(?:  #.*)?")
_LEAVES = re.compile(r"\b(?:break|continue)\b")

_BRACKETS = r"\([^()]*\)"
_OPERAND = rf"(?:[\w.]+(?:{_BRACKETS})?|{_BRACKETS})"
_NOTHING = rf"(?:0 \* {_OPERAND}|{_OPERAND} \* 0)"
_BEGIN = r"(?P<begin>^ *(?:return |[\w, ]+ [+-]?= )?|[(\[{,=] ?|[(\[{,]|: )"
_END = r"(?=[)\]},:]|$|  #| [-+<>=!&|]=? | if | else | for )"
_FOLDED = (
    (re.compile(rf"(?<=\S) \+ (?:{_NOTHING}|0){_END}"), ""),
    (re.compile(rf"{_BEGIN}(?:{_NOTHING}|0) \+ "), r"\g<begin>"),
    (re.compile(rf"{_BEGIN}{_NOTHING}{_END}"), r"\g<begin>0"),
    (re.compile(r"(?<![\w\])])\((\w+)\)"), r"\1"),
    (re.compile(r"\bif 0 < ([\w.]+):"), r"if \1 > 0:"),
)
"""
Patterns of sums and products with 0, and of brackets around a name or a condition, with their
replacements.
"""


def without_loops(text: str, known: dict[str, object]) -> str:
    """
    Return `text` with the bodies of unrolled loops that have one pass instead of these loops.

    Args:
        text: A Python module, formatted.
        known: Its constants.
    """
    lines, plain = text.split("\n"), masked(text).split("\n")
    for i in range(len(lines) - 1, -1, -1):  # inner loops first
        match = _LOOP.fullmatch(lines[i]) if plain[i].strip() else None
        if match is None or not _has_one_pass(match[3], known):
            continue
        end = end_of_block(plain, i)
        body = _of_pass_0(lines[i + 1 : end], plain[i + 1 : end], match[2])
        if body is not None:
            lines[i:end] = body
            plain[i:end] = masked("\n".join(body)).split("\n")
    return "\n".join(lines)


def _has_one_pass(arguments: str, known: dict[str, object]) -> bool:
    """Return whether a loop over the range of `arguments` has pass 0 and no other."""
    try:
        found = value(f"range({arguments})", known | {"range": range})
    except Exception:  # a name that is no constant, a call
        return False
    return bool(found == range(1))


def _of_pass_0(lines: list[str], plain: list[str], name: str) -> list[str] | None:
    """
    Return the body of a loop for `name` = 0; None if the body sets the name, uses it in a line with
    a string, or has a break or continue.
    """
    use = re.compile(rf"(?<![\w.]){name}\b(?!=[^=])")
    sets = re.compile(
        rf"\b(?:for|in) [^=]*\b{name} in |^ *(?:[\w, ]+, )?{name}(?:, [\w, ]+)? [+-]?= "
    )
    body = []
    for before, without in zip(dedented(lines), dedented(plain), strict=True):
        if _LEAVES.search(without) or sets.search(without):
            return None
        places = [match.span() for match in use.finditer(without)]
        if places and re.search(r"[\"']", before):
            return None
        line = before
        for start, end in reversed(places):
            line = f"{line[:start]}0{line[end:]}"
        body.append(_folded(line) if places else line)
    return body


def _folded(line: str) -> str:
    """Return a line in which an index became 0, without sums and products with this 0."""
    before = ""
    while line != before:
        before = line
        for pattern, without in _FOLDED:
            line = pattern.sub(without, line)
    return line
