# SPDX-License-Identifier: Apache-2.0
"""The sizes of one call: what a config is chosen for, and never a part of it."""

from __future__ import annotations

from dataclasses import dataclass

from jitgen.errors import ConfigError
from jitgen.model.dtypes import DType, Layout, ScaleGranularity

MAX_SIZE = 2**48
"""Beyond any memory, and small enough that products of sizes are floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """
    One grouped GEMM: `groups` matrices of (rows, k) times (n, k) transposed.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups G.
        m: Rows in all; for the masked layout the rows that are expected to be valid, over all
            groups.
        n: Columns of the output.
        k: Length of the sums.
        a_dtype: Element type of a; b has the same.
        out_dtype: Element type of the output.
        scale_granularity: How many values share one scale.
    """

    layout: Layout
    groups: int
    m: int
    n: int
    k: int
    a_dtype: DType = DType.E4M3
    out_dtype: DType = DType.BF16
    scale_granularity: ScaleGranularity = ScaleGranularity.BLOCK128

    def __post_init__(self) -> None:
        for name in ("groups", "n", "k"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if self.m < 0:
            raise ConfigError(f"m must not be negative (got {self.m})")
        for name in ("groups", "m", "n", "k"):
            if getattr(self, name) > MAX_SIZE:
                raise ConfigError(f"{name} must be at most {MAX_SIZE:,}")

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))
