# SPDX-License-Identifier: Apache-2.0
"""The rules of the cpu target: a host function of one thread, blocked over the tile."""

from __future__ import annotations

from dataclasses import dataclass

from jitgen.config.dtypes import SCALE_BLOCK, DType, ScaleGranularity
from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.targets.gemm_space import Space
from jitgen.targets.gemm_types import refuse_what_is_to_come
from jitgen.targets.protocol import refuse_unless


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDerived:
    """
    What follows from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes for the accumulator tile and the decoded panels.
    """

    scratch_bytes: int


class CpuRules:
    """No clusters, no accumulator stages: only the scratch on the stack bounds a tile."""

    space = Space(
        tile_m=(8, 16, 32, 64),
        tile_n=(16, 32, 64, 128),
        tile_k=dict.fromkeys((DType.E4M3, DType.BF16, DType.F32), (SCALE_BLOCK,)),
        cluster=((1, 1),),
        num_acc_stage=(1,),
        split_k=(1,),
        operands=tuple(
            (operand, out)
            for operand in (DType.E4M3, DType.BF16, DType.F32)
            for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=tuple(ScaleGranularity),
    )

    def derive(self, config: KernelConfig) -> CpuDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_what_is_to_come(config, "cpu")
        space, tile, types = self.space, config.tile, config.operands
        pair = (types.a_dtype, types.out_dtype)
        refuse_unless(
            types.a_dtype == types.b_dtype and pair in space.operands,
            "E_MMA",
            f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no cpu kernel; a and b "
            "share one of e4m3, bf16, f32 and the output is bf16, f16 or f32",
        )
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
        for side, allowed in sides.items():
            have = getattr(tile, side)
            refuse_unless(
                have in allowed,
                f"E_TILE_{side.upper()}",
                f"tile_{side}={have} is not one of {', '.join(map(str, allowed))}",
            )
        panels = (tile.m + tile.n) * tile.k
        tail = 16 * types.a_dtype.bits // 8
        return CpuDerived(scratch_bytes=4 * (panels + tile.m * tile.n) + tail)
