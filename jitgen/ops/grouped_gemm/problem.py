# SPDX-License-Identifier: Apache-2.0
"""The sizes of one call: what a config is chosen for, and never a part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from jitgen.config.config import DType, Layout, Part, ScaleGranularity, of
from jitgen.frozen import frozen
from jitgen.ops.grouped_gemm.config import Operands

MAX_SIZE = 2**48
"""Beyond any memory, and small enough that products of sizes are floats."""


@frozen
class Problem(Part):
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

    op: ClassVar[str] = "grouped_gemm"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    a_dtype: DType = of(DType, default=DType.E4M3)
    out_dtype: DType = of(DType, default=DType.BF16)
    scale_granularity: ScaleGranularity = of(ScaleGranularity, default=ScaleGranularity.BLOCK128)

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))

    @property
    def operands(self) -> Operands:
        """The types of every kernel for this problem."""
        return Operands(
            a_dtype=self.a_dtype,
            b_dtype=self.a_dtype,
            out_dtype=self.out_dtype,
            scale_granularity=self.scale_granularity,
        )

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        return (
            f"{self.a_dtype} x {self.a_dtype} -> {self.out_dtype} with {self.scale_granularity} "
            "scales"
        )

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        operands = f"{self.a_dtype}_{self.scale_granularity}_{self.out_dtype}"
        return f"{self.layout}_{operands}_g{self.groups}_m{self.m}_n{self.n}_k{self.k}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by: kind, matrix, groups, rows."""
        kind = (self.layout, self.a_dtype, self.scale_granularity, self.out_dtype)
        return (*kind, self.n, self.k, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows a group."""
        return replace(self, m=rows * self.groups)
