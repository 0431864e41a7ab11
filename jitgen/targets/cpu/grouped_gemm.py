# SPDX-License-Identifier: Apache-2.0
"""
Rules of the cpu target for the grouped GEMM: see `jitgen.targets.protocol.Rules`.

A kernel is a host function of one thread, blocked over the tile, so only work counts.
"""

from __future__ import annotations

from jitgen.config import Layout
from jitgen.config.config import SCALE_BLOCK, SCALES, DType
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.support.frozen import frozen
from jitgen.targets.base import BaseRules, Cost
from jitgen.targets.cpu.rules import CpuDerived, CpuRules
from jitgen.targets.fp4_space import OPERANDS, UNSCALED, format_of, refuse_other_operands
from jitgen.targets.gemm import (
    FREE,
    GemmRules,
    Space,
    refuse_early,
    refuse_pairs,
    refuse_prepacked,
    refuse_scales,
    refuse_selectors,
    refuse_swap_tail,
    sizes,
)
from jitgen.targets.protocol import Template, legal_of, refuse_unless
from jitgen.targets.spaces import check_sides
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_MULTIPLY_US = 2.2e-3
"""
Microseconds of one k of a block of 4 x 16 partial sums, on one core of a cloud x86-64 server with
AVX-512.
"""

_DECODE_US = 5e-4
"""Microseconds to bring one FP8 operand to float32 and into its panel, on the same core."""


_OPERANDS = (DType.E4M3, DType.E2M1, DType.BF16, DType.F32, DType.F16)
_ROWS = (8, 16, 32, 64)
"""Rows of the tiles that may be chosen: of equally good ones the first needs the least memory."""


@frozen
class CpuPrepackedDerived:
    """
    Numbers that follow from a legal config with prepacked weights.

    Attributes:
        scratch_bytes: Stack that one call takes for values that are decoded, and their sums.
        block_words: 32-bit words of a block of weights: values, then scales.
        value_words: 32-bit words of a block's values.
        scale_words: 32-bit words of the scales of a block's row.
    """

    scratch_bytes: int
    block_words: int
    value_words: int
    scale_words: int


