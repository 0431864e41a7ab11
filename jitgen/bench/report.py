# SPDX-License-Identifier: Apache-2.0
"""
What a suite of grouped GEMMs measured, as values that can be written and read again.

Times are seconds of one call on the device, one for each round; ratios are a peer's time over
jitgen's, so that more than 1 means that jitgen is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from jitgen.autotune.measure.times import Times
from jitgen.bench import REPORTS, files
from jitgen.bench.cases import Case
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SCHEMA = 2
OURS = "jitgen"
PADDING = "padding"
"""The pass that a peer needs before its product, in the place of a side."""


class Section(StrEnum):
    """What a measurement was for."""

    PUBLIC = "public"
    """A case of the suite, with a cold L2."""

    ONE_TOKEN = "one_token"  # noqa: S105
    """One row for each group, with a cold L2."""

    SUSTAINED = "sustained"
    """Back to back for about a second, sides in turn: at the power limit."""

    HOST = "host"
    """The host's time to enqueue one call on an idle GPU."""


@frozen
class Measured:
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

    section: Section
    case: Case
    kernel: str
    flop: int
    num_bytes: int
    launches: int = 1
    times: Mapping[str, Times]
    missing: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""

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
        """Say whether jitgen is slower than `peer` in every round: beyond the noise."""
        if OURS not in self.times or peer not in self.times:
            return False
        pairs = zip(self.times[OURS].seconds, self.times[peer].seconds, strict=True)
        return all(theirs < ours for ours, theirs in pairs)

    def rate(self, amount: float) -> float | None:
        """Return `amount` a second at jitgen's median, for example of `flop` or `num_bytes`."""
        return None if self.seconds is None else amount / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON values, with what follows from it for readers."""
        return {
            "section": self.section,
            "case": self.case.to_json(),
            "kernel": self.kernel,
            "flop": self.flop,
            "bytes": self.num_bytes,
            "launches": self.launches,
            "seconds": {side: list(times.seconds) for side, times in self.times.items()},
            "missing": dict(self.missing),
            "detail": self.detail,
            "median_us": {side: times.median * 1e6 for side, times in self.times.items()},
            "ratio": {side: self.ratio(side) for side in self.times if side != OURS},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Measured:
        """
        Return what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It did not write `document`.
        """
        times = {
            side: Times(seconds=tuple(map(float, seconds)))
            for side, seconds in document["seconds"].items()
        }
        if len({len(each.seconds) for each in times.values()}) > 1:
            raise ValueError("the sides of a case have unequal numbers of rounds")
        if not all(min(each.seconds, default=0.0) > 0 for each in times.values()):
            raise ValueError("times are positive, and there is one for each round")
        return cls(
            section=Section(document["section"]),
            case=Case.from_json(document["case"]),
            kernel=document["kernel"],
            flop=document["flop"],
            num_bytes=document["bytes"],
            launches=document["launches"],
            times=times,
            missing=document["missing"],
            detail=document["detail"],
        )


@frozen
class Accuracy:
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

    def to_json(self) -> dict[str, Any]:
        """Return the errors as JSON values."""
        return {
            "case": self.case.to_json(),
            "errors": dict(self.errors),
            "missing": dict(self.missing),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Accuracy:
        """Return what `to_json` wrote."""
        case = Case.from_json(document["case"])
        return cls(case=case, errors=document["errors"], missing=document["missing"])


@frozen
class Checked:
    """
    A kernel that was run on small exact problems.

    Attributes:
        kernel: Its name.
        reason: What was wrong, or why it did not run; empty where every value was right.
    """

    kernel: str
    reason: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the kernel as JSON values."""
        return {"kernel": self.kernel, "reason": self.reason}


@dataclass(slots=True, kw_only=True)
class BenchReport:
    """
    A run of the suite, which grows while it runs.

    Attributes:
        suite: Its name.
        conditions: What figures depend on: device, versions, clocks seen.
        copy_rate: Bytes a second of a copy within the device's memory, read and written ones; 0
            where it was not measured.
        kernels: Every kernel that may be chosen, on a small exact problem.
        measured: Every case.
        accuracy: Errors.
        notes: What a reader must know of a peer.
    """

    suite: str = "hopper"
    conditions: dict[str, str] = field(default_factory=dict)
    copy_rate: float = 0.0
    kernels: list[Checked] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def of(self, section: Section) -> list[Measured]:
        """Return the measurements of a section."""
        return [each for each in self.measured if each.section is section]

    @property
    def peers(self) -> list[str]:
        """Every peer that was timed, in the order in which they appeared."""
        sides = (side for each in self.measured for side in each.times)
        return [side for side in dict.fromkeys(sides) if side not in (OURS, PADDING)]

    def geometric_mean(self, peer: str) -> float | None:
        """Return the mean ratio to `peer` over the public cases; None where there is none."""
        ratios = [each.ratio(peer) for each in self.of(Section.PUBLIC)]
        return geometric_mean(ratio for ratio in ratios if ratio is not None)

    @property
    def noise(self) -> float | None:
        """Median over the public cases of how far jitgen's rounds lie apart; None without any."""
        found = [each.times[OURS].spread for each in self.of(Section.PUBLIC) if OURS in each.times]
        return statistics.median(found) if found else None

    @property
    def failures(self) -> list[str]:
        """What jitgen did not compute, or not right: one line each."""
        found: list[Measured | Accuracy] = [*self.measured, *self.accuracy]
        of_kernels = [f"{each.kernel}: {each.reason}" for each in self.kernels if each.reason]
        return of_kernels + [
            f"{each.case}: {each.missing[OURS]}" for each in found if OURS in each.missing
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "suite": self.suite,
            "report_schema": SCHEMA,
            "conditions": self.conditions,
            "copy_bytes_per_s": self.copy_rate,
            "kernels": [each.to_json() for each in self.kernels],
            "measured": [each.to_json() for each in self.measured],
            "accuracy": [each.to_json() for each in self.accuracy],
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BenchReport:
        """
        Return what `to_json` wrote.

        Raises:
            ConfigError: `document` is something else.
        """
        suite = document.get("suite")
        if suite not in REPORTS or document.get("report_schema") != SCHEMA:
            raise ConfigError(f"it is no report of {' or '.join(REPORTS)} of this version")
        try:
            return cls(
                suite=suite,
                conditions=dict(document["conditions"]),
                copy_rate=float(document["copy_bytes_per_s"]),
                kernels=[Checked(**each) for each in document["kernels"]],
                measured=[Measured.from_json(each) for each in document["measured"]],
                accuracy=[Accuracy.from_json(each) for each in document["accuracy"]],
                notes=dict(document["notes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the report is damaged: {shown(error)}") from None

    def save(self, path: Path) -> None:
        """
        Write the report to `path` in one step, so that a reader never sees half of it.

        Raises:
            ConfigError: The file cannot be written.
        """
        files.write(self.to_json(), path)

    @classmethod
    def read(cls, path: Path) -> BenchReport:
        """
        Return the report that `save`, or the command's ``--json``, wrote to `path`.

        Raises:
            ConfigError: The file cannot be read or is no such report.
        """
        return files.read(path, cls.from_json)


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    logarithms: Sequence[float] = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None
