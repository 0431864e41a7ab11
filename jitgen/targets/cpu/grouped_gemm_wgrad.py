# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `grouped_gemm_wgrad`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config import DType
from jitgen.config.grouped_gemm import Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.targets import wgrad_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuDerived, CpuRules
from jitgen.targets.protocol import Template, legal_of, refuse_unless
from jitgen.targets.spaces import check_sides
from jitgen.targets.sums import SumOrder
from jitgen.targets.wgrad_space import WgradRules, WgradSpace
from jitgen.templates import ROOT

_MULTIPLY_US = 2.2e-3
"""Microseconds of one row of a block of 4 x 16 partial sums, as of one k of the grouped GEMM."""

_DECODE_US = 5e-4
"""Microseconds to bring one operand to float32 and into its panel, as for the grouped GEMM."""

_TILE = Tile(m=64, n=128, k=128)


class GroupedGemmWgrad(CpuRules[GroupedGemmWgradConfig, GroupedGemmWgradProblem], WgradRules):
    """Rules of the `grouped_gemm_wgrad` kernels, their candidates and their cost model."""

    sums = SumOrder(
        words="row by row of the group, of float32 within 16",
        free=wgrad_space.FREE,
    )
    space = WgradSpace(
        operands=(
            (DType.BF16, DType.BF16),
            (DType.BF16, DType.F32),
            (DType.F32, DType.F32),
            (DType.F32, DType.BF16),
            (DType.F16, DType.F16),
            (DType.F16, DType.F32),
            (DType.F16, DType.BF16),
        ),
        tile_m=(16, 32, 64),
        tile_n=(16, 32, 64, 128),
        tile_k=_TILE.k,
        cluster=((1, 1),),
    )

    def derive(self, config: GroupedGemmWgradConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        space, tile = self.space, config.tile
        wgrad_space.check_kind(config, space, "cpu")
        refuse_unless(
            config.cluster.size == 1, "E_CLUSTER", "a cpu has no clusters: cluster must be 1x1"
        )
        refuse_unless(
            config.num_ab_stage is None,
            "E_STAGES",
            "num_ab_stage: a cpu kernel has no operand stages to count",
        )
        sides = {"m": space.tile_m, "n": space.tile_n, "k": (space.tile_k,)}
        check_sides(tile, sides, "tile_")
        panels = (tile.m + tile.n) * tile.k
        tail = 16 * config.a_dtype.bits // 8
        return CpuDerived(scratch_bytes=4 * (panels + tile.m * tile.n) + tail)

    def candidates(self, problem: GroupedGemmWgradProblem) -> tuple[GroupedGemmWgradConfig, ...]:
        """Return the candidate config for `problem`; none if no kernel serves it."""
        config = GroupedGemmWgradConfig(
            layout=problem.layout,
            a_dtype=problem.a_dtype,
            out_dtype=problem.out_dtype,
            tile=_TILE,
        )
        return legal_of((config,), self)

    def work(self, problem: GroupedGemmWgradProblem, config: GroupedGemmWgradConfig) -> Cost:
        """
        Estimate the time of one thread: dy is decoded for each tile of K, a for each tile of N.
        """
        tile = config.tile
        tiles_n, tiles_k = -(-problem.n // tile.m), -(-problem.k // tile.n)
        decoded = problem.m * (problem.n * tiles_k + problem.k * tiles_n)
        blocks = -(-problem.n // 4)
        multiplied = problem.m * blocks * -(-problem.k // 16)
        return Cost(
            decoded * _DECODE_US + multiplied * _MULTIPLY_US,
            problem.groups * tiles_n * tiles_k,
            4 * blocks / problem.n,
        )

    def templates(self) -> tuple[Template, ...]:
        """Return the template of these kernels."""
        return (
            Template(
                root=ROOT,
                entry="cpu/grouped_gemm_wgrad.py.jinja",
            ),
        )
