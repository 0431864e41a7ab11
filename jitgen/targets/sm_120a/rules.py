# SPDX-License-Identifier: Apache-2.0
"""
The rules of sm_120a and sm_121a (RTX 50, RTX PRO 6000, DGX Spark): mma.sync with block scales, and
sums in registers.

Weights (b) are the m16 side of an instruction and tokens (a) its n8 side, so that a tile may have
as few as 8 tokens. Limits of instructions are those of the PTX ISA (mma.sync, block scaling); those
of registers and shared memory were checked by compiling.
"""

from __future__ import annotations

from jitgen.config.config import SCALE_BLOCK, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.support.frozen import frozen
from jitgen.targets.fp4_space import UNSCALED
from jitgen.targets.gemm import (
    GemmRules,
    Space,
    refuse_early,
    refuse_pairs,
    refuse_prepacked,
    refuse_scales,
    refuse_stages,
    refuse_swap_tail,
)
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sm_120a.sizes import (
    MATH_WARPS,
    MAX_ENTRIES,
    MAX_STAGES,
    MIN_STAGES,
    SMEM_BYTES,
    SWIZZLE_BYTES,
    TOKEN_PART,
    WEIGHT_PART,
    align,
    fixed_bytes,
    is_block,
    is_unscaled,
    scale_blocks,
    scale_box,
    scale_lines,
    stage_bytes,
    token_lanes,
    warps,
)

MANY_SUMS = 104
"""
Sums of a thread, partial ones and totals, from which on 168 registers are too few: the share where
9 warps are on an SM, for one of its quarters then has 3 of them.
"""


@frozen
class Sm120Derived:
    """
    Numbers that follow from a legal config; those that do not apply to it are 0.

    Attributes:
        warps_m: Math warps along M, the tokens.
        warps_n: Math warps along N, the weights.
        threads: Threads of a CTA.
        math_registers: Registers of a thread of the math warps (setmaxnreg); 0 where an equal share
            is enough.
        load_registers: Registers of a thread of the other warps.
        num_ab_stage: Operand stages in shared memory.
        smem_bytes: Shared memory of a CTA.
        max_entries: Entries of the table of tile counts.
        scale_lines: 16-byte lines of an atom that have the scales of a tile of a.
        scale_blocks: Atoms along M that a tile of a meets.
        scale_box: Activation scales that one copy loads: those of a tile's rows.
        scale_pitch: `scale_box`, rounded up so that copies start at whole 128 bytes.
        lane_tiles: Tiles that each lane of a scheduler warp assigns; 0, because there is no
            scheduler warp.
        token_lanes: Lanes of a quad from which instructions take the scales of tokens.
    """

    warps_m: int
    warps_n: int
    threads: int
    math_registers: int
    load_registers: int
    num_ab_stage: int
    smem_bytes: int
    max_entries: int
    scale_lines: int
    scale_blocks: int
    scale_box: int
    scale_pitch: int
    lane_tiles: int = 0
    token_lanes: int


