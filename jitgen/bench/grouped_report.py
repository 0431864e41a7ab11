# SPDX-License-Identifier: Apache-2.0
"""Runs of the suites of grouped GEMMs, as tables, as a document, and as a file to send."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from jitgen.bench import REPORTS
from jitgen.bench.grouped_records import PADDING, Accuracy, Checked, Measured, Section
from jitgen.bench.grouped_targets import targets_of
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS, Report, Table, counted_words, failures
from jitgen.config import Arch


@dataclass(slots=True, kw_only=True)
class GroupedReport(Report):
    """
    Report of a run of a suite of grouped GEMMs.

    Attributes:
        kernels: Results of every kernel that may be chosen, on small exact problems.
        accuracy: Errors against sums in float64.
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
        """Return the geometric mean ratio to `peer` of the public cases; None if there is none."""
        ratios = [each.ratio(peer) for each in self.of(Section.PUBLIC)]
        return geometric_mean(ratio for ratio in ratios if ratio is not None)

    def share(self, section: Section) -> float | None:
        """
        Return the geometric mean share of the limit of a section's cases; None if none has a limit,
        as on Blackwell.
        """
        shares = [self.share_of(each) for each in self.of(section)]
        return geometric_mean(share for share in shares if share is not None)

    def share_of(self, each: Measured) -> float | None:
        """
        Return `Measured.share` of a measurement: its part of the GPU's limit; None for the
        blackwell suite, whose limit is not known.
        """
        return each.share(self.copy_rate) if self.suite == "hopper" else None

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
        """Number of cases in which a peer was left out, by peer and reason."""
        return counted_words((each.missing for each in self.found), OURS)

    def summary(self) -> dict[str, object]:
        """
        Return each peer's geometric mean ratio, the share of the limit, the noise, and the targets
        with their figures.
        """
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
        spread = each.times[OURS].spread if OURS in each.times else None
        return (
            us,
            _cell(spread, "{:.1%}"),
            _cell(flop, "{:,.0f}", 1e-12),
            _cell(num_bytes, "{:,.0f}", 1e-9),
            _cell(of_copy, "{:.1%}"),
            _cell(self.share_of(each), "{:.1%}"),
        )

    def targets(self) -> Iterator[Row]:
        """
        Yield every target of the hopper suite. The blackwell suite was never run and has no targets
        yet.
        """
        if self.suite == "hopper":
            yield from targets_of(self)


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
