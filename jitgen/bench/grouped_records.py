# SPDX-License-Identifier: Apache-2.0
"""
What the suites of grouped GEMMs record of a case, a product and a kernel.

Times are seconds of one call on the device, in `Section.HOST` on the host, one for each round;
ratios are a peer's time over jitgen's, so that more than 1 means that jitgen is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from jitgen.autotune.measure.times import Times
from jitgen.bench.cases import Case
from jitgen.bench.protocol import Record
from jitgen.bench.report import OURS
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
        section: Section of the report for which it was measured.
        case: The sizes.
        kernel: Name of the kernel that the selector chose; empty if jitgen was not timed.
        flop: Floating point operations of the valid rows.
        num_bytes: Bytes of operands, scales and results of valid rows, each once.
        launches: Calls that share a pair of events, each on operands of its own.
        times: Times of `jitgen`, the peers, and a peer's padding.
        missing: Sides that were not timed, and why.
        detail: Other facts of the measurement, for example the clock.
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
        Return the part of jitgen's median that a kernel would need at a GPU's limits; None without
        a time or a copy rate.

        The limit is the larger of `num_bytes` at `copy_rate` and `flop` at `FLOP_PER_S`. With few
        rows the result may be a little more than 1, because a copy also writes as much as it reads.
        """
        if not (self.seconds and copy_rate):
            return None
        return max(self.num_bytes / copy_rate, self.flop / FLOP_PER_S) / self.seconds

    def rate(self, amount: float) -> float | None:
        """
        Return `amount` a second at jitgen's median, for example of `flop` or `num_bytes`; None
        where jitgen was not timed.
        """
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
        """The errors of all sides as one line of text."""
        return ", ".join(f"{side} {error:.3e}" for side, error in self.errors.items())


@frozen
class Checked(Record):
    """
    The result of a kernel on a small exact problem.

    Attributes:
        kernel: Its name.
        reason: What was wrong, or why it did not run; empty where every value was right.
    """

    kernel: str
    reason: str = ""
