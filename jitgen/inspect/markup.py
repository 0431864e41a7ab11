# SPDX-License-Identifier: Apache-2.0
"""
HTML with all text escaped: only `escaped` makes markup from a text.

Names, reasons and sources come from files that other users may have written. So a plain string is
never markup: `tag` escapes every child and every value of an attribute that is not `Markup`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from jitgen.support.text import printable

_EMPTY = frozenset({"input", "meta", "line", "rect", "circle", "path"})


class Markup(str):
    """Text in HTML, which is not escaped again."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the markup, so that Jinja does not escape it again."""
        return self


def escaped(value: object) -> Markup:
    """
    Return `value` as markup. Markup is returned unchanged. In the text of any other value all
    special characters are escaped, and characters that reorder or hide text are shown as escapes.
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(printable(str(value), keep="\n\t"), quote=True))


def joined(parts: Iterable[object]) -> Markup:
    """Return `parts` joined to markup; those that are no markup are escaped."""
    return Markup("".join(map(escaped, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """
    Return an HTML element.

    Args:
        name: Name of the element.
        children: Texts, which are escaped, and markup.
        attributes: Attributes by name: ``class_`` is class, ``data_line`` is data-line. True gives
            an attribute without a value, None and False give no attribute.
    """
    words = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY and not children:
        return Markup(f"<{name}{words}>" if name in ("input", "meta") else f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{joined(children)}</{name}>")


def table(
    heads: Iterable[object],
    rows: Iterable[Iterable[object]],
    numbers: Iterable[int] = (),
    **more: object,
) -> Markup:
    """
    Return a table, which scrolls in itself where it is too wide, also by the keyboard.

    `numbers` are the columns that are aligned to the right.
    """
    right = set(numbers)

    def cells(name: str, values: Iterable[object], **extra: object) -> Markup:
        return joined(
            tag(name, value, class_="number" if at in right else None, **extra)
            for at, value in enumerate(values)
        )

    head = tag("thead", tag("tr", cells("th", heads, scope="col")))
    body = tag("tbody", *(tag("tr", cells("td", row)) for row in rows))
    return tag("div", tag("table", head, body, **more), class_="scroll", tabindex="0")


def fields(pairs: Iterable[tuple[object, object]]) -> Markup:
    """Return names and values in two columns."""
    return tag("dl", *(joined((tag("dt", name), tag("dd", value))) for name, value in pairs))


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
