# SPDX-License-Identifier: Apache-2.0
"""
The table of mode ``static``: kernels by the rows of a group alone, the same on every device.

A tile holds twice the mean, for the rows of a group differ from call to call: at a mean of 8, half
of the groups would take two tiles of 8. A single group has the rows that it has. If no tile holds
so many rows, tiles come in strips that share weights in L2. `docs/selection-measured.md` says what
is lost against the cost model.
"""

from __future__ import annotations

from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem

_UP_TO = ((8, 8), (16, 16), (32, 32), (96, 64))
"""
The rows of the chosen tile (second number), if it must hold at most the first number of rows: those
of the only group, or twice the mean of several. The tile's weights are streamed past L2, because no
two tiles share them.
"""


def choose(
    problem: GroupedGemmProblem, candidates: tuple[GroupedGemmConfig, ...]
) -> GroupedGemmConfig:
    """Return the one of `candidates`, a target's menu, for `problem`."""
    rows = problem.rows_per_group * (1 if problem.groups == 1 else 2)
    height = next((height for most, height in _UP_TO if rows <= most), None)
    if height is not None:
        wide = max(candidates, key=lambda each: each.tile.n).tile.n
        return next(
            each
            for each in candidates
            if (each.tile.m, each.tile.n, each.schedule.stream_b) == (height, wide, True)
        )
    shared = [each for each in candidates if not each.schedule.stream_b]
    return min(shared, key=lambda each: each.tile.m)
