# SPDX-License-Identifier: Apache-2.0
"""
Finds the template from which each line of a rendered kernel comes.

The templates are rendered again with marks: before each line of their text, and at the beginning
and the end of each partial. So the origin of every line of Jinja's output is known exactly.
`specialise` then removes lines, and shortens or joins a few, but never changes their order. So each
line of the source is found among the lines of its section; a changed line is assigned to the most
similar line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jinja2

from jitgen.codegen.parameters import template_of
from jitgen.codegen.render import SECTION, Loader, Source, configured, render, values
from jitgen.errors import ConfigError, RenderError
from jitgen.support.frozen import frozen
from jitgen.templates import roots

_BEGIN, _END, _NAMED = "\x01", "\x02", "\x05"
"""Where the text of a partial begins and ends; its name stands behind `_BEGIN`, and ends so."""

_LINE = re.compile("\x03([0-9]+)\x04")
"""A mark in front of each line of a template, with the number that the line has there."""

_EVENT = re.compile("(\x01[^\x05]+\x05|\x02|\x03[0-9]+\x04)")
_UNMARKED = re.compile(r"[ \t]*(?:#%|##|\{%|\{#|$)")
"""Lines of a template that are no text, and empty ones."""

_LIKE = 0.5
"""Least similarity of a changed line and the line from which it comes."""


class Origin(NamedTuple):
    """The origin of a line of a source: a template's file, and a line of it, counted from 1."""

    partial: str
    line: int


@frozen
class Part:
    """
    A template's file in a kernel.

    Attributes:
        partial: Its name.
        depth: How many files it is included through; 0 for the entry.
        first, last: The lines of the source that come from it and the files that it includes; None
            if none is left.
        own_lines: Number of these lines that come from this file itself, without empty lines.
    """

    partial: str
    depth: int
    first: int | None
    last: int | None
    own_lines: int


@frozen
class Origins:
    """
    The templates of a kernel's source.

    Attributes:
        parts: The files, each before those that it includes, in the order of the template.
        lines: The origin of each line of the source; None for empty lines, and for comments with
            the name of a partial, which the renderer writes.
    """

    parts: tuple[Part, ...]
    lines: tuple[Origin | None, ...]


class _Place(NamedTuple):
    """
    A line that came out of Jinja: its section, its text, the index of its part, and the number of
    the line in the template.
    """

    section: str
    text: str
    part: int
    line: int


class _Marking(Loader):
    """Loads templates with a mark before each line of text."""

    def prepared(self, text: str, template: str) -> str:
        """Return a template's text, prepared for rendering, with a mark before each line."""
        marked = (
            line if _UNMARKED.match(line) else f"\x03{number}\x04{line}"
            for number, line in enumerate(text.split("\n"), start=1)
        )
        return super().prepared("\n".join(marked), template)


class _Tracing(jinja2.Environment):
    """An environment whose templates have marks at the beginning and the end of their output."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._traced: set[str] = set()

    def get_template(self, name: Any, parent: Any = None, globals: Any = None) -> jinja2.Template:  # noqa: A002
        """Return a template that writes marks before and after its output."""
        made = super().get_template(name, parent, globals)
        if name in self._traced:
            return made
        self._traced.add(name)
        inner = made.root_render_func

        def traced(context: jinja2.runtime.Context) -> Iterator[str]:
            yield f"{_BEGIN}{made.name}{_NAMED}"
            yield from inner(context)
            yield _END

        made.root_render_func = traced  # of the template that is cached here
        return made


def origins(source: Source) -> Origins:
    """
    Return the templates that a source was rendered from, and the origin of each of its lines.

    Raises:
        ConfigError: The source differs from what the templates render for its config: it was
            edited, or made by another version of the templates.
        RenderError: The template is written so that its lines cannot be followed.
    """
    if source.text != render(source.config, source.arch).text:
        raise ConfigError(
            f"this source of {source.name} is not what the templates here give: it was edited, or "
            "another version made it; name the kernel by its config to see that of now"
        )
    names, places = _followed(source)
    found = [*_aligned(source.text.rstrip("\n").split("\n"), places)]
    return Origins(
        parts=tuple(_parts(names, found)),
        lines=tuple(place and Origin(names[place.part][1], place.line) for place in found),
    )


def _followed(source: Source) -> tuple[list[tuple[int, str]], list[_Place]]:
    """Return depth and name of each part, and the lines of Jinja's output that are not empty."""
    template = template_of(source.config, source.arch)
    given = values(source.config, source.arch)
    plain = configured(jinja2.Environment, Loader(roots(template.root)))
    marking = configured(_Tracing, _Marking(roots(template.root)))
    try:
        text = marking.get_template(template.entry).render(given)
    except jinja2.TemplateError as error:
        raise _unfollowed(template.entry) from error
    names, rows = _read(text)
    if [row for row, *_ in rows] != plain.get_template(template.entry).render(given).split("\n"):
        raise _unfollowed(template.entry)
    return names, [*_placed(rows)]


