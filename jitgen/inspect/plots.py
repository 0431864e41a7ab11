# SPDX-License-Identifier: Apache-2.0
"""
Drawings of a page, in SVG: bars, maps of memory, the roofline. Colours are classes of the style
sheet, because the page's policy forbids styles in attributes. Every drawing has a text that
describes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jitgen.inspect.markup import Markup, joined, tag

if TYPE_CHECKING:
    from jitgen.inspect.hardware import Roofs
    from jitgen.inspect.measured import Measurement
    from jitgen.inspect.memory import MemoryMap

_WIDTH, _NARROW = 720, 420
_BAR, _GAP = 18, 8
_COLOURS = 8


def svg(label: str, width: float, height: float, *children: Markup) -> Markup:
    """Return a drawing with a text alternative."""
    return tag(
        "svg",
        tag("title", label),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        class_="plot",
        aria_label=label,
    )


def bars(label: str, rows: Sequence[tuple[str, int, str]]) -> Markup:
    """Return a bar for each name, count and note; the longest has the whole width."""
    most = max((count for _, count, _ in rows), default=1)
    left, right = 190, 70
    parts: list[Markup] = []
    for at, (name, count, note) in enumerate(rows):
        top = at * (_BAR + _GAP)
        width = max(float(count > 0), (_WIDTH - left - right) * count / max(1, most))
        parts += [
            _text(left - 8, top + 13, name, "label end"),
            tag(
                "rect",
                tag("title", note),
                x=left,
                y=top,
                width=f"{width:.1f}",
                height=_BAR,
                rx=2,
                class_=f"c{at % _COLOURS}",
            ),
            _text(left + width + 6, top + 13, f"{count:,}", "label"),
        ]
    return svg(label, _WIDTH, max(1, len(rows)) * (_BAR + _GAP), *parts)


def columns(label: str, rows: Sequence[tuple[str, str, Sequence[float]]], unit: str) -> Markup:
    """
    Return columns side by side, for example one for each hour of a day; the highest has the whole
    height.

    Args:
        label: A text that says what the plot shows.
        rows: For each column: the name below it, which may be empty, the text that describes it,
            and the parts that are stacked in it, in the colours of `key`.
        unit: The unit, which is shown at the top of the scale.
    """
    left, top, width, height = 52, 20, _NARROW, 100
    most = max((sum(parts) for _, _, parts in rows), default=0.0)
    step = (width - left) / max(1, len(rows))
    found = [
        _line(left, top, width, top, "grid"),
        _line(left, top + height, width, top + height, "grid"),
        _text(left - 6, top + 4, f"{most:,.3g}", "label end"),
        _text(left - 6, top + height + 4, "0", "label end"),
        _text(left, 12, unit, "label"),
    ]
    for at, (name, words, parts) in enumerate(rows):
        x, foot = left + at * step, float(top + height)
        if name:
            found.append(_text(x, top + height + 18, name, "label"))
        for number, part in enumerate(parts):
            if part > 0:
                tall = max(1.0, height * part / most)
                foot -= tall
                found.append(
                    tag(
                        "rect",
                        tag("title", words),
                        x=f"{x + 1:.1f}",
                        y=f"{foot:.1f}",
                        width=f"{step - 2:.1f}",
                        height=f"{tall:.1f}",
                        class_=f"c{number % _COLOURS}",
                    )
                )
    return svg(label, width, top + height + 26, *found)


def memory(label: str, found: MemoryMap) -> Markup:
    """Return the regions of a memory to scale, in one bar."""
    whole = max(found.limit, found.total, 1)
    scale = _WIDTH / whole
    height = 44
    parts = [
        tag("rect", x=0, y=0, width=_WIDTH, height=height, class_="free"),
        tag("rect", x=0, y=0, width=f"{found.total * scale:.2f}", height=height, class_="padding"),
    ]
    for at, region in enumerate(found.regions):
        words = f"{region.name}: {region.size:,} {found.unit} from {region.start:,}"
        width = max(0.75, region.size * scale)
        parts.append(
            tag(
                "rect",
                tag("title", words),
                x=f"{region.start * scale:.2f}",
                y=0,
                width=f"{width:.2f}",
                height=height,
                class_=f"c{at % _COLOURS}",
            )
        )
        if width > 9 * len(region.name):
            middle = region.start * scale + width / 2
            parts.append(_text(middle, 27, region.name, "label middle on"))
    return svg(label, _WIDTH, height, *parts)


def key(names: Iterable[str]) -> Iterator[Markup]:
    """Yield each name with a swatch, in the order of the colours of plots."""
    for at, name in enumerate(names):
        yield joined((tag("span", class_=f"swatch c{at % _COLOURS}", aria_hidden="true"), name))


def roofline(label: str, found: Sequence[Measurement], roofs: Sequence[Roofs]) -> Markup | None:
    """
    Return a plot of rate over intensity, both on logarithmic scales; None if no measurement has an
    intensity, or without `roofs`.
    """
    points = [each for each in found if each.flop and each.traffic]
    if not points or not roofs:
        return None
    plot = _Axes(points, roofs)
    parts = [*plot.grid(), *(part for each in roofs for part in plot.roof(each))]
    for each in points:
        words = (
            f"{each.problem.slug} on {each.device}: {each.time_us:.1f} us, "
            f"{each.flop_rate / 1e12:,.0f} TFLOP/s at {each.intensity:,.0f} FLOP/B"
        )
        x, y = plot.place(each.intensity, each.flop_rate)
        is_best = each.time_us <= each.best_us
        parts.append(
            tag(
                "circle",
                tag("title", words),
                cx=f"{x:.1f}",
                cy=f"{y:.1f}",
                r=5,
                class_="best" if is_best else "other",
            )
        )
    return svg(label, _WIDTH, _Axes.HEIGHT, *parts)


class _Axes:
    """The scales of a roofline: whole decades around all points and ridges."""

    HEIGHT = 352
    _LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 28, 44

    def __init__(self, points: Sequence[Measurement], roofs: Sequence[Roofs]) -> None:
        ridges = [each.flop_rate / each.byte_rate for each in roofs]
        across = [*(each.intensity for each in points), *ridges]
        up = [*(each.flop_rate for each in points), *(each.flop_rate for each in roofs)]
        self._x = math.floor(math.log10(min(across))), math.ceil(math.log10(max(across) * 1.5))
        self._y = math.floor(math.log10(min(up))), math.ceil(math.log10(max(up) * 1.2))

    def place(self, intensity: float, rate: float) -> tuple[float, float]:
        """Return the place of a point in the drawing."""
        width = _WIDTH - self._LEFT - self._RIGHT
        height = self.HEIGHT - self._TOP - self._BOTTOM
        x = (math.log10(intensity) - self._x[0]) / (self._x[1] - self._x[0])
        y = (math.log10(rate) - self._y[0]) / (self._y[1] - self._y[0])
        return self._LEFT + x * width, self._TOP + (1 - y) * height

    def grid(self) -> Iterator[Markup]:
        """Yield lines and labels of the decades."""
        bottom, right = self.HEIGHT - self._BOTTOM, _WIDTH - self._RIGHT
        for power in range(self._x[0], self._x[1] + 1):
            x, _ = self.place(10.0**power, 10.0 ** self._y[0])
            yield _line(x, self._TOP, x, bottom, "grid")
            yield _text(x, bottom + 16, f"{10.0**power:,.10g}", "label middle")
        for power in range(self._y[0], self._y[1] + 1):
            _, y = self.place(10.0 ** self._x[0], 10.0**power)
            yield _line(self._LEFT, y, right, y, "grid")
            yield _text(self._LEFT - 6, y + 4, f"{10.0 ** (power - 12):,.10g}", "label end")
        yield _text((self._LEFT + right) / 2, self.HEIGHT - 8, "FLOP per byte", "label middle")
        yield _text(4, 12, "TFLOP/s", "label")

    def roof(self, of: Roofs) -> Iterator[Markup]:
        """
        Yield the limits of a device: the slope of memory and the flat part of the tensor cores.
        """
        ridge = of.flop_rate / of.byte_rate
        start = max(10.0 ** self._x[0], 10.0 ** self._y[0] / of.byte_rate)
        points = [
            self.place(start, start * of.byte_rate),
            self.place(ridge, of.flop_rate),
            self.place(10.0 ** self._x[1], of.flop_rate),
        ]
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        words = (
            f"{of.device}: {of.byte_rate / 1e12:.2f} TB/s, {of.flop_rate / 1e12:,.0f} TFLOP/s at "
            "the clock that it has under load"
        )
        yield tag("path", tag("title", words), d=path, class_="roof")


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> Markup:
    return tag(
        "line", x1=f"{x:.1f}", y1=f"{y:.1f}", x2=f"{to_x:.1f}", y2=f"{to_y:.1f}", class_=kind
    )


def _text(x: float, y: float, words: str, kind: str) -> Markup:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind)
