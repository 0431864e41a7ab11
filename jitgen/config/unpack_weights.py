# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `unpack_weights`. The config is what changes a kernel's source (the
layout, how work is shared); the problem is the sizes of one call, for which a config is chosen.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, BLayout, Part, TiledConfig, of
from jitgen.config.problem import GroupedRows
from jitgen.support.frozen import frozen

_BLOCK_BYTES = 4_352
"""
Bytes of a block of 64 rows x 128 of K; repeated from `jitgen.formats.prepacked_blocks`, which needs
torch.
"""


@frozen
class Tiling(Part):
    """
    How a GPU's threads share the work; default values do not appear in a kernel's name.

    A CTA of 256 threads processes 64 rows, one block of 128 along K after another.

    Attributes:
        columns: Number of blocks along K of a CTA; other CTAs process the rest.
        ctas_per_sm: CTAs on one SM, which limits their registers.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).
    """

    columns: int = of(int, default=16, word="k")
    ctas_per_sm: int = of(int, default=6, word="c")
    use_pdl: bool = of(bool, default=False, word="pdl")


@frozen
class UnpackWeightsConfig(TiledConfig):
    """
    One kernel of `unpack_weights`, before its target is known.

    Attributes:
        b_layout: Layout that the weights were prepacked for.
        tiling: How a GPU's threads share the work.

    Example::

        config = UnpackWeightsConfig(b_layout="exact1", tiling=Tiling(columns=8))
        config.to_name()
        # 'exact1_k8'
    """

    op: ClassVar[str] = "unpack_weights"
    b_layout: BLayout = of(BLayout)
    tiling: Tiling = of(Tiling, default=Tiling())

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tiling = self.tiling
        return f"64 rows x {tiling.columns} blocks, {tiling.ctas_per_sm} CTAs" + (
            " pdl" * tiling.use_pdl
        )


@frozen
class UnpackWeightsProblem(GroupedRows):
    """
    One call of `unpack_weights`: weights of some groups.

    Attributes:
        groups: Number of groups.
        m: Rows of all their matrices: G times N.
        k: Columns of a matrix.
        b_layout: Layout that the weights were prepacked for.
    """

    op: ClassVar[str] = "unpack_weights"
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    b_layout: BLayout = of(BLayout, default=BLayout.EXACT1)

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of blocks of 64 rows in all groups, and of blocks of 128 values along K."""
        return self.groups * -(-self.rows_per_group // 64), -(-self.k // 128)

    @property
    def result_bytes(self) -> int:
        """Bytes of the result: values and scales."""
        return self.groups * self.rows_per_group * (self.k + 4)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of weights and results, each once."""
        rows, columns = self.blocks
        return rows * columns * _BLOCK_BYTES + self.result_bytes

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return f"weights prepacked as {self.b_layout} -> e4m3"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        return f"unpack_{self.b_layout}_g{self.groups}_m{self.m}_k{self.k}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: layout, columns, groups, rows."""
        return (self.b_layout, self.k, self.groups, self.m)
