# SPDX-License-Identifier: Apache-2.0
"""
Measurements of the suites of grouped GEMMs, and the targets of the hopper suite.

Times are seconds of one call on the device, one for each round; ratios are a peer's time over
jitgen's, so that more than 1 means that jitgen is faster.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from jitgen.autotune.measure.times import Times
from jitgen.bench import REPORTS
from jitgen.bench.cases import DOWN, UP, Case
from jitgen.bench.peers import PEER
from jitgen.bench.protocol import Record, Row
from jitgen.bench.report import OURS, Report, Table, counted_words, failures
from jitgen.config import Arch, Layout
from jitgen.support.frozen import frozen

PADDING = "padding"
"""Name, in place of a side's, of the padding pass that a peer needs before its product."""

PREFILL_ROWS = 4096
"""Rows of a group from which a case counts as prefill."""


FLOP_PER_S = 1.45e15
"""
What FP8 products reach on an H100 or H200: 8,192 operations a clock on each of 132 SMs, at the 1.34
GHz that 700 W leave it with random operands.
"""


class Section(StrEnum):
    """Purpose of a measurement."""

    PUBLIC = "public"
    """A case of the suite, with a cold L2."""

    KNEE = "knee"
    """About 100 to 400 rows a group, of the hopper suite, with a cold L2."""

    ONE_TOKEN = "one_token"  # noqa: S105
    """One row for each group, with a cold L2."""

    SUSTAINED = "sustained"
    """Calls without pause for about a second, sides in turn: the GPU is at its power limit."""

    HOST = "host"
    """The host's time to enqueue one call on an idle GPU."""


@frozen
class Measured(Record):
    """
    One case, and how long every side took.

    Attributes:
        section: What it was for.
        case: The sizes.
        kernel: Name of the kernel that the selector chose; empty where that failed.
        flop: Floating point operations of the valid rows.
        num_bytes: Bytes of operands, scales and results of valid rows, each once.
        launches: Calls that share a pair of events, each on operands of its own.
        times: Times of `jitgen`, the peers, and a peer's padding.
        missing: Sides that were not timed, and why.
        detail: What else was seen, for example the clock.
    """

    JSON: ClassVar[str] = (
        "section case kernel flop bytes=num_bytes launches seconds=times missing detail"
    )

    section: Section
    case: Case
    kernel: str
    flop: int
    num_bytes: int
    launches: int = 1
    times: Mapping[str, Times]
    missing: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        if len({len(each.seconds) for each in self.times.values()}) > 1:
            raise ValueError("the sides of a case have unequal numbers of rounds")

    def derived(self) -> dict[str, object]:
        """Return medians and ratios."""
        return {
            "median_us": {side: times.median * 1e6 for side, times in self.times.items()},
            "ratio": {side: self.ratio(side) for side in self.times if side != OURS},
        }

    @property
    def seconds(self) -> float | None:
        """Median of jitgen's times; None where it was not timed."""
        return self.median(OURS)

    def median(self, side: str) -> float | None:
        """Return the median of a side's times; None where it was not timed."""
        return self.times[side].median if side in self.times else None

    def ratio(self, peer: str) -> float | None:
        """Return a peer's median over jitgen's; None where one was not timed."""
        ours, theirs = self.median(OURS), self.median(peer)
        return None if ours is None or theirs is None else theirs / ours

    def is_slower(self, peer: str) -> bool:
        """
        Return whether jitgen is slower than `peer` in every round, so that the difference is no
        noise.
        """
        if OURS not in self.times or peer not in self.times:
            return False
        pairs = zip(self.times[OURS].seconds, self.times[peer].seconds, strict=True)
        return all(theirs < ours for ours, theirs in pairs)

    def share(self, copy_rate: float) -> float | None:
        """
        Return the part of jitgen's median that a kernel would need at a GPU's limits.

        The limit is the larger of `num_bytes` at `copy_rate` and `flop` at `FLOP_PER_S`. Few rows
        may come to a little more than 1, for a copy writes as much as it reads.
        """
        if not (self.seconds and copy_rate):
            return None
        return max(self.num_bytes / copy_rate, self.flop / FLOP_PER_S) / self.seconds

    def rate(self, amount: float) -> float | None:
        """Return `amount` a second at jitgen's median, for example of `flop` or `num_bytes`."""
        return None if self.seconds is None else amount / self.seconds


