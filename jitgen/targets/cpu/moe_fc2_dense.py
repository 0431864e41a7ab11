# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `moe_fc2_dense`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.config import SCALE_BLOCK, DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.targets import fc2_space
from jitgen.targets.base import BaseRules, Cost
from jitgen.targets.cpu.grouped_gemm import GroupedGemm
from jitgen.targets.cpu.rules import CpuDerived, CpuRules
from jitgen.targets.fc2_space import Fc2Rules
from jitgen.targets.gemm import FREE_OF_FC2, refuse_prepacked
from jitgen.targets.sums import SumOrder

_MULTIPLY_US = 2.2e-3
"""Microseconds of one k of a block of 4 x 16 partial sums, as for the grouped GEMM."""

_DECODE_US = 5e-4
"""Microseconds to bring one FP8 operand to float32 and into its panel, as for the grouped GEMM."""

_ROWS = (8, 32, 64)
"""Rows of the tiles that may be chosen: few tokens need no more, and leave experts out."""


class _Parts(GroupedGemm):
    """Rules of the grouped GEMM that has the parts of a `moe_fc2_dense` kernel."""

    space = GroupedGemm.space._replace(
        operands=tuple(
            (operand, out)
            for operand in (DType.E4M3, DType.E2M1)
            for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=(
            ScaleGranularity.BLOCK128,
            ScaleGranularity.MX32,
            ScaleGranularity.NV16,
        ),
        mixed=(),
    )

    def derive(self, config: GroupedGemmConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        fc2_space.check_types(config, self.space, "cpu")
        refuse_prepacked(config, "cpu")
        return CpuDerived(scratch_bytes=super().derive(config).scratch_bytes)


class MoeFc2Dense(CpuRules[MoEFc2DenseConfig, MoEFc2DenseProblem], Fc2Rules):
    """Rules of the `moe_fc2_dense` kernels, their candidates and their cost model."""

    alignment = 1
    entry = "cpu/moe_fc2_dense.py.jinja"
    row_edges: tuple[int, ...] = _ROWS
    sums = SumOrder(
        words="expert by expert, each k by k within 128 of K, block by block",
        free=FREE_OF_FC2,
    )
    parts = _Parts()
    check_sizes = BaseRules.check_sizes  # any size: a host kernel reads existing values one by one

    def derive(self, config: MoEFc2DenseConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        return self.parts.derive(config.gemm)

    def candidates(self, problem: MoEFc2DenseProblem) -> tuple[MoEFc2DenseConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        listed = (
            MoEFc2DenseConfig(operands=problem.operands, tile=Tile(m=rows, n=128, k=SCALE_BLOCK))
            for rows in _ROWS
        )
        return self.legal(listed)

    def work(self, problem: MoEFc2DenseProblem, config: MoEFc2DenseConfig) -> Cost:
        """
        Estimate the time of one thread: b is decoded for each tile of tokens, a for each tile of
        columns.

        Rows are computed in blocks of four, and experts that no token of a tile has are left out.
        """
        tile = config.tile
        tiles, columns = -(-problem.m // tile.m), -(-problem.n // tile.n)
        live = problem.live_experts(min(tile.m, problem.m))
        blocks = tiles * -(-min(tile.m, problem.m) // 4)
        decoded = live * problem.k * (tiles * problem.n + problem.m * columns)
        multiplied = live * problem.k * blocks * -(-problem.n // 16)
        return Cost(
            decoded * _DECODE_US + multiplied * _MULTIPLY_US,
            max(1, tiles * columns),
            4 * blocks * live / max(1, problem.m * min(problem.top_k, live)),
        )
