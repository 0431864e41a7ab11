# SPDX-License-Identifier: Apache-2.0
"""Source, PTX and SASS side by side; `assets/page.js` links their lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from jitgen.inspect import code
from jitgen.inspect.code import Line, Listing
from jitgen.inspect.kernel import Inspected
from jitgen.inspect.markup import Markup, joined, tag

Highlight = Callable[[Listing], Iterator[Markup]]
"""Returns the lines of a listing as markup."""


def viewer(kernel: Inspected, number: int, highlight: Highlight) -> Markup:
    """
    Return the listings of a kernel in panes side by side, with a search of their code.

    Args:
        kernel: The kernel.
        number: Number of the kernel on the page, 0 or 1.
        highlight: Function that colours a listing.
    """
    listings = kernel.listings
    panes = (_pane(kernel, number, listing, highlight) for listing in listings)
    tools = tag(
        "div",
        tag(
            "label",
            tag("span", "Search code ", class_="note"),
            tag("input", type="search", placeholder="at least two letters", autocomplete="off"),
        ),
        tag("button", "Next", type="button", class_="next"),
        tag("button", "Unpin", type="button", class_="unpin"),
        tag("output", aria_live="polite"),
        class_="tools",
    )
    hint = Markup(
        "Hover a line to see where it went, click to pin it. In a pane: <kbd>↑</kbd> <kbd>↓</kbd> "
        "move, <kbd>Enter</kbd> pins, <kbd>Esc</kbd> unpins, <kbd>/</kbd> searches, <kbd>n</kbd> "
        "goes on. Beside the number of a line of source: the machine instructions made of it."
    )
    return tag(
        "div",
        tools,
        tag("div", *panes, class_="panes"),
        tag("p", hint, class_="hint"),
        class_="viewer",
        data_kernel=number,
    )


def _pane(kernel: Inspected, number: int, listing: Listing, highlight: Highlight) -> Markup:
    marks = _Marks(kernel)
    rows = zip(listing.lines, highlight(listing), strict=True)
    lines = Markup("".join(_line(line, text, listing, marks, number) for line, text in rows))
    name = f"{listing.title} of {kernel.name}"
    return tag(
        "section",
        tag("h3", listing.title),
        tag(
            "div",
            lines,
            class_=f"code {listing.language}",
            data_title=listing.title,
            tabindex=0,
            role="region",
            aria_label=name,
        ),
        class_="pane",
    )


def _line(line: Line, text: Markup, listing: Listing, marks: _Marks, number: int) -> str:
    """
    Return the markup of a line, as short as possible, because a page has ten thousand of them.
    """
    words = f"<p data-l={line.origin}" if line.origin is not None else "<p"
    if line.number:
        words += f" data-n={line.number}"
    if listing.language == code.PYTHON:
        words += f" id=k{number}-{line.number}"
        if count := marks.counts[line.number]:
            words += f" data-c={count}"
    if kinds := marks.of(listing.language, line):
        words += f' class="{kinds}"'
    return f"{words}>{text}</p>"


class _Marks:
    """The marks of a kernel's lines: never executed, findings, number of instructions."""

    def __init__(self, kernel: Inspected) -> None:
        found = kernel.emulation
        machine = kernel.listing(code.SASS)
        self.counts = machine.origins if machine else Counter()
        self._never = found.never if found else frozenset()
        self._wrong = {
            (language, line)
            for each in (found.findings if found else ())
            for language, line in ((code.PYTHON, each.origin), (code.PTX, each.ptx))
        }
        self._unreached = {
            line
            for first, last, times in (found.times if found else ())
            if not times
            for line in range(first, last + 1)
        }

    def of(self, language: str, line: Line) -> str:
        """Return the CSS classes of a line: ``never`` (executed), ``wrong`` (with a finding)."""
        is_never = (language == code.PYTHON and line.number in self._never) or (
            language == code.PTX and line.origin is not None and line.number in self._unreached
        )
        is_wrong = bool(line.number) and (language, line.number) in self._wrong
        return " ".join(["never"] * is_never + ["wrong"] * is_wrong)


def lines_to(number: int, origin: int | None) -> Markup:
    """Return a link to a line of the source of kernel `number`; empty if the line is not known."""
    if origin is None:
        return joined(())
    return tag("a", f"line {origin}", href=f"#k{number}-{origin}")
