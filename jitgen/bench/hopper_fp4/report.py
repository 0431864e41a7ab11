# SPDX-License-Identifier: Apache-2.0
"""
Measurements, tables and targets of the hopper-fp4 suite.

A ratio is the FP8 kernel's time over a side's; above 1, the side is faster than FP8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from jitgen.autotune.measure.times import Times
from jitgen.bench.cases import DOWN, UP, Case
from jitgen.bench.hopper_fp4 import NAME
from jitgen.bench.protocol import Record, Row
from jitgen.bench.report import Report, Table, counted_words
from jitgen.support.frozen import frozen

FP8 = "fp8"
"""The side that all others are compared with."""

E4M3 = ("e4m3", "e4m3 folded")
BF16 = ("e4m3x2", "e4m3x2 folded", "bf16")
"""Sides that take bfloat16 activations without loss."""

GPT_OSS = (5760, 2880)


@frozen
class Target:
    """
    The least ratio that the best of some sides must reach in one case.

    Attributes:
        sides: Names of jitgen's sides, of which the fastest counts.
        other: The slower side: ``fp8`` or a peer.
        matrix: N and K.
        rows: Rows of a group.
        least: The least of `other`'s time over that of the best side.
    """

    sides: tuple[str, ...]
    other: str
    matrix: tuple[int, int]
    rows: int
    least: float


TARGETS = (
    *(
        Target(sides=E4M3, other="fp8", matrix=matrix, rows=rows, least=least)
        for matrix, goals in (
            (UP, {1: 1.82, 8: 1.78, 16: 1.73, 32: 1.70, 64: 1.35}),
            (DOWN, {1: 1.76, 8: 1.68, 16: 1.67, 32: 1.64, 64: 1.18}),
            (GPT_OSS, {1: 1.70, 8: 1.68, 32: 1.55}),
        )
        for rows, least in goals.items()
    ),
    Target(sides=BF16, other="fp8", matrix=UP, rows=8, least=1.75),
    Target(sides=BF16, other="fp8", matrix=UP, rows=32, least=1.45),
    Target(sides=E4M3, other="humming e4m3", matrix=UP, rows=8, least=1.07),
    Target(sides=BF16, other="triton_kernels", matrix=UP, rows=8, least=1.35),
    Target(sides=BF16, other="marlin", matrix=UP, rows=8, least=1.6),
    Target(sides=BF16, other="humming bf16", matrix=UP, rows=8, least=1.5),
)


@frozen
class SideTimes(Record):
    """
    The times of one side of a case.

    Attributes:
        times: Seconds of a call, one figure for each round.
        num_bytes: Bytes of weights, scales, activations and results, each counted once.
        error: Error of its result in the Frobenius norm, relative to the float32 product.
        kernel: Name of the kernel, where jitgen's selector chose it.
    """

    JSON: ClassVar[str] = "seconds=times bytes=num_bytes error kernel"

    times: Times
    num_bytes: int
    error: float
    kernel: str = ""

    @property
    def rate(self) -> float:
        """Bytes per second, at the median time."""
        return self.num_bytes / self.times.median

    def derived(self) -> dict[str, object]:
        """Return the median of the times, in microseconds."""
        return {"median_us": self.times.median * 1e6}


@frozen
class Measured(Record):
    """
    The results of one case.

    Attributes:
        case: The sizes.
        sides: The sides with a right result, by name.
        missing: The other sides, each with the reason.
        candidates: For each of jitgen's sides the seconds of its other candidate kernels, if these
            were to be timed.
    """

    case: Case
    sides: Mapping[str, SideTimes]
    missing: Mapping[str, str] = field(default_factory=dict)
    candidates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def median(self, side: str) -> float | None:
        """Return the median of a side's seconds; None where it was not timed."""
        return self.sides[side].times.median if side in self.sides else None

    def over(self, side: str, other: str) -> float | None:
        """Return the time of `side` over that of `other`; None where one was not timed."""
        above, below = self.median(side), self.median(other)
        return None if above is None or below is None else above / below

    def ratio(self, side: str) -> float | None:
        """Return how much faster than FP8 a side is; None where one was not timed."""
        return self.over(FP8, side)

    def limit(self, side: str) -> float | None:
        """
        Return FP8's bytes over the side's bytes: the value that `ratio` would have if both sides
        read bytes at the same rate; None where one was not timed.
        """
        if FP8 not in self.sides or side not in self.sides:
            return None
        return self.sides[FP8].num_bytes / self.sides[side].num_bytes

    def derived(self) -> dict[str, object]:
        """Return for each side FP8's time over the side's."""
        return {"ratio": {name: self.ratio(name) for name in self.sides}}


