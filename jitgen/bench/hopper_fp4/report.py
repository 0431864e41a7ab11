# SPDX-License-Identifier: Apache-2.0
"""
What the suite found, as values that can be written and read again.

A ratio is the FP8 kernel's time over a side's, so that more than 1 means that FP4 pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitgen.autotune.measure.times import Times
from jitgen.bench import files
from jitgen.bench.cases import Case
from jitgen.bench.hopper_fp4 import NAME
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SCHEMA = 1
FP8 = "fp8"
"""The side that all others are compared with."""


@frozen
class Timed:
    """
    One side of a case.

    Attributes:
        times: Seconds of a call, one figure for each round.
        num_bytes: Weights, scales, activations and results, each once.
        error: Of its result, in the Frobenius norm, as a part of the float32 product's.
        kernel: Name of the kernel, where jitgen's selector chose it.
    """

    times: Times
    num_bytes: int
    error: float
    kernel: str = ""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.num_bytes / self.times.median

    def to_json(self) -> dict[str, Any]:
        """Return the side as JSON values, with its median for readers."""
        return {
            "seconds": list(self.times.seconds),
            "bytes": self.num_bytes,
            "error": self.error,
            "kernel": self.kernel,
            "median_us": self.times.median * 1e6,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Timed:
        """Return what `to_json` wrote."""
        seconds = tuple(map(float, document["seconds"]))
        if not min(seconds, default=0.0) > 0:
            raise ValueError("times are positive, and there is one for each round")
        return cls(
            times=Times(seconds=seconds),
            num_bytes=int(document["bytes"]),
            error=float(document["error"]),
            kernel=str(document["kernel"]),
        )


@frozen
class Found:
    """
    One case.

    Attributes:
        case: The sizes.
        sides: Everyone who computed it right, under their names.
        missing: The others, and why.
        candidates: For each of jitgen's sides seconds with each other kernel that might have been
            chosen, if they were asked for.
    """

    case: Case
    sides: Mapping[str, Timed]
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
        """Return the ratio of the bytes: what `ratio` would be if both moved equally fast."""
        if FP8 not in self.sides or side not in self.sides:
            return None
        return self.sides[FP8].num_bytes / self.sides[side].num_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values, with what follows from them for readers."""
        return {
            "case": self.case.to_json(),
            "sides": {name: side.to_json() for name, side in self.sides.items()},
            "missing": dict(self.missing),
            "candidates": {name: dict(each) for name, each in self.candidates.items()},
            "ratio": {name: self.ratio(name) for name in self.sides},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Found:
        """Return what `to_json` wrote."""
        return cls(
            case=Case.from_json(document["case"]),
            sides={name: Timed.from_json(side) for name, side in document["sides"].items()},
            missing=dict(document["missing"]),
            candidates={name: dict(each) for name, each in document["candidates"].items()},
        )


@dataclass(slots=True, kw_only=True)
class Fp4Report:
    """
    A run of the suite, which grows while it runs.

    Attributes:
        conditions: What figures depend on: device, versions, clocks seen.
        copy_rate: Bytes a second of a copy within the device's memory, read and written ones; 0
            where it was not measured.
        found: Every case that is done.
        notes: What a reader must know of a side.
        absent: Sides that take no part at all, and why.
        launching: The side whose first launch is under way; a process that ends in it leaves the
            name of the one that hung.
    """

    conditions: dict[str, str] = field(default_factory=dict)
    copy_rate: float = 0.0
    found: list[Found] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    launching: str = ""

    @property
    def failures(self) -> list[str]:
        """What FP8, without which there is no ratio, did not compute: one line each."""
        return [f"{each.case}: {each.missing[FP8]}" for each in self.found if FP8 in each.missing]

    @property
    def sides(self) -> list[str]:
        """Everyone who was timed, in the order in which they appeared."""
        return list(dict.fromkeys(name for each in self.found for name in each.sides))

    def at(self, rows: int, n: int, k: int) -> Found | None:
        """Return the case of these sizes; None where it was not measured."""
        for each in self.found:
            case = each.case
            if (case.rows_per_group, case.n, case.k) == (rows, n, k):
                return each
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "suite": NAME,
            "report_schema": SCHEMA,
            "conditions": self.conditions,
            "copy_bytes_per_s": self.copy_rate,
            "found": [each.to_json() for each in self.found],
            "notes": self.notes,
            "absent": self.absent,
            "launching": self.launching,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Fp4Report:
        """
        Return what `to_json` wrote.

        Raises:
            ConfigError: `document` is something else.
        """
        if (document.get("suite"), document.get("report_schema")) != (NAME, SCHEMA):
            raise ConfigError(f"it is no report of {NAME} of this version")
        try:
            return cls(
                conditions=dict(document["conditions"]),
                copy_rate=float(document["copy_bytes_per_s"]),
                found=[Found.from_json(each) for each in document["found"]],
                notes=dict(document["notes"]),
                absent=dict(document["absent"]),
                launching=str(document["launching"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the report is damaged: {shown(error)}") from None

    def save(self, path: Path) -> None:
        """
        Write the report to `path` in one step.

        Raises:
            ConfigError: The file cannot be written.
        """
        files.write(self.to_json(), path)

    @classmethod
    def read(cls, path: Path) -> Fp4Report:
        """
        Return the report that `save` wrote to `path`.

        Raises:
            ConfigError: The file cannot be read or is no such report.
        """
        return files.read(path, cls.from_json)
