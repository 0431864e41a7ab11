# SPDX-License-Identifier: Apache-2.0
"""One line of a plan: fixed sizes, and a range of rows."""

from __future__ import annotations

from dataclasses import field

from jitgen.config.problem import Problem
from jitgen.support.frozen import frozen


@frozen
class Sweep:
    """
    Problems that differ in their rows only.

    Attributes:
        problem: A problem of some operation: all sizes; its rows are the fewest.
        min_rows: Smallest mean of rows per group.
        max_rows: Largest mean of rows per group; every mean in between may occur.
        is_optional: Whether targets without a kernel for its types or sizes leave it out.
        calls: Number of times they were called; 0 if that was not counted.
        is_early: Whether a chain of launches calls them, whose kernels start early: see
            `jitgen.targets.early`.
        entry: Number of its entry in the plan's file, from 1; 0: it is of no file.
    """

    problem: Problem
    min_rows: int
    max_rows: int
    is_optional: bool = False
    calls: int = 0
    is_early: bool = False
    entry: int = field(default=0, compare=False)
