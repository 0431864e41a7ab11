# SPDX-License-Identifier: Apache-2.0
"""The report as tables: one for each size, with a line for each number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from jitgen.bench.hopper_fp4.report import FP8, Found, Fp4Report, Timed
from jitgen.support.frozen import frozen


@frozen
class Table:
    """
    One table.

    Attributes:
        title: What it is of.
        columns: Their titles; the first is of words, the others of numbers.
        rows: Its cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: Fp4Report) -> Iterator[Table]:
    """Yield a table for each size: us, in brackets the ratio to FP8 and GB/s."""
    sizes = dict.fromkeys((each.case.groups, each.case.n, each.case.k) for each in report.found)
    for size in sizes:
        found = [
            each for each in report.found if (each.case.groups, each.case.n, each.case.k) == size
        ]
        found.sort(key=lambda each: each.case.rows_per_group)
        sides = [side for side in report.sides if any(side in each.sides for each in found)]
        groups, n, k = size
        yield Table(
            title=f"N{n} K{k}, {groups} groups: us (FP8's time over it; GB/s)",
            columns=("rows", "limit", *sides),
            rows=tuple(_cells(each, sides) for each in found),
        )


def candidates(report: Fp4Report) -> Table:
    """Return the times with each kernel that might have been chosen, fastest first."""
    rows = [
        (str(each.case), side, _candidates(each.sides[side], others))
        for each in report.found
        for side, others in each.candidates.items()
    ]
    return Table(
        title="kernels that might have been chosen: us, the chosen one in brackets",
        columns=("case", "side", "kernels"),
        rows=tuple(rows),
    )


def errors(report: Fp4Report) -> Table:
    """Return the largest error of each side over all cases."""
    worst: dict[str, float] = {}
    for each in report.found:
        for name, side in each.sides.items():
            worst[name] = max(worst.get(name, 0.0), side.error)
    return Table(
        title="errors against float32 on the same operands, the largest of all cases",
        columns=("side", "error"),
        rows=tuple((name, f"{error:.2e}") for name, error in worst.items()),
    )


def left_out(report: Fp4Report) -> Table:
    """Return who was left out, of how many cases, and why."""
    counted = Counter(item for each in report.found for item in each.missing.items())
    return Table(
        title="left out",
        columns=("side", "cases", "why"),
        rows=(
            *((name, "all", reason) for name, reason in report.absent.items()),
            *((name, str(count), reason) for (name, reason), count in counted.items()),
        ),
    )


def _candidates(timed: Timed, others: Mapping[str, float]) -> str:
    """Return the times of a side in a line."""
    chosen = timed.times.median
    found = [(seconds, f"{name} {seconds * 1e6:.1f}") for name, seconds in others.items()]
    found.append((chosen, f"[chosen {chosen * 1e6:.1f}]"))
    return "; ".join(text for _, text in sorted(found))


def _cells(found: Found, sides: list[str]) -> tuple[str, ...]:
    """Return the cells of one case; the limit is that of the side that moves least."""
    limits = [limit for side in sides if (limit := found.limit(side)) is not None]
    return (
        str(found.case.rows_per_group),
        f"{max(limits):.2f}" if limits else "",
        *(_cell(found, side) for side in sides),
    )


def _cell(found: Found, side: str) -> str:
    if side not in found.sides:
        return ""
    timed = found.sides[side]
    ratio = found.ratio(side)
    inside = "" if ratio is None or side == FP8 else f"{ratio:.2f}; "
    return f"{timed.times.median * 1e6:.1f} ({inside}{timed.rate * 1e-9:,.0f})"