def _unfollowed(entry: str) -> RenderError:
    return RenderError(
        f"which lines come of which file of {entry} cannot be told: one of them has an expression "
        "or a statement of more than one line, outside of line statements"
    )


def _read(text: str) -> tuple[list[tuple[int, str]], list[tuple[str, int, int]]]:
    """Return the parts of a marked text, and its rows without marks, with part and line of each."""
    names: list[tuple[int, str]] = []
    inside: list[tuple[int, int]] = []  # part, line
    rows = [("", 0, 0)]
    for piece in _EVENT.split(text):
        if piece.startswith(_BEGIN):
            inside.append((len(names), 0))
            names.append((len(inside) - 1, piece[1:-1]))
        elif piece == _END:
            inside.pop()
        elif match := _LINE.fullmatch(piece):
            inside[-1] = inside[-1][0], int(match[1])
        else:
            first, *others = piece.split("\n")
            row, *at = rows[-1]
            rows[-1] = (row + first, *(inside[-1] if first.strip() and not row.strip() else at))
            rows += [(other, *inside[-1]) for other in others]
    return names, rows


def _placed(rows: Sequence[tuple[str, int, int]]) -> Iterator[_Place]:
    """Yield a place for each row that is neither empty nor the name of a section."""
    section = ""
    for row, part, line in rows:
        if named := SECTION.fullmatch(row):
            section = named[1]
        elif row.strip():
            yield _Place(section, row.strip(), part, line)


def _aligned(rows: Sequence[str], places: Sequence[_Place]) -> Iterator[_Place | None]:
    """
    Yield for each line of a source the place that it comes from; None for empty lines and the names
    of sections.
    """
    keys: list[tuple[str, str]] = []
    section = ""
    for row in rows:
        named = SECTION.fullmatch(row)
        section = named[1] if named else section
        if row.strip() and not named:
            keys.append((section, row.strip()))
    old = [(place.section, place.text) for place in places]
    found: list[_Place | None] = [None] * len(keys)
    matcher = difflib.SequenceMatcher(None, old, keys, autojunk=False)
    for what, i1, i2, j1, j2 in matcher.get_opcodes():
        if what == "equal":
            found[j1:j2] = places[i1:i2]
        elif what == "replace":
            found[j1:j2] = _alike(places[i1:i2], keys[j1:j2])
    before = places[0]
    rest = iter(found)
    for row in rows:
        if not row.strip() or SECTION.fullmatch(row):
            yield None
        else:
            before = next(rest) or before
            yield before


def _alike(places: Sequence[_Place], keys: Sequence[tuple[str, str]]) -> list[_Place | None]:
    """
    Return the places of changed lines, in order, such that the sum of their similarities is
    largest.
    """
    best = [[0.0] * (len(places) + 1) for _ in range(len(keys) + 1)]
    alike = [[_likeness(place, key) for place in places] for key in keys]
    for j in range(len(keys) - 1, -1, -1):
        for i in range(len(places) - 1, -1, -1):
            best[j][i] = max(best[j + 1][i], best[j][i + 1], alike[j][i] + best[j + 1][i + 1])
    found: list[_Place | None] = [None] * len(keys)
    i = j = 0
    while i < len(places) and j < len(keys):
        if best[j][i] == best[j][i + 1]:
            i += 1
        elif best[j][i] == best[j + 1][i]:
            j += 1
        else:
            found[j] = places[i]
            i, j = i + 1, j + 1
    return found


def _likeness(place: _Place, key: tuple[str, str]) -> float:
    if place.section != key[0]:
        return 0.0
    name, is_set, _ = key[1].partition(" = ")
    if is_set and place.text.startswith(f"{name} = "):
        return 1.0  # whatever is left of its value
    ratio = difflib.SequenceMatcher(None, place.text, key[1], autojunk=False).ratio()
    return ratio if ratio >= _LIKE else 0.0


def _parts(names: Sequence[tuple[int, str]], found: Sequence[_Place | None]) -> Iterator[Part]:
    """Yield the parts with the lines of a source that come from them."""
    own: list[list[int]] = [[] for _ in names]
    for number, place in enumerate(found, start=1):
        if place is not None:
            own[place.part].append(number)
    for k, (depth, name) in enumerate(names):
        end = next((n for n in range(k + 1, len(names)) if names[n][0] <= depth), len(names))
        every = [number for lines in own[k:end] for number in lines]
        yield Part(
            partial=name,
            depth=depth,
            first=min(every, default=None),
            last=max(every, default=None),
            own_lines=len(own[k]),
        )
