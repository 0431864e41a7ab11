# SPDX-License-Identifier: Apache-2.0
"""What the hopper suite is to show, each target with the figure that a report has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitgen.bench.cases import DOWN, UP, Case
from jitgen.bench.peers import PEER
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS, BenchReport, Measured, Section
from jitgen.bench.suite import PREFILL_ROWS
from jitgen.config import Layout
from jitgen.support.frozen import frozen

HOST_US = 9.0
ACCURACY = 1.001
"""Error over the peer's; both round to bfloat16, so equal sums differ by less."""


@frozen
class Target:
    """
    The least that the worst of some cases must reach.

    Attributes:
        what: Which cases, in words.
        least: The least figure.
        section: Where they were measured.
        matches: Whether a case counts.
        is_copy_share: The figure is the share of the copy rate in percent; else the ratio to the
            peer.
    """

    what: str
    least: float
    matches: Callable[[Case], bool]
    section: Section = Section.PUBLIC
    is_copy_share: bool = False


def _is_decode(case: Case) -> bool:
    loose = case.layout is not Layout.CONTIGUOUS
    return loose and case.groups == 32 and case.rows_per_group <= 32


def _contiguous(rows: int) -> Callable[[Case], bool]:
    return lambda case: (
        case.layout is Layout.CONTIGUOUS and (case.groups, case.rows_per_group) == (8, rows)
    )


TARGETS = (
    Target(
        what="prefill, sustained",
        least=1.0,
        section=Section.SUSTAINED,
        matches=lambda case: case.rows_per_group >= PREFILL_ROWS,
    ),
    Target(
        what="decode of 32 groups, N4096 K7168",
        least=97.0,
        matches=lambda case: _is_decode(case) and (case.n, case.k) == UP,
        is_copy_share=True,
    ),
    Target(
        what="decode of 32 groups, N7168 K2048",
        least=94.0,
        matches=lambda case: _is_decode(case) and (case.n, case.k) == DOWN,
        is_copy_share=True,
    ),
    Target(what="contiguous, 8 groups of 64", least=1.15, matches=_contiguous(64)),
    Target(what="contiguous, 8 groups of 128", least=1.08, matches=_contiguous(128)),
    Target(what="contiguous, 8 groups of 512", least=1.08, matches=_contiguous(512)),
    Target(
        what="masked, 32 groups of 192",
        least=1.03,
        matches=lambda case: case.layout is Layout.MASKED and case.rows_per_group == 192,
    ),
    Target(
        what="ragged groups beyond decode, the GEMM alone",
        least=1.15,
        matches=lambda case: case.layout is Layout.RAGGED and case.rows_per_group > 32,
    ),
    Target(
        what="one token for each of 8 groups",
        least=90.0,
        section=Section.ONE_TOKEN,
        matches=lambda case: case.groups == 8,
        is_copy_share=True,
    ),
)


def rows(report: BenchReport) -> Iterator[Row]:
    """Yield every target that `report` has a figure for, and that figure."""
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


def _worst(report: BenchReport, target: Target) -> Iterator[Row]:
    """Yield the target's row, if any of its cases was measured."""
    found = [
        (figure, each)
        for each in report.of(target.section)
        if target.matches(each.case) and (figure := _figure(report, target, each)) is not None
    ]
    if not found:
        return
    figure, worst = min(found, key=lambda pair: pair[0])
    unit = "% copy" if target.is_copy_share else "x"
    cases = f"worst of {len(found)}: {worst.case}"
    yield _row(target.what, figure, target.least, unit, cases)


def _figure(report: BenchReport, target: Target, each: Measured) -> float | None:
    if not target.is_copy_share:
        return each.ratio(PEER)
    rate = each.rate(each.num_bytes)
    return rate / report.copy_rate * 100 if rate is not None and report.copy_rate else None


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
