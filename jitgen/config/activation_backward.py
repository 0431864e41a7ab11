# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `activation_backward`. The config is what changes a kernel's source (layout,
activation, how work is shared); the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.activation_quantize import Activation
from jitgen.config.config import MAX_SIZE, Layout, Part, TiledConfig, of
from jitgen.config.problem import GroupedRows
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

SUM_COLUMNS = 256
"""Columns whose products are added up to one of the sums that a weight's gradient is made of."""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A thread takes 8 columns at a time, a warp `rows` x 256 columns.

    Attributes:
        rows: Rows of a tile; their loads are in flight at the same time.
        threads: Threads of a CTA.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        is_persistent: Whether the launch has as many CTAs as fit on the GPU, which loop over all
            tiles; otherwise it has one CTA for every few tiles.
    """

    rows: int = of(int, default=2, word="r")
    threads: int = of(int, default=128, word="t")
    ctas_per_sm: int = of(int, default=4, word="c")
    is_persistent: bool = of(bool, default=True, word="once")


@frozen
class ActivationBackwardConfig(TiledConfig):
    """
    One kernel of `activation_backward`, before its target is known.

    Attributes:
        layout: How rows belong to groups.
        activation: Function of a gate and an up, or of a value without a gate.
        interleaved: Whether gates and ups alternate; otherwise all gates come first.
        tiling: How a GPU's threads share the work.

    Example::

        config = ActivationBackwardConfig(layout="ragged", tiling=Tiling(rows=1))
        config.name("sm_90a")
        # 'activation_backward_ragged_swiglu_r1_sm_90a'
    """

    op: ClassVar[str] = "activation_backward"
    layout: Layout = of(Layout)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False, word="interleaved")
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        text = f"{tiling.rows} rows, {tiling.threads} threads x {tiling.ctas_per_sm}"
        return text + " once" * (not tiling.is_persistent)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the first arguments of the compiled function, in their order."""
        return ("dy", "x", "weights", "groups", "dx", "y", "sums")


@frozen
class ActivationBackwardProblem(GroupedRows):
    """
    One call of `activation_backward`: (rows, n) and (rows, 2 n), or (rows, n) without gates.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups; 1 for the contiguous layout, whose calls do not know the number,
            so all rows count as one group.
        m: Total rows; for the masked layout, the expected number of valid rows in all groups.
        n: Columns of the activation, I: half of those of x if there are gates.
        activation: Function of a gate and an up, or of a value without a gate.
        interleaved: Whether gates and ups alternate.
    """

    op: ClassVar[str] = "activation_backward"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    activation: Activation = of(Activation, default=Activation.SWIGLU)
    interleaved: bool = of(bool, default=False)

    def __post_init__(self) -> None:
        Part.__post_init__(self)
        if self.layout is Layout.CONTIGUOUS and self.groups != 1:
            raise ConfigError(
                "groups must be 1 for contiguous rows, because a call does not know of more: count "
                f"all rows as one group's (got {self.groups})"
            )

    @property
    def traffic_bytes(self) -> int:
        """Bytes of dy, y, x and dx, weights and sums, each once."""
        sums = -(-self.n // SUM_COLUMNS)
        return self.m * (2 * 2 * (1 + self.activation.inputs) * self.n + 4 * (1 + sums))

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return f"{self.activation} of bf16"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        words = [str(self.layout), str(self.activation)] + ["interleaved"] * self.interleaved
        return f"{'_'.join(words)}_g{self.groups}_m{self.m}_n{self.n}"

    @property
    def kind(self) -> tuple[object, ...]:
        """
        Sort key of problems: layout, activation, order of gates and ups, columns, groups, rows.
        """
        return (self.layout, self.activation, self.interleaved, self.n, self.groups, self.m)
