# SPDX-License-Identifier: Apache-2.0
"""
What was measured on a device: its shipped table, and its surveys by `jitgen bench choice`.

What was timed before a candidate was there says nothing of it, and is left out, but for what
`time_of` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jitgen.autotune.row_distributions import row_counts
from jitgen.bench.choice.report import ChoiceReport
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.selection import measurements
from jitgen.selection.measurements import file_of
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.cost import RowDistribution

SURVEYS = Path(__file__).parents[1] / "surveys"

UNSEEN = ("h200-random-8", "skewed-301")
"""Surveys that no constant is fitted to: what is lost there is what is lost elsewhere."""


@frozen
class Measured:
    """
    The candidates of one problem and their microseconds.

    Attributes:
        problem: The problem, as a call has it.
        distribution: Distribution of rows over groups.
        times: Microseconds of each candidate.
        is_survey: Whether it is of the survey, and not of the table.
    """

    problem: GroupedGemmProblem
    distribution: RowDistribution
    times: tuple[tuple[GroupedGemmConfig, float], ...]
    is_survey: bool = False

    @property
    def regrets(self) -> tuple[float, ...]:
        """
        How much slower each candidate is than the fastest, as a part of the fastest one's time.
        """
        return tuple(us / self.best - 1 for _, us in self.times)

    @property
    def best(self) -> float:
        """The shortest time of a candidate, in microseconds."""
        return min(us for _, us in self.times)


FORMER_STRIPS = 4
"""Height of the strips of all contiguous candidates of 256 rows before 2026-11-29."""

TYPES = {"fp8": (DType.E4M3, ScaleGranularity.BLOCK128), "bf16": (DType.BF16, None)}
"""What is fitted: types of a, with the scales that stand for all others."""


def measured(device: Device, types: str) -> list[Measured]:
    """Return what operands of `types` are fitted to on `device`."""
    table = [
        _measured(record.problem, row_counts(record.problem), record.times_us)
        for record in measurements.shipped(Arch.SM_90A, device.name).values()
        if _has(record.problem, types) and _is_whole(record.problem, record.times_us)
    ]
    return table + _surveyed(device, types, is_unseen=False)


def unseen(device: Device, types: str) -> list[Measured]:
    """Return what fits of `types` are judged by on `device`, and do not look at."""
    return _surveyed(device, types, is_unseen=True)


def _surveyed(device: Device, types: str, *, is_unseen: bool) -> list[Measured]:
    slug = file_of(Arch.SM_90A, device.name).stem
    paths = sorted(SURVEYS.glob(f"{slug}-*.json"))
    return [
        _measured(each.case.asked, each.case.row_counts, each.times_us, is_survey=True)
        for path in paths
        if path.stem.endswith(UNSEEN) == is_unseen
        for each in ChoiceReport.read(path).found
        if _has(each.case.problem, types) and _is_whole(each.case.asked, each.times_us)
    ]


def _measured(
    problem: GroupedGemmProblem,
    counts: Sequence[int],
    times_us: Mapping[str, float],
    *,
    is_survey: bool = False,
) -> Measured:
    """Return what was measured with so many rows of each group, before padding."""
    step, owned = 1, 1.0
    if problem.layout is Layout.CONTIGUOUS:
        step = GROUP_ALIGNMENT
        padded = sum(-(-rows // step) * step for rows in counts)
        owned = sum(-(-rows // 64) * 64 for rows in counts) / padded
    return Measured(
        problem=problem,
        distribution=RowDistribution(
            tuple(float(-(-rows // step) * step) for rows in counts if rows), 1, owned
        ),
        times=tuple((GroupedGemmConfig.parse(name)[0], us) for name, us in times_us.items()),
        is_survey=is_survey,
    )


def time_of(config: GroupedGemmConfig, times_us: Mapping[str, float]) -> float | None:
    """
    Return the microseconds of a kernel. One that swaps operands for the last rows of groups may be
    younger than a survey, and is taken for as fast as the one that does not. With extra rows that
    underestimates it for groups of 193 to 208 rows; on an H200 these problems were measured again.
    Likewise one that has strips of another height than the candidate of the same tile before.
    """
    plain = replace(config.schedule, swap_tail=False, extra_rows=False)
    is_tall = config.layout is Layout.CONTIGUOUS and config.tile.m == 256
    former = replace(plain, raster=FORMER_STRIPS if is_tall else plain.raster)
    for schedule in (config.schedule, plain, former):
        found = times_us.get(replace(config, schedule=schedule).name(Arch.SM_90A))
        if found is not None:
            return found
    return None


def _is_whole(problem: GroupedGemmProblem, times_us: Mapping[str, float]) -> bool:
    """Return whether all that may be chosen for `problem` was timed, as `time_of` has it."""
    configs = rules(Arch.SM_90A, problem.op).candidates(problem)
    return all(time_of(config, times_us) is not None for config in configs)


def _has(problem: GroupedGemmProblem, types: str) -> bool:
    dtype, scales = TYPES[types]
    is_plain = not problem.b_layout.is_prepacked and problem.operands.b_dtype is dtype
    return is_plain and scales in (None, problem.scale_granularity)
