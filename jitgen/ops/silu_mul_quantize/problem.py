# SPDX-License-Identifier: Apache-2.0
"""The sizes of one call: what a config is chosen for, and never a part of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from jitgen.config.config import SCALE_BLOCK, Layout, Part, of
from jitgen.errors import ConfigError
from jitgen.frozen import frozen
from jitgen.ops.silu_mul_quantize.config import Activation, Scales

MAX_SIZE = 2**48
"""Beyond any memory, and small enough that products of sizes are floats."""


@frozen
class SiluMulQuantizeProblem(Part):
    """
    One call of `silu_mul_quantize`: (rows, 2 n) to (rows, n).

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups; 1 for the contiguous layout, whose calls do not know it, so that
            all rows count as one group's.
        m: Rows in all; for the masked layout those that are expected to be valid, over all groups.
        n: Columns of the result, I: half of those of x.
        scale_granularity: How many results share one scale.
        activation: What becomes of a gate and an up.
        interleaved: Whether gates and ups take turns.
        power_of_two: Whether scales are powers of two.
    """

    op: ClassVar[str] = "silu_mul_quantize"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    scale_granularity: Scales = of(Scales, default=Scales.BLOCK128)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False)
    power_of_two: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.layout is Layout.CONTIGUOUS and self.groups != 1:
            raise ConfigError(
                "groups must be 1 for contiguous rows, because a call does not know of more: count "
                f"all rows as one group's (got {self.groups})"
            )

    @property
    def rows_per_group(self) -> int:
        """Mean rows of a group, rounded up; at least 1."""
        return max(1, -(-self.m // self.groups))

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x, results and scales, each once."""
        scales = {Scales.BLOCK128: 4 * -(-self.n // SCALE_BLOCK), Scales.ROW: 4}
        each = 4 * self.n + self.n * self.scale_granularity.q_dtype.bits // 8
        return self.m * (each + scales.get(self.scale_granularity, 0))

    @property
    def types(self) -> str:
        """The types in words, for errors."""
        granularity = self.scale_granularity
        return f"{self.activation} of bf16 -> {granularity.q_dtype} with {granularity} scales"

    @property
    def slug(self) -> str:
        """A readable name, as a file may have it."""
        words = [str(self.layout), str(self.scale_granularity), str(self.activation)]
        words += ["interleaved"] * self.interleaved + ["pow2"] * self.power_of_two
        return f"{'_'.join(words)}_g{self.groups}_m{self.m}_n{self.n}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What to sort problems by: kind, columns, groups, rows."""
        kind = (self.layout, self.scale_granularity, self.activation, self.interleaved)
        return (*kind, self.power_of_two, self.n, self.groups, self.m)

    def with_mean(self, rows: int) -> Self:
        """Return the same sizes with a mean of `rows` rows a group."""
        return replace(self, m=rows * self.groups)
