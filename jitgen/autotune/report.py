# SPDX-License-Identifier: Apache-2.0
"""Outcome of a run of the tuner, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.selection.record import TuningRecord
from jitgen.support.frozen import frozen


class TuningState(StrEnum):
    """Outcome of tuning a problem: recorded before, measured now, or failed."""

    RECORDED = "recorded"
    MEASURED = "measured"
    FAILED = "failed"


@frozen
class TuningRow:
    """
    The result of tuning one problem.

    Attributes:
        problem: The problem that represents its bucket.
        arch: The target.
        state: ``recorded`` (measured by an earlier run), ``measured`` or ``failed``.
        record: Its measurements; None if it failed.
        by_model: Name of the kernel that the model would choose.
        missing: Kernels that could not be tried, with the reason; a later run tries them.
        seconds: Seconds that the measurement took.
        error: Why it failed; empty if it did not.
    """

    problem: GroupedGemmProblem
    arch: Arch
    state: TuningState
    record: TuningRecord | None
    by_model: str
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)
    seconds: float = 0.0
    error: str = ""

    @property
    def ahead(self) -> float | None:
        """
        The additional time of the model's choice, relative to the time of the winner; None if it is
        unknown.
        """
        if self.record is None or self.by_model not in self.record.times_us:
            return None
        times = self.record.times_us
        return times[self.by_model] / times[self.record.winner] - 1


@frozen
class TuningReport:
    """
    Outcome of a run of the tuner.

    Attributes:
        arch: The target.
        device: Name of the device.
        rows: One result for each problem.
        wall_s: Seconds from beginning to end.
    """

    arch: Arch
    device: str
    rows: tuple[TuningRow, ...]
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether every problem has a record of measurements now."""
        return all(row.record is not None for row in self.rows)

    def count(self, state: TuningState) -> int:
        """Return how many problems are in `state`."""
        return sum(row.state is state for row in self.rows)
