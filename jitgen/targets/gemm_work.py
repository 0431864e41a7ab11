# SPDX-License-Identifier: Apache-2.0
"""What a grouped GEMM's problem asks for on any device: rows of groups, bytes that cross memory."""

from __future__ import annotations

from jitgen.config import Layout
from jitgen.ops.grouped_gemm.problem import Problem

_SPREAD = tuple((2 * i + 9) / 16 for i in range(8))
"""Where the rows of a group may lie, in parts of their mean: from one half to three halves."""


def sizes(problem: Problem) -> tuple[float, ...]:
    """
    Return rows that a group may have, all equally likely.

    Routing is never even, so each of many ragged or masked groups has from half the mean to one and
    a half; a single one has all rows. The rows of a contiguous problem are counted with their
    padding: each group has whole blocks already.
    """
    mean = problem.rows_per_group
    if problem.layout is Layout.CONTIGUOUS or problem.groups == 1:
        return (float(mean),)
    width = 1 - 1 / problem.groups
    return tuple(mean * (1 + width * (part - 1)) for part in _SPREAD)


def traffic(problem: Problem) -> int:
    """Return the bytes of a, b and out, each once: what L2 cannot spare DRAM."""
    operands = problem.m * problem.k + problem.groups * problem.n * problem.k
    return (
        operands * problem.a_dtype.bits // 8 + problem.m * problem.n * problem.out_dtype.bits // 8
    )