@frozen
class Accuracy(Record):
    """
    Errors of one product against sums in float64.

    Attributes:
        case: The sizes.
        errors: For each side the error in the Frobenius norm, as a part of the exact result's.
        missing: Sides without a result, and why.
    """

    case: Case
    errors: Mapping[str, float]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The errors of all sides in a line."""
        return ", ".join(f"{side} {error:.3e}" for side, error in self.errors.items())


@frozen
class Checked(Record):
    """
    A kernel that was run on small exact problems.

    Attributes:
        kernel: Its name.
        reason: What was wrong, or why it did not run; empty where every value was right.
    """

    kernel: str
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class GroupedReport(Report):
    """
    A run of a suite of grouped GEMMs.

    Attributes:
        kernels: Every kernel that may be chosen, on a small exact problem.
        accuracy: Errors.
    """

    SUITES: ClassVar[tuple[str, ...]] = tuple(REPORTS)
    SCHEMA: ClassVar[Mapping[str, object]] = {"report_schema": 2}
    JSON: ClassVar[str] = (
        "conditions copy_bytes_per_s=copy_rate kernels measured=found accuracy notes"
    )

    found: list[Measured] = field(default_factory=list)
    kernels: list[Checked] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)

    def of(self, section: Section) -> list[Measured]:
        """Return the measurements of a section."""
        return [each for each in self.found if each.section is section]

    @property
    def peers(self) -> list[str]:
        """Every peer that was timed, in the order in which they appeared."""
        sides = (side for each in self.found for side in each.times)
        return [side for side in dict.fromkeys(sides) if side not in (OURS, PADDING)]

    def geometric_mean(self, peer: str) -> float | None:
        """Return the mean ratio to `peer` over the public cases; None where there is none."""
        ratios = [each.ratio(peer) for each in self.of(Section.PUBLIC)]
        return geometric_mean(ratio for ratio in ratios if ratio is not None)

    def share(self, section: Section) -> float | None:
        """Return the mean share of the limit over a section's cases; None where there is none."""
        if self.suite != "hopper" or not self.copy_rate:
            return None
        shares = [each.share(self.copy_rate) for each in self.of(section)]
        return geometric_mean(share for share in shares if share is not None)

    @property
    def noise(self) -> float | None:
        """
        Median over the public cases of the spread of jitgen's rounds; None without such cases.
        """
        found = [each.times[OURS].spread for each in self.of(Section.PUBLIC) if OURS in each.times]
        return statistics.median(found) if found else None

    @property
    def failures(self) -> list[str]:
        """Missing and wrong results of jitgen: one line each."""
        of_kernels = [f"{each.kernel}: {each.reason}" for each in self.kernels if each.reason]
        found: list[Measured | Accuracy] = [*self.found, *self.accuracy]
        return of_kernels + failures(found)

    @property
    def left_out(self) -> Counter[tuple[str, str]]:
        """Number of cases in which a peer was left out, by reason."""
        return counted_words((each.missing for each in self.found), OURS)

    def summary(self) -> dict[str, object]:
        """Return the means."""
        return {
            "geometric_mean": {peer: self.geometric_mean(peer) for peer in self.peers},
            "share_of_limit": {
                section: share
                for section in (Section.PUBLIC, Section.KNEE)
                if (share := self.share(section)) is not None
            },
            "noise": self.noise,
            **super(GroupedReport, self).summary(),
        }

    def lines(self) -> Iterator[str]:
        """Yield how many kernels are right, the errors, the means and the noise."""
        if self.kernels:
            wrong = sum(bool(each.reason) for each in self.kernels)
            right = len(self.kernels) - wrong
            yield f"kernels on small exact problems: {right} right, {wrong} not"
        for accuracy in self.accuracy:
            yield f"error, {accuracy.case}: {accuracy.words}"
        for peer in self.peers:
            if (mean := self.geometric_mean(peer)) is not None:
                yield f"geometric mean of the ratio to {peer}: {mean:.3f}"
        for section in (Section.PUBLIC, Section.KNEE):
            if (share := self.share(section)) is not None:
                yield f"geometric mean of the share of the limit, {section}: {share:.3f}"
        if self.noise is not None:
            yield f"noise: rounds lie {self.noise:.1%} apart"

    def remarks(self) -> Iterator[str]:
        """Yield notes on how to read ratios, on the peers, and on missing ones."""
        if self.peers:
            yield "under a peer's name: its time over jitgen's, so above 1 jitgen is faster"
        yield from super(GroupedReport, self).remarks()
        for (name, reason), count in self.left_out.items():
            yield f"{name} left out of {count} case{'s' * (count != 1)}: {reason}"

    def tables(self) -> Iterator[Table]:
        """Yield a table for each section."""
        for section in Section:
            if found := self.of(section):
                yield self._section(section, found)

    def to_send(self, machine: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield a report to send, in Markdown; it names no paths, users or settings."""
        device = self.conditions.get("gpu", "a device that is not known")
        yield from (f"# jitgen bench {self.suite}: {device}", "")
        missing = ((side, str(count), why) for (side, why), count in self.left_out.items())
        for title, columns, rows in (
            ("Conditions", ("condition", "value"), self.conditions.items()),
            ("The machine that wrote this", ("what", "value"), machine),
            (
                "Kernels on small exact problems",
                ("kernel", "result"),
                ((each.kernel, each.reason or "right") for each in self.kernels),
            ),
            *((table.title, table.columns, table.rows) for table in self.tables()),
            (
                "Errors against float64",
                ("case", "errors"),
                ((str(each.case), each.words) for each in self.accuracy),
            ),
            (
                "What was left out",
                ("side", "cases", "why"),
                (
                    *((name, "", note) for name, note in self.notes.items()),
                    *missing,
                    *((OURS, "", failure) for failure in self.failures),
                ),
            ),
        ):
            table = Table(title=title, columns=columns, rows=tuple(rows))
            yield from table.markdown(empty="None.")
        yield from ("## All of it", "", "```json", json.dumps(self.to_json()), "```")

    def _section(self, section: Section, found: Sequence[Measured]) -> Table:
        peers = [peer for peer in self.peers if any(peer in each.times for each in found)]
        padding = [PADDING] if any(PADDING in each.times for each in found) else []
        return Table(
            title=section,
            columns=(
                *("CASE", "US", "NOISE", "TFLOPS", "GB/s", "OF COPY", "OF LIMIT"),
                *(peer.upper() for peer in peers),
                *("PADDING US" for _ in padding),
                *("KERNEL", "DETAIL"),
            ),
            texts=("CASE", "KERNEL", "DETAIL"),
            rows=tuple(
                (
                    str(each.case),
                    *self._figures(each),
                    *(_cell(each.ratio(peer), "{:.3f}") for peer in peers),
                    *(_cell(each.median(side), "{:.1f}", 1e6) for side in padding),
                    _short(each.kernel),
                    each.detail,
                )
                for each in found
            ),
        )

    def _figures(self, each: Measured) -> tuple[str, ...]:
        """Return jitgen's time, and figures computed from it if it is a device time."""
        us = _cell(each.seconds, "{:.1f}", 1e6)
        if each.section is Section.HOST:
            return (us, "", "", "", "", "")
        flop, num_bytes = (each.rate(amount) for amount in (each.flop, each.num_bytes))
        of_copy = num_bytes / self.copy_rate if num_bytes and self.copy_rate else None
        of_limit = each.share(self.copy_rate) if self.suite == "hopper" else None
        spread = each.times[OURS].spread if OURS in each.times else None
        return (
            us,
            _cell(spread, "{:.1%}"),
            _cell(flop, "{:,.0f}", 1e-12),
            _cell(num_bytes, "{:,.0f}", 1e-9),
            _cell(of_copy, "{:.1%}"),
            _cell(of_limit, "{:.1%}"),
        )

    def targets(self) -> Iterator[Row]:
        """
        Yield every target of the hopper suite. The blackwell suite was never run and has no targets
        yet.
        """
        if self.suite == "hopper":
            yield from _targets(self)


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean; None without ratios."""
    logarithms: Sequence[float] = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


def _cell(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else form.format(value * scale)


def _short(kernel: str) -> str:
    """Return the part of a kernel's name that varies within a suite: tile, cluster, schedule."""
    _, _, rest = kernel.partition("_bf16_")
    for arch in Arch:
        rest = rest.removesuffix(f"_{arch}")
    return rest or kernel


HOST_US = 9.0
ACCURACY = 1.001
"""
Largest ratio of jitgen's error to the peer's. Both round to bfloat16, so with equally exact sums
the ratio is below it.
"""


class Figure(StrEnum):
    """What a target is about, as its unit is written."""

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
        what: Which cases, in words.
        least: The least figure.
        section: Where they were measured.
        matches: Whether a case counts.
        figure: What is compared.
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


def _targets(report: GroupedReport) -> Iterator[Row]:
    """Yield every target that `report` has a figure for, and that figure."""
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
        share = each.share(report.copy_rate)
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