class GroupedGemm(CpuRules[GroupedGemmConfig, GroupedGemmProblem], GemmRules):
    """
    Rules of the `grouped_gemm` kernels, their candidates and their cost model.

    No clusters, no accumulator stages: only the scratch on the stack bounds a tile.
    """

    alignment = 1
    row_edges: tuple[int, ...] = _ROWS
    sums = SumOrder(
        words="k by k within 128 of K, of float32 within 16, then block by block",
        free=FREE,
    )
    space = Space(
        tile_m=(8, 16, 32, 64),
        tile_n=(16, 32, 64, 128),
        tile_k=dict.fromkeys((*_OPERANDS, DType.E4M3X2), (SCALE_BLOCK,)),
        cluster=((1, 1),),
        num_acc_stage=(1,),
        split_k=(1,),
        operands=tuple(
            (operand, out) for operand in _OPERANDS for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=SCALES,
        mixed=((DType.E4M3, DType.E2M1),),
        prepacked=OPERANDS,
        unscaled=UNSCALED,
        n_major=(DType.BF16, DType.F16, DType.F32),
    )

    check_sizes = BaseRules.check_sizes  # any size: a host kernel reads existing values one by one

    def derive(self, config: GroupedGemmConfig) -> CpuDerived | CpuPrepackedDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_selectors(config, "cpu")
        refuse_early(config, "a kernel of cpu")
        refuse_swap_tail(config, "a kernel of cpu")
        refuse_pairs(config, "cpu")
        space, tile, types = self.space, config.tile, config.operands
        if types.b_layout.is_prepacked:
            refuse_other_operands(types, "cpu")
        elif types not in space.unscaled:
            self._check_plain(config)
        refuse_unless(
            config.cluster.size == 1, "E_CLUSTER", "a cpu has no clusters: cluster must be 1x1"
        )
        refuse_unless(
            config.pipeline.num_acc_stage == 1,
            "E_ACC_STAGE",
            f"num_acc_stage={config.pipeline.num_acc_stage}: a cpu kernel has one accumulator",
        )
        refuse_unless(
            config.pipeline.num_ab_stage is None,
            "E_STAGES",
            "num_ab_stage: a cpu kernel has no operand stages to count",
        )
        refuse_unless(
            config.schedule.split_k == 1,
            "E_SPLIT_K",
            f"split_k={config.schedule.split_k}: a cpu kernel is one thread, which takes all of K",
        )
        sides = {"m": space.tile_m, "n": space.tile_n, "k": space.tile_k[types.a_dtype]}
        check_sides(tile, sides, "tile_")
        panels = (tile.m + tile.n) * tile.k
        tail = 16 * types.a_dtype.bits // 8
        scratch_bytes = 4 * (panels + tile.m * tile.n) + tail
        if not types.b_layout.is_prepacked:
            return CpuDerived(scratch_bytes=scratch_bytes)
        facts = format_of(types).facts
        return CpuPrepackedDerived(
            scratch_bytes=scratch_bytes,
            block_words=facts.block_words,
            value_words=facts.value_words,
            scale_words=facts.scale_words,
        )

    def _check_plain(self, config: GroupedGemmConfig) -> None:
        """Refuse unprepacked operands that no kernel takes."""
        types = config.operands
        refuse_prepacked(config, "cpu", n_major=self.space.n_major)
        refuse_unless(
            self.space.has(types),
            "E_MMA",
            f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no cpu kernel; a and b "
            "share one of e4m3, e2m1, bf16, f16, f32, or are e4m3 and e2m1, and the output is "
            "bf16, f16 or f32",
        )
        refuse_scales(config, self.space, "cpu")

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        listed = tuple(
            GroupedGemmConfig(
                layout=problem.layout,
                operands=problem.operands,
                tile=Tile(m=rows, n=128, k=SCALE_BLOCK),
                epilogue=Epilogue(bias=problem.bias),
            )
            for rows in _ROWS
        )
        return legal_of(listed, self)

    def work(self, problem: GroupedGemmProblem, config: GroupedGemmConfig) -> Cost:
        """
        Estimate the time of one thread: b is decoded for each tile of rows, a for each tile of
        columns.

        Rows are computed in blocks of four, so a tall tile wastes nothing.
        """
        tile = config.tile
        tiles, blocks = (_whole(problem, height) for height in (tile.m, 4))
        columns = -(-problem.n // tile.n)
        decoded = tiles * problem.n * problem.k + problem.m * problem.k * columns
        multiplied = blocks * -(-problem.n // 16) * problem.k
        return Cost(
            decoded * _DECODE_US + multiplied * _MULTIPLY_US,
            max(1, int(tiles * columns)),
            4 * blocks / max(1, problem.m),
        )

    def templates(self) -> tuple[Template, ...]:
        """
        Return the templates: for plain weights, for weights beside an a without scales, and for
        prepacked weights.
        """
        return (
            Template(
                root=ROOT,
                entry="cpu/grouped_gemm.py.jinja",
                takes=_is_plain,
            ),
            Template(
                root=ROOT,
                entry="cpu/wide_gemm.py.jinja",
                takes=_is_wide,
            ),
            Template(
                root=ROOT,
                entry="cpu/fp4_gemm.py.jinja",
                takes=_is_prepacked,
            ),
        )


def _is_prepacked(config: GroupedGemmConfig) -> bool:
    return config.operands.b_layout.is_prepacked


def _is_wide(config: GroupedGemmConfig) -> bool:
    return config.operands in UNSCALED


def _is_plain(config: GroupedGemmConfig) -> bool:
    return not _is_prepacked(config) and not _is_wide(config)


def _whole(problem: GroupedGemmProblem, height: int) -> float:
    """Return how many blocks of `height` rows all groups have; blocks of padding cost nothing."""
    is_padded = problem.layout is Layout.CONTIGUOUS
    each = (float(problem.rows_per_group),) if is_padded else sizes(problem)
    return problem.groups / len(each) * sum(-(-rows // height) for rows in each)
