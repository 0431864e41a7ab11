# SPDX-License-Identifier: Apache-2.0
"""
Config and problem of `moe_fc2_dense`. The config is what changes a kernel's source (types, tile,
cluster, pipeline, schedule); the problem is the sizes of one call, for which a config is chosen.

Parts and names are those of a grouped GEMM, without the layout, because every expert has every
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from jitgen.config.config import MAX_SIZE, Config, DType, Layout, ScaleGranularity, of
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.config.problem import Tokens
from jitgen.support.frozen import frozen
from jitgen.support.moved import renamed

LIKE = Layout.CONTIGUOUS
"""The layout of the grouped GEMM whose rules and words are those of this operation: no table."""

TOP_K = 8
"""Number of experts of a token if a problem does not give it: that of DeepSeek-V3 and Qwen3-MoE."""


@frozen
class MoEFc2DenseConfig(Config):
    """
    One kernel of `moe_fc2_dense`, before its target is known.

    K is (expert, i): ``schedule.split_k`` counts the CTAs that share the experts of a tile.

    Attributes:
        operands: Element types, and how many values share one scale.
        tile: Tokens, columns and depth of a tile.
        cluster: CTAs that share operands by multicast.
        pipeline: Buffers in flight.
        schedule: Order and memory hints.

    Example::

        config = MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128), schedule=Schedule(split_k=2))
        config.name("sm_90a")
        # 'moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_splitk2_sm_90a'
    """

    op: ClassVar[str] = "moe_fc2_dense"
    operands: Operands = of(Operands, default=Operands())
    tile: Tile = of(Tile, word="t")
    cluster: Cluster = of(Cluster, default=Cluster(), word="c")
    pipeline: Pipeline = of(Pipeline, default=Pipeline())
    schedule: Schedule = of(Schedule, default=Schedule())

    @property
    def gemm(self) -> GroupedGemmConfig:
        """Config of the grouped GEMM with the same parts."""
        return GroupedGemmConfig(
            layout=LIKE,
            operands=self.operands,
            tile=self.tile,
            cluster=self.cluster,
            pipeline=self.pipeline,
            schedule=self.schedule,
        )

    @classmethod
    def of_gemm(cls, gemm: GroupedGemmConfig) -> Self:
        """Return the config that is made of the parts of a grouped GEMM."""
        return cls(
            operands=gemm.operands,
            tile=gemm.tile,
            cluster=gemm.cluster,
            pipeline=gemm.pipeline,
            schedule=gemm.schedule,
        )

    @property
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""
        split_k = self.schedule.split_k
        return self.gemm.short + (f" split {split_k}" if split_k > 1 else "")

    def parameters(self) -> dict[str, Any]:
        """Return every field under the name by which templates ask for it."""
        return self.gemm.parameters() | {"layout": "dense"}


@frozen
class MoEFc2DenseProblem(Tokens):
    """
    One call of `moe_fc2_dense`: `m` tokens times `groups` experts' weights (n, k), added up.

    Attributes:
        groups: Number of experts.
        m: Tokens. Every expert has all of them.
        n: Columns of the output.
        k: Length of one expert's sums: its intermediate size.
        a_dtype: Element type of a; b has the same.
        out_dtype: Element type of the output.
        scale_granularity: How many values share one scale.
        top_k: Expected number of experts of a token, for which alpha is not 0. Tiles leave out
            experts to which none of their tokens is routed.
    """

    op: ClassVar[str] = "moe_fc2_dense"
    groups: int = of(int, most=MAX_SIZE)
    m: int = of(int, least=0, most=MAX_SIZE)
    n: int = of(int, most=MAX_SIZE)
    k: int = of(int, most=MAX_SIZE)
    a_dtype: DType = of(DType, default=DType.E4M3)
    out_dtype: DType = of(DType, default=DType.BF16)
    scale_granularity: ScaleGranularity = of(ScaleGranularity, default=ScaleGranularity.BLOCK128)
    top_k: int = of(int, default=TOP_K)

    @property
    def operands(self) -> Operands:
        """Types and scale granularity of every kernel for this problem."""
        return Operands(
            a_dtype=self.a_dtype,
            b_dtype=self.a_dtype,
            out_dtype=self.out_dtype,
            scale_granularity=self.scale_granularity,
        )

    def live_experts(self, tokens: int) -> float:
        """Return how many experts `tokens` tokens need, if each has its `top_k` at random."""
        share = min(1.0, self.top_k / self.groups)
        return float(self.groups * (1 - (1 - share) ** tokens))

    @property
    def traffic_bytes(self) -> int:
        """Bytes of a, the weights of the experts that are needed, and out, each once."""
        live = self.live_experts(self.m)
        operands = int(live * self.k * (self.m + self.n)) * self.a_dtype.bits // 8
        return operands + self.m * self.n * self.out_dtype.bits // 8

    @property
    def types(self) -> str:
        """Text for errors that says which types and formats the problem has."""
        return (
            f"{self.a_dtype} x {self.a_dtype} -> {self.out_dtype} with {self.scale_granularity} "
            "scales, experts along K"
        )

    @property
    def slug(self) -> str:
        """Name of the problem that is readable and valid as a file name."""
        types = f"{self.a_dtype}_{self.scale_granularity}_{self.out_dtype}"
        sizes = f"g{self.groups}_m{self.m}_n{self.n}_k{self.k}"
        return f"fc2_{types}_{sizes}" + f"_top{self.top_k}" * (self.top_k != TOP_K)

    @property
    def kind(self) -> tuple[object, ...]:
        """Sort key of problems: types, experts of a token, matrix, experts, tokens."""
        kind = (self.a_dtype, self.scale_granularity, self.out_dtype, self.top_k)
        return (*kind, self.n, self.k, self.groups, self.m)


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> Any:
        return renamed(__name__, name)
