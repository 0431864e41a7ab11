# SPDX-License-Identifier: Apache-2.0
"""The plot of the first page: what the README's table of peers says, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.site.stage import ROOT

_ROW = re.compile(r"^\| (.+?) \| .*?\|.*?\|(.+)\|$", re.MULTILINE)
_WIDTH, _LEFT, _BAR, _GAP, _UNIT = 720, 210, 9, 16, 150
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Which people with any colour vision tell apart."""

_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px }
line { stroke: #8c959f }
"""


def table() -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the peers, and of each row of the table its name and the peers' ratios."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Speed")[2]
    head, *rows = _ROW.findall(text.partition("\n## ")[0])
    peers = [cell.strip() for cell in head[1].split("|")]
    found = []
    for name, cells in rows:
        numbers = [cell.strip() for cell in cells.split("|")]
        if len(numbers) == len(peers) and any(each[:1].isdigit() for each in numbers):
            found.append((name, [float(each) if each else None for each in numbers]))
    return peers, found


def svg() -> str:
    """Return the plot."""
    peers, rows = table()
    lines = [*_bars(peers, rows)]
    height = 58 + len(rows) * (len(peers) * _BAR + _GAP)
    one = _LEFT + _UNIT
    title = "Time of other libraries divided by that of jitgen: right of 1, jitgen is faster"
    box = f'viewBox="0 0 {_WIDTH} {height}"'
    legend = [
        f'<rect x="{_LEFT + 120 * index}" y="26" width="10" height="10" fill="{_COLOURS[index]}"/>'
        f'<text class="small" x="{_LEFT + 14 + 120 * index}" y="35">{peer}</text>'
        for index, peer in enumerate(peers)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{title}">',
            f"<style>\n{_STYLE}</style>",
            # on dark pages, too, whose colours an image cannot know
            f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
            f'<text x="4" y="15">{title}</text>',
            *legend,
            *lines,
            f'<line x1="{one}" y1="42" x2="{one}" y2="{height - 4}"/>',
            "</svg>",
            "",
        ]
    )


def _bars(peers: list[str], rows: list[tuple[str, list[float | None]]]) -> Iterator[str]:
    y = 52
    for name, ratios in rows:
        middle = y + len(peers) * _BAR // 2 + 4
        yield f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{name}</text>'
        for index, ratio in enumerate(ratios):
            if ratio is not None:
                top, width = y + index * _BAR, round(ratio * _UNIT)
                yield (
                    f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_BAR - 1}" '
                    f'fill="{_COLOURS[index]}"/>'
                    f'<text class="small" x="{_LEFT + width + 4}" y="{top + 8}">{ratio:g}</text>'
                )
        y += len(peers) * _BAR + _GAP
