# SPDX-License-Identifier: Apache-2.0
"""What was measured on a device: its shipped table, and its survey by `jitgen bench choice`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from jitgen.bench.choice.cases import Case
from jitgen.bench.choice.report import ChoiceReport
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.frozen import frozen
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a import cost
from jitgen.tuning import known
from jitgen.tuning.known import file_of
from jitgen.tuning.search.trials import row_counts

SURVEYS = Path(__file__).parents[1] / "surveys"


@frozen
class Measured:
    """
    The candidates of one problem and their microseconds.

    Attributes:
        problem: As a call has it.
        rows: Of each group, with the padding of contiguous ones.
        owned: Part of them in parts of 64 of which a group has some; see `cost`.
        times: Of each candidate.
        is_survey: Whether it is of the survey, and not of the table.
    """

    problem: Problem
    rows: tuple[float, ...]
    owned: float
    times: tuple[tuple[KernelConfig, float], ...]
    is_survey: bool = False

    @property
    def regrets(self) -> tuple[float, ...]:
        """By what part of the shortest time each candidate is slower."""
        return tuple(us / self.best - 1 for _, us in self.times)

    @property
    def best(self) -> float:
        """The shortest time."""
        return min(us for _, us in self.times)


TYPES = {"fp8": (DType.E4M3, ScaleGranularity.BLOCK128), "bf16": (DType.BF16, None)}
"""What is fitted: types of a, with the scales that stand for all others."""


def measured(device: Device, types: str) -> list[Measured]:
    """Return what is known of operands of `types` on `device`."""
    found = [
        Measured(
            problem=record.problem,
            rows=tuple(map(float, row_counts(record.problem))),
            owned=1.0,  # tuning fills contiguous blocks
            times=_times(record.times_us),
        )
        for record in known.shipped(Arch.SM_90A, device.name).values()
        if _has(record.problem, types)
    ]
    slug = file_of(Arch.SM_90A, device.name).stem
    surveys = (ChoiceReport.read(path) for path in sorted(SURVEYS.glob(f"{slug}-random-*.json")))
    for each in (timed for report in surveys for timed in report.found):
        if _has(each.case.problem, types):
            step = GROUP_ALIGNMENT if each.case.problem.layout is Layout.CONTIGUOUS else 1
            found.append(
                Measured(
                    problem=each.case.asked,
                    rows=tuple(float(-(-rows // step) * step) for rows in each.case.row_counts),
                    owned=_owned(each.case),
                    times=_times(each.times_us),
                    is_survey=True,
                )
            )
    return found


def _has(problem: Problem, types: str) -> bool:
    dtype, scales = TYPES[types]
    is_plain = not problem.b_layout.is_prepared and problem.operands.b_dtype is dtype
    return is_plain and scales in (None, problem.scale_granularity)


def _owned(case: Case) -> float:
    if case.problem.layout is not Layout.CONTIGUOUS:
        return 1.0
    return sum(-(-rows // 64) * 64 for rows in case.row_counts) / case.asked.m


def _times(times_us: Any) -> tuple[tuple[KernelConfig, float], ...]:
    return tuple((KernelConfig.parse(name)[0], us) for name, us in times_us.items())


@contextmanager
def real_rows(each: Measured) -> Iterator[None]:
    """Let the model know the rows of each group as they were timed, for the length of a block."""
    with mock.patch.multiple(cost, sizes=lambda _: each.rows, _owned=lambda _: each.owned):
        yield