@dataclass(slots=True, kw_only=True)
class Fp4Report(Report):
    """
    Report of a run of the hopper-fp4 suite.

    Attributes:
        absent: Sides that are left out of all cases, each with the reason.
        launching: The side whose first launch is running. If the process ends during this launch,
            the name in the file says which side hung.
    """

    SUITES: ClassVar[tuple[str, ...]] = (NAME,)
    SCHEMA: ClassVar[Mapping[str, object]] = {"report_schema": 1}
    NEEDED: ClassVar[str] = FP8
    JSON: ClassVar[str] = "conditions copy_bytes_per_s=copy_rate found notes absent launching"

    found: list[Measured] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    launching: str = ""

    def at(self, rows: int, n: int, k: int) -> Measured | None:
        """Return the results of the case with these sizes; None where it was not measured."""
        for each in self.found:
            case = each.case
            if (case.rows_per_group, case.n, case.k) == (rows, n, k):
                return each
        return None

    def targets(self) -> Iterator[Row]:
        """Yield the row of every target that the report has a figure for, with that figure."""
        for target in TARGETS:
            n, k = target.matrix
            found = self.at(target.rows, n, k)
            ratios = {} if found is None else _ratios(found, target)
            if not ratios:
                continue
            best = max(ratios, key=lambda side: ratios[side])
            activations = "bf16" if target.sides == BF16 else "e4m3"
            case = f"{activations} activations, {target.rows} rows, N{n} K{k}"
            yield Row(
                suite=NAME,
                what=f"{target.other} over FP4, {case}",
                value=ratios[best],
                unit="x",
                budget=target.least,
                is_rate=True,
                detail=f"best: {best}",
            )

    def tables(self) -> Iterator[Table]:
        """
        Yield a table for each size, and tables of other kernels, of errors, and of sides that were
        left out.
        """
        sizes = dict.fromkeys((each.case.groups, each.case.n, each.case.k) for each in self.found)
        for size in sizes:
            yield self._of_size(*size)
        yield Table(
            title="kernels that might have been chosen: us, the chosen one in brackets",
            columns=("case", "side", "kernels"),
            rows=tuple(
                (str(each.case), side, _candidates(each.sides[side], others))
                for each in self.found
                for side, others in each.candidates.items()
            ),
        )
        worst: dict[str, float] = {}
        for each in self.found:
            for name, side in each.sides.items():
                worst[name] = max(worst.get(name, 0.0), side.error)
        yield Table(
            title="errors against float32 on the same operands, the largest of all cases",
            columns=("side", "error"),
            rows=tuple((name, f"{error:.2e}") for name, error in worst.items()),
        )
        counts = counted_words(each.missing for each in self.found)
        yield Table(
            title="left out",
            columns=("side", "cases", "why"),
            rows=(
                *((name, "all", reason) for name, reason in self.absent.items()),
                *((name, str(count), reason) for (name, reason), count in counts.items()),
            ),
        )

    def _of_size(self, *size: int) -> Table:
        """Return the cases of a size: us, in brackets the ratio to FP8 and GB/s."""
        found = [
            each for each in self.found if (each.case.groups, each.case.n, each.case.k) == size
        ]
        found.sort(key=lambda each: each.case.rows_per_group)
        here = {name for each in found for name in each.sides}
        every = dict.fromkeys(name for each in self.found for name in each.sides)
        sides = [name for name in every if name in here]
        groups, n, k = size
        return Table(
            title=f"N{n} K{k}, {groups} groups: us (FP8's time over it; GB/s)",
            columns=("rows", "limit", *sides),
            rows=tuple(_cells(each, sides) for each in found),
        )


def _ratios(found: Measured, target: Target) -> dict[str, float]:
    """Return for each of the target's sides the time of `Target.other` over the side's."""
    pairs = {side: found.over(target.other, side) for side in target.sides}
    return {side: ratio for side, ratio in pairs.items() if ratio is not None}


def _candidates(timed: SideTimes, others: Mapping[str, float]) -> str:
    """Return the times of a side's chosen kernel and of its other candidates in a line."""
    chosen = timed.times.median
    found = [(seconds, f"{name} {seconds * 1e6:.1f}") for name, seconds in others.items()]
    found.append((chosen, f"[chosen {chosen * 1e6:.1f}]"))
    return "; ".join(text for _, text in sorted(found))


def _cells(found: Measured, sides: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of one case; the limit is that of the side with the fewest bytes."""
    limits = [limit for side in sides if (limit := found.limit(side)) is not None]
    return (
        str(found.case.rows_per_group),
        f"{max(limits):.2f}" if limits else "",
        *(_cell(found, side) for side in sides),
    )


def _cell(found: Measured, side: str) -> str:
    if side not in found.sides:
        return ""
    timed = found.sides[side]
    ratio = found.ratio(side)
    inside = "" if ratio is None or side == FP8 else f"{ratio:.2f}; "
    return f"{timed.times.median * 1e6:.1f} ({inside}{timed.rate * 1e-9:,.0f})"
