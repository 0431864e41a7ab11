# SPDX-License-Identifier: Apache-2.0
"""Finds functions and calls in the text of a rendered kernel, and removes parts of a text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

_WORD = re.compile(r"[\w.]\w*")
"""A name, an attribute with its dot, or a number: together they are quick to find."""

_FUNCTION = re.compile(r"^def (\w+)(\()", re.MULTILINE)
KEYWORD = re.compile(r"\w+=[^=]")
_BRACKETS = re.compile(r"[()\[\]{}]")
_BRACKETS_AND_COMMAS = re.compile(r"[()\[\]{},]")
NEXT_TOP = re.compile(r"\n(?=[^\s)])")
OPENING = {"(": ")", "[": "]", "{": "}"}


class Function(NamedTuple):
    """
    A function at the top level of a rendered kernel: its name, its places in the text, and who
    gives its parameters.
    """

    name: str
    at: int  # of its name
    parameters: tuple[tuple[int, int], ...]
    body: tuple[int, int]
    is_kept: bool  # a caller of the file gives its parameters
    is_kernel: bool  # the device gives its parameters, but none for a None


@lru_cache(maxsize=1)  # steps that take nothing out ask for the same text again
def uses_of(plain: str) -> Mapping[str, list[int]]:
    """Return the positions at which each name is used or set, without attributes."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for match in _WORD.finditer(plain):
        if (word := match[0])[0] != ".":
            found[word].append(match.start())
    return dict(found)


def bracket_end(plain: str, place: int) -> int:
    """Return the position at which the bracket at `place` closes."""
    depth = 0
    for match in _BRACKETS.finditer(plain, place):
        depth += 1 if match[0] in OPENING else -1
        if depth == 0:
            return match.start()
    return len(plain)


def parts_of(plain: str, place: int) -> tuple[tuple[int, int], ...]:
    """Return the spans between commas, from the bracket at `place` to its end."""
    parts, start, depth = [], place + 1, 0
    for match in _BRACKETS_AND_COMMAS.finditer(plain, place):
        if match[0] == "," and depth == 1:
            parts.append((start, match.start()))
            start = match.end()
        elif match[0] != ",":
            depth += 1 if match[0] in OPENING else -1
            if depth == 0:
                parts.append((start, match.start()))
                break
    return tuple(part for part in parts if plain[slice(*part)].strip())


@lru_cache(maxsize=1)  # as above
def functions_in(text: str, plain: str, kept: frozenset[str]) -> tuple[Function, ...]:
    """
    Return the functions at the top level of `text`, of which `plain` is the `masked` form. Those
    named in `kept`, and operations of the DSL, are marked `is_kept`.
    """
    return tuple(_functions_in(text, plain, kept))


def _functions_in(text: str, plain: str, kept: frozenset[str]) -> Iterator[Function]:
    for match in _FUNCTION.finditer(plain):
        close = bracket_end(plain, match.start(2))
        end = NEXT_TOP.search(plain, close)
        above = text[text.rfind("\n\n", 0, match.start()) + 1 : match.start()]
        yield Function(
            match[1],
            match.start(1),
            parts_of(plain, match.start(2)),
            (close, end.start() if end else len(plain)),
            match[1] in kept or "@dsl_user_op" in above,
            "@cute.kernel" in above,
        )


def is_read(plain: str, names: Mapping[str, list[int]], name: str, function: Function) -> bool:
    """Return whether a function reads its parameter `name`."""
    start, end = function.body
    return any(
        start < place < end and not KEYWORD.match(plain, place) for place in names.get(name, ())
    )


def argument_for(
    plain: str, parts: tuple[tuple[int, int], ...], k: int, name: str
) -> tuple[int, int] | None:
    """
    Return the span, among the `parts` of a call, of the argument for parameter `k`, called `name`;
    None if the call uses its default.
    """
    for i, part in enumerate(parts):
        word = re.match(r"\s*(\w+)=[^=]", plain[slice(*part)])
        if (word[1] == name) if word else (i == k):
            return part
    return None


def without_parts(text: str, plain: str, cuts: list[tuple[int, int]]) -> tuple[str, str]:
    """
    Return `text` and `plain` without the items of lists at `cuts`, their commas, and the lines that
    they fill.
    """
    for start, end in sorted(set(cuts), reverse=True):
        words = plain[start:end]
        first, last = end - len(words.lstrip()), start + len(words.rstrip())
        line = plain.rfind("\n", 0, first) + 1
        if plain[end] != ",":
            comma = plain.rfind(",", 0, start + 1)
            follows = comma >= 0 and not plain[comma + 1 : start].strip()
            cut = (comma, last) if follows else (start, end)
        elif not (rest := plain[end + 1 : plain.index("\n", end)].strip()) and line > start:
            cut = (line, plain.index("\n", end) + 1)
        elif rest:
            cut = (first, end + 1 + (plain[end + 1] == " "))
        else:
            cut = (start, end + 1)
        text, plain = without_span(text, plain, cut)
    return text, plain


def without_span(text: str, plain: str, span: tuple[int, int]) -> tuple[str, str]:
    """Return `text` and `plain` without a span."""
    start, end = span
    return text[:start] + text[end:], plain[:start] + plain[end:]
