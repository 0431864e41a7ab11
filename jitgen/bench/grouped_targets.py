# SPDX-License-Identifier: Apache-2.0
"""The targets of the hopper suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from jitgen.bench.cases import DOWN, UP, Case
from jitgen.bench.grouped_records import PREFILL_ROWS, Measured, Section
from jitgen.bench.peers import PEER
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS
from jitgen.config import Layout
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.bench.grouped_report import GroupedReport

HOST_US = 9.0
ACCURACY = 1.001
"""
Largest ratio of jitgen's error to the peer's. Both round to bfloat16, so with equally exact sums
the ratio is below it.
"""


class Figure(StrEnum):
    """The kind of figure that a target is about; its value is the unit in tables."""

    COPY = "% copy"
    """The share of the copy rate."""

    LIMIT = "% limit"
    """The share of the limit: see `Measured.share`."""

    RATIO = "x"
    """The ratio to the peer."""


@frozen
class Target:
    """
    The least figure that the worst of some cases must reach.

    Attributes:
        what: Description of the cases.
        least: The least figure.
        section: Section in which the cases were measured.
        matches: Whether a case counts.
        figure: Kind of the figure that is compared.
    """

    what: str
    least: float
    matches: Callable[[Case], bool] = lambda _: True
    section: Section = Section.PUBLIC
    figure: Figure = Figure.LIMIT


def _is_decode(case: Case) -> bool:
    loose = case.layout is not Layout.CONTIGUOUS
    return loose and case.groups == 32 and case.rows_per_group <= 32


def _is_prefill(case: Case) -> bool:
    return case.rows_per_group >= PREFILL_ROWS


TARGETS = (
    Target(
        what="prefill, sustained",
        least=1.0,
        section=Section.SUSTAINED,
        matches=_is_prefill,
        figure=Figure.RATIO,
    ),
    Target(
        what="decode of 32 groups, N4096 K7168",
        least=97.0,
        matches=lambda case: _is_decode(case) and (case.n, case.k) == UP,
        figure=Figure.COPY,
    ),
    Target(
        what="decode of 32 groups, N7168 K2048",
        least=94.0,
        matches=lambda case: _is_decode(case) and (case.n, case.k) == DOWN,
        figure=Figure.COPY,
    ),
    Target(what="prefill", least=90.0, matches=_is_prefill),
    Target(what="the knee", least=58.0, section=Section.KNEE),
    Target(
        what="one token for each of 8 groups",
        least=90.0,
        section=Section.ONE_TOKEN,
        matches=lambda case: case.groups == 8,
        figure=Figure.COPY,
    ),
)

MEAN_SHARE = 91.0
"""Percent of the limit that public cases must reach in the geometric mean."""


def targets_of(report: GroupedReport) -> Iterator[Row]:
    """Yield the row of every target that `report` has a figure for, with that figure."""
    share = report.share(Section.PUBLIC)
    if share is not None:
        what = "all cases, geometric mean of the share of the limit"
        yield _row(what, share * 100, MEAN_SHARE, Figure.LIMIT)
    mean = report.geometric_mean(PEER)
    if mean is not None:
        yield _row("all cases, geometric mean of the ratio to DeepGEMM", mean, 1.10, "x")
        slower = [str(each.case) for each in report.of(Section.PUBLIC) if each.is_slower(PEER)]
        yield Row(
            suite="hopper",
            what="cases slower than DeepGEMM in every round",
            value=len(slower),
            unit="cases",
            budget=0,
            detail="; ".join(slower),
        )
    for target in TARGETS:
        yield from _worst(report, target)
    for accuracy in report.accuracy:
        if {OURS, PEER} <= accuracy.errors.keys():
            ours, theirs = accuracy.errors[OURS], accuracy.errors[PEER]
            yield Row(
                suite="hopper",
                what=f"error over DeepGEMM's, {accuracy.case.layout}",
                value=ours / theirs,
                unit="x",
                budget=ACCURACY,
                detail=f"{ours:.3e} and {theirs:.3e} of the exact result",
            )
    for each in report.of(Section.HOST):
        if each.seconds is not None:
            peer = each.median(PEER)
            yield Row(
                suite="hopper",
                what="host time of a warm grouped_gemm(..., out=out)",
                value=each.seconds * 1e6,
                unit="us",
                budget=HOST_US,
                detail="" if peer is None else f"DeepGEMM's call {peer * 1e6:.3g} us",
            )


def _worst(report: GroupedReport, target: Target) -> Iterator[Row]:
    """Yield the target's row, if any of its cases was measured."""
    found = [
        (figure, each)
        for each in report.of(target.section)
        if target.matches(each.case) and (figure := _figure(report, target, each)) is not None
    ]
    if not found:
        return
    figure, worst = min(found, key=lambda pair: pair[0])
    cases = f"worst of {len(found)}: {worst.case}"
    yield _row(target.what, figure, target.least, target.figure, cases)


def _figure(report: GroupedReport, target: Target, each: Measured) -> float | None:
    if target.figure is Figure.RATIO:
        return each.ratio(PEER)
    if not report.copy_rate:
        return None
    if target.figure is Figure.LIMIT:
        share = report.share_of(each)
        return None if share is None else share * 100
    rate = each.rate(each.num_bytes)
    return None if rate is None else rate / report.copy_rate * 100


def _row(what: str, value: float, least: float, unit: str, detail: str = "") -> Row:
    return Row(
        suite="hopper",
        what=what,
        value=value,
        unit=unit,
        budget=least,
        is_rate=True,
        detail=detail,
    )
