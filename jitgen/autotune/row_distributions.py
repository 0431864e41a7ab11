# SPDX-License-Identifier: Apache-2.0
"""
The rows of each group in the batches with which the kernels of a bucket are timed.

One choice is used for every mean number of rows in a bucket and for every distribution of rows, so
a time is the mean over several batches. Winners of batches at the bucket's edge alone, with rows
close to their mean, lost 5 to 11 % in the bucket's middle (32 groups of 150 rows, 8 of 300), and 10
% if all groups had the same number of rows. Those of uneven batches alone lost 6 to 20 % with 32
groups of 224 and 256 rows each. Those of batches without a group that has many rows lose 2.9 % with
rows by a router or a power law, and those with it 1.3 % (docs/selection-measured.md).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.selection.choice import bucket, edges_of

SPREAD = 0.5
"""Rows of a group differ from their mean by at most this part."""

SIGMA = 0.6
"""
Standard deviation of the logarithm of a routed group's rows. The standard deviation of the rows is
then 0.66 of their mean; in recorded batches it is between 0.35 and 1.2.
"""

HOT, MOST_MASKED = 0.3, 8.0
"""
Part of all rows that one group has in a batch with a group of many rows, and the most that it has
in the masked layout, relative to the others: all groups have room for as many rows there, and a GPU
does not have the memory.
"""

FEW_GROUPS = 16
"""
Up to this number of groups, more distributions are timed: the best tile depends on how full the
last wave is, and times differ by up to 19 % with eight groups.
"""


class Distribution(Enum):
    """How the rows of a batch are distributed over its groups."""

    EVEN = auto()
    SPREAD = auto()
    ROUTED = auto()
    HOT = auto()


class Sample(NamedTuple):
    """
    One batch with which a bucket is timed.

    Attributes:
        distribution: How its rows are distributed.
        in_middle: Whether the mean of rows is in the bucket's middle, and not at its edge.
    """

    distribution: Distribution
    in_middle: bool = False


_OF_ALL = (
    Sample(Distribution.SPREAD),
    Sample(Distribution.ROUTED, in_middle=True),
    Sample(Distribution.EVEN),
)
OF_MANY = (*_OF_ALL, Sample(Distribution.HOT))
OF_FEW = (
    *_OF_ALL,
    Sample(Distribution.SPREAD, in_middle=True),
    Sample(Distribution.HOT),
)


def row_distributions(problem: GroupedGemmProblem, arch: Arch) -> list[tuple[int, ...]]:
    """
    Return the rows of each group, for every batch with which the bucket of `problem` is timed.

    The bucket of the fewest rows also contains groups of one row, which are timed in addition: a
    tall tile that is as fast as others with 8 rows may be 20 % slower with one, because most of its
    boxes are beyond the end of a.
    """
    middle = _in_middle(problem, arch)
    found = [
        row_counts(middle if each.in_middle else problem, each.distribution, seed)
        for seed, each in enumerate(OF_FEW if problem.groups <= FEW_GROUPS else OF_MANY)
    ]
    if bucket(problem.with_mean(1), arch) == bucket(problem, arch):
        found.append((1,) * problem.groups)
    return list(dict.fromkeys(found))


def row_counts(
    problem: GroupedGemmProblem, distribution: Distribution = Distribution.SPREAD, seed: int = 0
) -> tuple[int, ...]:
    """
    Return the rows of each group, equal for equal arguments; their sum is about that of `problem`.

    Problems of the contiguous layout count rows with padding, about half a block for each group, or
    none if all groups fill their blocks. So fewer rows are distributed, which padding brings to
    about the problem's number; the last block of a single group is more or less full. If there are
    fewer blocks than groups, no two blocks belong to the same group, and blocks are about half
    full.
    """
    groups, mean = problem.groups, float(problem.rows_per_group)
    parts = list(_parts(distribution, groups, seed))
    if problem.layout is Layout.MASKED and distribution is Distribution.HOT:
        parts = [min(part, MOST_MASKED) for part in parts]
    if problem.layout is Layout.CONTIGUOUS:
        blocks = max(1, problem.m // GROUP_ALIGNMENT)
        if blocks < groups:
            ends = [blocks * group // groups for group in range(groups + 1)]
            parts = [part * (ends[i + 1] - ends[i]) for i, part in enumerate(parts)]
            halves = [min(part, 2.0) for part in parts]  # of blocks: a routed part may be more
            return tuple(round(half * GROUP_ALIGNMENT / 2) for half in halves)
        fills = distribution is Distribution.EVEN and mean % GROUP_ALIGNMENT == 0
        if groups == 1 and not fills:
            return (round((blocks - 1 + min(parts[0], 2) / 2) * GROUP_ALIGNMENT),)
        mean -= 0 if fills else GROUP_ALIGNMENT / 2
    share = groups * mean / sum(parts)  # a few random numbers miss their mean, the bucket's rows
    return tuple(max(1, round(part * share)) for part in parts)


def _parts(distribution: Distribution, groups: int, seed: int) -> Iterator[float]:
    """Yield the rows of each group relative to the mean of all groups."""
    chance = random.Random(seed)  # no secret
    for group in range(groups):
        match distribution:
            case Distribution.EVEN:
                yield 1.0
            case Distribution.SPREAD:
                yield chance.uniform(1 - SPREAD, 1 + SPREAD)
            case Distribution.ROUTED:
                yield chance.lognormvariate(0, SIGMA)
            case Distribution.HOT:
                yield max(1.0, HOT / (1 - HOT) * (groups - 1)) if group == groups // 2 else 1.0


def _in_middle(problem: GroupedGemmProblem, arch: Arch) -> GroupedGemmProblem:
    """
    Return `problem` with a mean of rows half way between the edge of the bucket before and its own.

    The rows of contiguous groups with one block each stay the same: with fewer, some groups would
    have no rows.
    """
    rows = problem.rows_per_group
    before = max((each for each in edges_of(problem, arch) if each < rows), default=0)
    middle = (before + rows + 1) // 2
    if problem.layout is Layout.CONTIGUOUS:
        middle = max(middle, min(rows, GROUP_ALIGNMENT))
    return problem.with_mean(middle)
