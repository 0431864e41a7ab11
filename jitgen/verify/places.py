# SPDX-License-Identifier: Apache-2.0
"""
Describes the places of wrong values in a result, and what they have in common.

A number of wrong values does not explain a mistake; a pattern, such as every second column of the
last tile of each group, does. So wrong values are listed tile by tile, because a CTA computes a
tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jitgen.config.operation import Result

_SHOWN_TILES = 4
_SHOWN_INDICES = 6

UNOWNED = -1
"""Group number of rows of no group."""

UNGROUPED = -2
"""Group of rows of a tensor that has no groups."""


def describe(result: Result, tile: tuple[int, int]) -> list[str]:
    """
    Return lines that say where values of `result` are wrong, tile by tile; empty if it is right.

    Args:
        result: Values, rows by columns.
        tile: Rows and columns that one CTA computes; tiles start at a group's first row.
    """
    wrong = np.argwhere(result.is_wrong)
    if not len(wrong):
        return []
    group, row = result.group[wrong[:, 0]], result.row[wrong[:, 0]]
    tiles = np.stack([group, row // tile[0], wrong[:, 1] // tile[1]], axis=1)
    names, which = np.unique(tiles, axis=0, return_inverse=True)
    which = which.reshape(-1)
    found, expected = (x[tuple(wrong[0])] for x in (result.found, result.expected))
    wanted = "what was there" if group[0] == UNOWNED else f"{expected:.6g}"
    head = (
        f"{result.name}: {len(wrong):,} wrong values in {len(names):,} tiles of {tile[0]} x "
        f"{tile[1]}; the first is {found:.6g} instead of {wanted}, in "
        f"{_name(int(group[0]))}, row {row[0]}, column {wrong[0, 1]}"
    )
    lines = [head]
    for number, name in enumerate(names[:_SHOWN_TILES].tolist()):
        places = np.stack([row, wrong[:, 1]], axis=1)[which == number]
        lines.append(_describe_tile(result, tile, name, places))
    if len(names) > _SHOWN_TILES:
        lines.append(f"and in {len(names) - _SHOWN_TILES:,} tiles more")
    return lines


def _describe_tile(
    result: Result, tile: tuple[int, int], name: list[int], places: NDArray[np.integer]
) -> str:
    """
    Return a line about the wrong values of tile `name`: its group, and its numbers along M and N.
    `places` are their rows, counted within the group, and columns.
    """
    group, tile_m, tile_n = name
    rows, columns = np.unique(places[:, 0]), np.unique(places[:, 1])
    start_m, start_n = tile_m * tile[0], tile_n * tile[1]
    of_group = result.row[result.group == group]
    all_rows = np.unique(of_group[(of_group >= start_m) & (of_group < start_m + tile[0])])
    all_columns = np.arange(start_n, min(start_n + tile[1], result.is_wrong.shape[1]))
    where = f"{_name(group)}, tile ({tile_m}, {tile_n})"
    if len(places) < len(rows) * len(columns):
        box = f"rows {rows[0]}..{rows[-1]}, columns {columns[0]}..{columns[-1]}"
        return f"{where}: {len(places):,} values here and there in {box}"
    parts = [
        _series(have - start, what)
        for have, every, start, what in (
            (rows, all_rows, start_m, "row"),
            (columns, all_columns, start_n, "column"),
        )
        if len(have) < len(every)
    ]
    return f"{where}: {' x '.join(parts) if parts else 'the whole tile'}"


def _name(group: int) -> str:
    return {UNOWNED: "padding rows", UNGROUPED: "the tensor"}.get(group, f"group {group}")


def _series(indices: NDArray[np.integer], what: str) -> str:
    """Return ascending indices as text: "row 3", "columns 0..7", "every 2nd column, 1..7"."""
    first, last, n = int(indices[0]), int(indices[-1]), len(indices)
    if n == 1:
        return f"{what} {first}"
    steps = set(np.diff(indices).tolist())
    if steps == {1}:
        return f"{what}s {first}..{last}"
    if len(steps) == 1 and n > 2:  # two numbers are no series
        return f"every {_ordinal(steps.pop())} {what}, {first}..{last}"
    shown = ", ".join(map(str, indices[:_SHOWN_INDICES].tolist()))
    return f"{n} {what}s: {shown}{', ...' if n > _SHOWN_INDICES else ''}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return f"{number}{ending}"


class _Case(Protocol):
    def results(self) -> Iterable[Result]: ...


def of_case(case: _Case, tile: tuple[int, int]) -> Iterator[str]:
    """Yield lines that say where the results of a call are wrong."""
    for result in case.results():
        yield from describe(result, tile)
