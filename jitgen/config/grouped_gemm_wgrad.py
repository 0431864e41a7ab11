# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `grouped_gemm_wgrad`. The config is what changes a kernel's source (layout,
types, tile, cluster, pipeline, order); the problem is the sizes of one call, for which a config is
chosen.

The product is (N, tokens) times (tokens, K): a tile's m lies along N, its n along K, and its k
along the tokens.
"""

from __future__ import annotations

from typing import ClassVar

from jitgen.config.config import MAX_SIZE, Config, DType, Layout, of
from jitgen.config.grouped_gemm import MAX_RASTER, Cluster, Tile
from jitgen.config.problem import GroupedRows
from jitgen.support.frozen import frozen

_USUAL_RASTER = 8


@frozen
class GroupedGemmWgradConfig(Config):
    """
    One kernel of `grouped_gemm_wgrad`, before its target is known.

    Attributes:
        layout: How rows belong to groups.
        a_dtype: Element type of dy and a.
        out_dtype: Element type of the gradient.
        tile: Columns of dy, columns of a, and tokens of a step.
        cluster: CTAs that share operands by multicast: m CTAs share a tile of a, n CTAs a tile of
            dy.
        num_ab_stage: Operand stages in shared memory; None: as many as fit beside the buffers of
            the store.
        raster: Cluster tiles along N that are computed before K advances, so that they share a tile
            of a in L2; at most 1024.
        use_pdl: Start before the previous kernel ended (programmatic dependent launch).

    Example::

        config = GroupedGemmWgradConfig(layout="ragged", tile=Tile(m=128, n=256, k=64))
        config.name("sm_90a")
        # 'grouped_gemm_wgrad_ragged_bf16_bf16_t128x256x64_c1x1_sm_90a'
    """

    op: ClassVar[str] = "grouped_gemm_wgrad"
    layout: Layout = of(Layout)
    a_dtype: DType = of(DType, default=DType.BF16)
    out_dtype: DType = of(DType, default=DType.BF16)
    tile: Tile = of(Tile, word="t")
    cluster: Cluster = of(Cluster, default=Cluster(), word="c")
    num_ab_stage: int | None = of(int, is_optional=True, default=None, word="ab")
    raster: int = of(int, most=MAX_RASTER, default=_USUAL_RASTER, word="raster")
    use_pdl: bool = of(bool, default=True, word="nopdl")

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        tile, cluster = self.tile, self.cluster
        text = f"{tile.m}x{tile.n}x{tile.k} c{cluster.m}x{cluster.n}"
        if self.num_ab_stage is not None:
            text += f" {self.num_ab_stage} stages"
        return text + f" raster {self.raster}" * (self.raster != _USUAL_RASTER)


@frozen
class GroupedGemmWgradProblem(GroupedRows):
    """
    One call of `grouped_gemm_wgrad`: for each group (n, rows) times (rows, k).

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups G.
        m: Total rows; for the masked layout, the expected number of valid rows in all groups.
        n: Columns of dy.
        k: Columns of a.
        a_dtype: Element type of dy and a.
        out_dtype: Element type of the gradient.
    """

    op: ClassVar[str] = "grouped_gemm_wgrad"
    layout: Layout = of(Layout)
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    a_dtype: DType = of(DType, default=DType.BF16)
    out_dtype: DType = of(DType, default=DType.BF16)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of dy, a and the gradient, each once."""
        operands = self.m * (self.n + self.k) * self.a_dtype.bits
        return (operands + self.groups * self.n * self.k * self.out_dtype.bits) // 8

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return f"{self.a_dtype} x {self.a_dtype} -> {self.out_dtype}, rows of groups along K"

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        types = f"wgrad_{self.layout}_{self.a_dtype}_{self.out_dtype}"
        return f"{types}_g{self.groups}_m{self.m}_n{self.n}_k{self.k}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: layout, types, matrix, groups, rows."""
        kind = (self.layout, self.a_dtype, self.out_dtype)
        return (*kind, self.n, self.k, self.groups, self.m)
