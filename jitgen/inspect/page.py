# SPDX-License-Identifier: Apache-2.0
"""The page of a kernel, or of two and their difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitgen._version import __version__
from jitgen.errors import ResourceError
from jitgen.inspect import highlight, sections
from jitgen.inspect.difference import Change, Difference, Row, between
from jitgen.inspect.document import MAX_BYTES, document
from jitgen.inspect.kernel import Inspected
from jitgen.inspect.markup import Markup, joined, table, tag
from jitgen.inspect.viewer import Highlight, viewer

_KEY_DIGITS = 12


def page(kernel: Inspected, against: Inspected | None = None) -> str:
    """
    Return the page of `kernel`, or with `against` that of both kernels: HTML in one file of at most
    3 MiB.

    Raises:
        ToolchainError: Pygments is not installed.
        ResourceError: The code is too long for a page.
    """
    for colours in (highlight.lines, highlight.plain):
        made = _page(kernel, against, colours)
        if len(made.encode("utf-8")) <= MAX_BYTES:
            return made
    raise ResourceError(
        f"the page of {kernel.name} would be larger than {MAX_BYTES >> 20} MiB; look at its parts "
        "with jitgen show --source, --ptx and --sass"
    )


def _page(kernel: Inspected, against: Inspected | None, colours: Highlight) -> str:
    kernels = [kernel] if against is None else [kernel, against]
    title = " and ".join(each.name for each in kernels)
    body: list[object] = [
        tag("a", "To the code", href="#code", class_="skip"),
        _header(kernels),
        _navigation(has_difference=against is not None),
    ]
    main: list[Markup] = []
    if against is not None:
        main.append(_section("difference", "Difference", _difference(between(kernel, against))))
        main.append(_choice(kernels))
    for number, each in enumerate(kernels):
        main.append(tag("article", *_article(each, number, colours), id=f"k{number}"))
    body.append(tag("main", *main))
    body.append(tag("footer", f"Made by jitgen {__version__}. This file needs nothing else."))
    return document(f"{title} - jitgen", *body)


def _header(kernels: list[Inspected]) -> Markup:
    parts = []
    for each in kernels:
        parts.append(tag("h1", each.name))
        state = "in the cache" if each.entry else "not in the cache"
        parts.append(tag("p", f"{each.arch}, key {each.key[:_KEY_DIGITS]}, {state}"))
    return tag("header", *parts)


_TITLES = {
    "code": "Code",
    "templates": "Templates",
    "instructions": "Instructions",
    "memory": "Memory",
    "occupancy": "Occupancy",
    "speed": "Speed",
    "numbers": "Numbers",
    "emulator": "Emulator",
    "key": "Key",
}


def _navigation(*, has_difference: bool) -> Markup:
    names = {"difference": "Difference", **_TITLES} if has_difference else _TITLES
    links = (tag("a", title, href=f"#{name}") for name, title in names.items())
    return tag("nav", *links, aria_label="Sections")


def _choice(kernels: list[Inspected]) -> Markup:
    buttons = (
        tag("button", each.name, type="button", data_shows=f"k{number}", aria_pressed="false")
        for number, each in enumerate(kernels)
    )
    return tag("div", *buttons, class_="choice", role="group", aria_label="Kernel to look at")


def _article(kernel: Inspected, number: int, colours: Highlight) -> Iterator[Markup]:
    nothing = tag("p", "There is none of this for such a kernel.", class_="note")
    parts = {
        "templates": sections.templates(kernel, number),
        "instructions": sections.instructions(kernel),
        "memory": sections.memory(kernel),
        "occupancy": sections.occupancy(kernel),
        "speed": sections.speed(kernel.speed, kernel.name),
        "numbers": sections.numbers(kernel),
        "emulator": sections.emulation(kernel.emulation, number),
        "key": sections.key(kernel),
    }
    yield tag("section", sections.cards(kernel), sections.notes(kernel))
    # of two kernels, links of the navigation lead to the sections of the first, and both have names
    yield _section(_id("code", number), "Code", viewer(kernel, number, colours))
    for name, part in parts.items():
        yield _section(_id(name, number), _TITLES[name], nothing if part is None else part)


def _id(name: str, number: int) -> str:
    return name if not number else f"{name}-{number}"


def _section(name: str, title: str, *children: object) -> Markup:
    return tag("section", tag("h2", title), *children, id=name, aria_label=title)


def _difference(found: Difference) -> Markup:
    if found.is_empty:
        return tag("p", "There is none.")
    parts: list[object] = []
    groups = [_changes(what, changes) for what, changes in found.changes.items() if changes]
    parts.append(tag("div", *groups, class_="beside"))
    if found.operations:
        parts.append(tag("h3", "Machine instructions"))
        operations = [(*row, f"{row[3] - row[2]:+d}") for row in found.operations]
        heads = ("class", "operation", "first", "second", "change")
        parts.append(table(heads, operations, [2, 3, 4]))
    if found.source:
        parts.append(tag("h3", "Source"))
        parts.append(
            tag("pre", *map(_row, found.source), class_="diff", tabindex=0, aria_label="Source")
        )
    return joined(parts)


def _changes(what: str, changes: Iterable[Change]) -> Markup:
    rows = [
        (tag("span", change.field, class_="name"), change.one, change.other) for change in changes
    ]
    return tag("div", tag("h3", what.capitalize()), table(("field", "first", "second"), rows))


_ROWS = {"-": "del", "+": "ins"}


def _row(row: Row) -> Markup:
    if row.sign == "@":
        return tag("div", row.text, class_="gap")
    return tag(_ROWS.get(row.sign, "div"), f"{row.sign} {row.text}")
