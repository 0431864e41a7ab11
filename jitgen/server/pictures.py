# SPDX-License-Identifier: Apache-2.0
"""
The drawings of the last day on the overview page: SVG that is made here, so that the page needs no
script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from jitgen.inspect import plots
from jitgen.inspect.markup import Markup, joined, tag
from jitgen.server.history import Span, added
from jitgen.server.jobs import Job
from jitgen.support.frozen import frozen

SOURCES = ("memory", "disk", "shared", "unattested", "missing")
"""Where entries come from, as the metrics call it; the last is a miss."""

_OUTCOMES = ("compiled", "found", "failed")
_MOST = 8  # kernels, or targets, of a picture


@frozen
class Picture:
    """
    One drawing of the overview page.

    Attributes:
        title: Title of the drawing.
        drawing: SVG and its key.
        note: Summary of the drawing, in a sentence.
    """

    title: str
    drawing: Markup
    note: str


def of_day(spans: Sequence[Span], recent: Iterable[Job]) -> Iterator[Picture]:
    """Yield the pictures of `spans`; the last one shows the slowest of the `recent` jobs."""
    yield _sources(spans)
    yield _compiles(spans)
    yield _means(spans, "queue", "Wait for a compile process", "ms", 1e3)
    yield _means(spans, "request", "Time of a request, waits for compiles included", "ms", 1e3)
    seconds = _sum(spans, "arch")
    yield _ranking("Seconds of the compiler by target", seconds, "s")
    yield _ranking("Compiles by toolchain", _sum(spans, "toolchain"), "compiles")
    slowest = {job.order.name: job.compile_s for job in recent if job.compile_s}
    yield _ranking("The slowest of the recent compiles", slowest, "s")


def _sources(spans: Sequence[Span]) -> Picture:
    total = _sum(spans, "source")
    asked = sum(total.values())
    hits = asked - total.get("missing", 0.0)
    rate = f"{100 * hits / asked:.1f} % of {asked:,.0f} were here" if asked else "nothing was asked"
    return _stacked(spans, "Entries asked for, by source", "source", SOURCES, f"{rate}.")


def _compiles(spans: Sequence[Span]) -> Picture:
    total = _sum(spans, "compiled")
    words = [f"{count:,.0f} {name}" for name, count in sorted(total.items()) if count]
    longest = max((span.queued for span in spans), default=0)
    note = f"{', '.join(words) or 'none'}; the longest queue that was seen: {longest}."
    outcomes = sorted({*_OUTCOMES, *total}, key=lambda name: (name not in _OUTCOMES, name))
    return _stacked(spans, "Compiles", "compiled", outcomes, note)


def _stacked(
    spans: Sequence[Span], title: str, kind: str, names: Sequence[str], note: str
) -> Picture:
    def parts(span: Span) -> list[float]:
        return [span.of(kind).get(name, 0.0) for name in names]

    drawing = plots.columns(f"{title}: {note}", _rows(spans, parts, names), "in half an hour")
    return Picture(title=title, drawing=joined((drawing, _key(names))), note=note)


def _means(spans: Sequence[Span], kind: str, title: str, unit: str, scale: float) -> Picture:
    total = _sum(spans, kind)
    number, seconds = total.get("n", 0.0), total.get("s", 0.0)
    note = f"mean of the day: {scale * seconds / number:,.3g} {unit}" if number else "none"

    def parts(span: Span) -> list[float]:
        return [scale * span.mean(kind)]

    drawing = plots.columns(f"{title}: {note}.", _rows(spans, parts, (unit,)), f"mean, {unit}")
    return Picture(title=title, drawing=drawing, note=f"{note}.")


def _rows(
    spans: Sequence[Span], parts: Callable[[Span], list[float]], names: Sequence[str]
) -> list[tuple[str, str, list[float]]]:
    found = []
    for at, span in enumerate(spans):
        clock = time.strftime("%H:%M", time.gmtime(span.at))
        values = parts(span)
        words = ", ".join(f"{value:,.3g} {name}" for name, value in zip(names, values, strict=True))
        found.append((clock if at % 8 == 0 else "", f"{clock} UTC: {words}", values))
    return found


def _ranking(title: str, values: dict[str, float], unit: str) -> Picture:
    ranked = sorted(((value, name) for name, value in values.items() if value), reverse=True)
    rows = [(name, value) for value, name in ranked[:_MOST]]
    note = f"the {_MOST} largest of {len(ranked)}." if len(ranked) > _MOST else ""
    most = max((value for _, value in rows), default=0.0)
    items = [
        tag(
            "li",
            tag("span", f"{value:,.3g} {unit} ", class_="number"),
            tag("span", name, class_="name"),
            plots.svg(
                f"{value:,.3g} {unit}",
                100,
                3,
                tag("rect", x=0, y=0, width=f"{100 * value / most:.1f}", height=3, class_="c0"),
            ),
        )
        for name, value in rows
    ]
    drawing = tag("ol", *items, class_="ranking") if items else tag("p", "None.", class_="note")
    return Picture(title=title, drawing=drawing, note=note)


def _key(names: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", each) for each in plots.key(names)), class_="key")


def _sum(spans: Sequence[Span], kind: str) -> dict[str, float]:
    return added(pair for span in spans for pair in span.of(kind).items())