class Sm120Rules(GemmRules):
    """
    Rules of persistent kernels with up to eight warps that multiply their part of a tile, and one
    that loads.
    """

    arch = "sm_120a"
    space = Space(
        tile_m=tuple(range(TOKEN_PART, 129, TOKEN_PART)),
        tile_n=(32, 64, 128),
        tile_k=dict.fromkeys((DType.BF16, DType.E4M3, DType.E2M1), (128, 256, 512)),
        cluster=((1, 1),),
        num_acc_stage=(1,),
        split_k=(1,),
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
        mixed=((DType.E4M3, DType.E2M1),),
        unscaled=UNSCALED,
    )

    def derive(self, config: GroupedGemmConfig) -> Sm120Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_prepacked(config, self.arch, self.space.unscaled)
        refuse_pairs(config, self.arch)
        refuse_early(config, f"a kernel of {self.arch}")
        refuse_swap_tail(config, f"a kernel of {self.arch}")
        if config.operands not in self.space.unscaled:
            self._check_types(config)
        self._check_schedule(config)
        self._check_tile(config)
        num_ab_stage, smem_bytes = self._stages(config)
        warps_m, warps_n = warps(config)
        has_blocks, math_warps = is_block(config), warps_m * warps_n
        has_atoms = not has_blocks and not is_unscaled(config)
        sums = (1 + has_blocks) * config.tile.m * config.tile.n // (32 * math_warps)
        is_full = math_warps == MATH_WARPS and sums >= MANY_SUMS
        return Sm120Derived(
            warps_m=warps_m,
            warps_n=warps_n,
            # setmaxnreg is for whole warpgroups: three of them, two of which multiply
            threads=32 * (math_warps + 4) if is_full else 32 * (math_warps + 1),
            # 2 x 232 + 40 for three warpgroups: the pool of 3 x 168 has 504
            math_registers=232 if is_full else 0,
            load_registers=40 if is_full else 0,
            num_ab_stage=num_ab_stage,
            smem_bytes=smem_bytes,
            max_entries=0 if config.layout is Layout.CONTIGUOUS else MAX_ENTRIES,
            scale_lines=scale_lines(config.tile.m) if has_atoms else 0,
            scale_blocks=scale_blocks(config.tile.m) if has_atoms else 0,
            scale_box=scale_box(config) if has_blocks else 0,
            scale_pitch=align(scale_box(config), 32) if has_blocks else 0,
            token_lanes=token_lanes(config) if has_atoms else 0,
        )

    def _check_types(self, config: GroupedGemmConfig) -> None:
        types = config.operands
        refuse_unless(
            self.space.has(types),
            "E_MMA",
            f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no {self.arch} kernel; a "
            "and b are both e4m3, or both e2m1, or a is e4m3 and b e2m1, or a is bf16 with "
            "a_scale_granularity none and b e2m1 with mx32 scales, and the output is bf16, f16 or "
            "f32",
        )
        refuse_scales(config, self.space, self.arch)
        refuse_unless(
            types.a_dtype is types.b_dtype is DType.E4M3 or not is_block(config),
            "E_SCALES",
            f"{types.a_dtype} x {types.b_dtype} with block128 scales has no {self.arch} kernel: "
            "they are for 8-bit a and b; 4-bit ones have mx32 or nv16",
        )

    def _check_schedule(self, config: GroupedGemmConfig) -> None:
        cluster, stages = config.cluster, config.pipeline.num_acc_stage
        refuse_unless(
            cluster.size == 1,
            "E_CLUSTER",
            f"cluster {cluster.m}x{cluster.n}: {self.arch} has no multicast, which ptxas turns "
            "into a call of a routine that copies; allowed: 1x1",
        )
        refuse_unless(
            stages == 1,
            "E_ACC_STAGES",
            f"num_acc_stage={stages}: sums are in registers, and the warp that multiplies stores "
            "them; allowed: 1",
        )
        split_k = config.schedule.split_k
        refuse_unless(
            split_k == 1,
            "E_SPLIT_K",
            f"split_k={split_k}: without clusters, parts of K would meet in memory; tiles of 64 "
            "weights have enough CTAs; allowed: 1",
        )

    def _check_tile(self, config: GroupedGemmConfig) -> None:
        tile, space = config.tile, self.space
        refuse_unless(
            tile.m in space.tile_m,
            "E_MMA_N",
            f"tile_m={tile.m}: tokens are the n side of an instruction, {TOKEN_PART} at a time, "
            f"and sums of more than 128 do not fit registers: a multiple of {TOKEN_PART} from "
            f"{TOKEN_PART} to 128",
        )
        refuse_unless(
            tile.n in space.tile_n,
            "E_MMA_M",
            f"tile_n={tile.n}: weights are the m side of an instruction, {WEIGHT_PART} at a time, "
            "shared by 2, 4 or 8 warps, within one block of 128 scales: "
            f"{', '.join(map(str, space.tile_n))}",
        )
        refuse_unless(
            config.layout is not Layout.CONTIGUOUS or SCALE_BLOCK % tile.m == 0,
            "E_TILE_M",
            f"tile_m={tile.m} with contiguous rows: groups start at multiples of {SCALE_BLOCK}, "
            "and a tile would meet two: 8, 16, 32, 64, 128",
        )
        refuse_unless(
            not (is_block(config) and config.schedule.safe_selectors),
            "E_SELECTORS",
            "safe_selectors with block128 scales: all scales of instructions are 1 there, selected "
            "in lane 0",
        )
        refuse_unless(
            not (is_unscaled(config) and config.schedule.safe_selectors),
            "E_SELECTORS",
            f"safe_selectors with {config.operands.a_dtype} tokens: their instructions, m16n8k16, "
            "take no scales",
        )
        depths = space.tile_k[config.operands.a_dtype]
        refuse_unless(
            tile.k in ((SCALE_BLOCK,) if is_block(config) else depths),
            "E_TILE_K",
            f"tile_k={tile.k}: "
            + (
                f"block128 scales change every {SCALE_BLOCK} of K: {SCALE_BLOCK}"
                if is_block(config)
                else "rows of a stage are whole swizzles of 64 or 128 bytes, and scales whole "
                f"words: {', '.join(map(str, depths))}"
            ),
        )

    def _stages(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the operand stages and the bytes of the kernel's struct of shared memory."""
        stage, fixed = stage_bytes(config), align(fixed_bytes(config), 128)
        most = (SMEM_BYTES - fixed) // stage
        stages = config.pipeline.num_ab_stage or min(MAX_STAGES, most)
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        tile = config.tile
        refuse_unless(
            stages >= MIN_STAGES,
            "E_STAGES",
            f"{stages} stages of a {tile.m}x{tile.n}x{tile.k} tile, {stage} B each, are too few: "
            f"nothing would load while warps multiply; at least {MIN_STAGES} in {SMEM_BYTES} B",
        )
        return stages, align(fixed + stages * stage, SWIZZLE_BYTES)
