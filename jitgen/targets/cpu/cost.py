# SPDX-License-Identifier: Apache-2.0
"""How long a call takes on a CPU: only work counts, for one thread does all of it."""

from __future__ import annotations

from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.targets.gemm_work import sizes, traffic
from jitgen.targets.protocol import Candidate

_MULTIPLY_US = 2.2e-3
"""One k of a block of 4 x 16 partial sums, on one core of a cloud x86-64 server with AVX-512."""

_DECODE_US = 5e-4
"""One FP8 operand to float32 and into its panel, on the same core."""


def predict(problem: Problem, config: KernelConfig) -> Candidate:
    """
    Count what one thread does: b is decoded for every tile of rows, a for every tile of columns.

    Rows are computed in blocks of four, so a tall tile wastes nothing.
    """
    tile = config.tile
    tiles, blocks = (_whole(problem, height) for height in (tile.m, 4))
    columns = -(-problem.n // tile.n)
    decoded = tiles * problem.n * problem.k + problem.m * problem.k * columns
    multiplied = blocks * -(-problem.n // 16) * problem.k
    return Candidate(
        config=config,
        cost=decoded * _DECODE_US + multiplied * _MULTIPLY_US,
        waste=4 * blocks / max(1, problem.m),
        waves=max(1, int(tiles * columns)),
        traffic_bytes=traffic(problem),
        bound="multiply",
    )


def _whole(problem: Problem, height: int) -> float:
    """Return how many blocks of `height` rows all groups have."""
    each = sizes(problem)
    return problem.groups / len(each) * sum(-(-rows // height) for rows in each)
