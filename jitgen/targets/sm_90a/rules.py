# SPDX-License-Identifier: Apache-2.0
"""
The rules of sm_90a (H100, H200): WGMMA with accumulators in registers.

FP8 operands are promoted once per 128 of K, for the tensor cores keep fewer bits of their sums than
float32 has; bf16 and f16 operands are not.

Every limit was checked by compiling: beyond it the compiler spills, serialises WGMMA, or builds a
kernel that cannot launch.
"""

from __future__ import annotations

from jitgen.config.config import FLOAT_SCALES, SCALE_BLOCK, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.support.frozen import frozen
from jitgen.targets.gemm import (
    GemmRules,
    Space,
    refuse_pairs,
    refuse_prepacked,
    refuse_scales,
    refuse_selectors,
    refuse_stages,
)
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sm_90a import boxes
from jitgen.targets.sm_90a.early import check_early
from jitgen.targets.sm_90a.tails import check_extra, check_tail, extra_m, tail_m

SMEM_BYTES = 232_448
"""Shared memory that one CTA can have: 227 KiB of the SM's 228."""

MAX_N = {DType.E4M3: 192, DType.BF16: 256, DType.F16: 256}
"""Columns of a tile: with promotion those whose accumulators fit, else those of one WGMMA."""

ROW_BYTES = 128
"""Bytes of one row of an operand's stage: what its swizzle spans."""

MAX_STAGES = 10
"""More operand stages than this never made a kernel faster."""

MAX_ENTRIES = 512
"""
Entries of the table of tile counts in shared memory: of a group each, or of several where a call
has more groups. Twice as many would cost 26 of 271 kernels a stage, and make none faster. Also
the most of a list of the contiguous tiles that have rows.
"""

SCALE_CHUNK = 32
"""k-blocks whose weight scales are handed to the math warps at once."""

_RING_SLOT_BYTES = 16
"""Bytes of the two mbarriers, full and free, of a slot of a ring buffer."""

_TILE_INFO_BYTES = 32
"""Bytes in which a tile is described: first row, tile along N, group and two ends of rows."""

_SWIZZLE_BYTES = 1024
"""Alignment of operands in shared memory, in bytes: the 128-byte swizzle repeats after so many."""


@frozen
class Sm90Derived:
    """
    Numbers that follow from a legal sm_90a config; those that do not apply to it are 0.

    Attributes:
        math_warpgroups: Warpgroups that multiply; one more loads.
        m_blocks: Blocks of 64 rows that each math warpgroup computes of a tile.
        threads: Threads of a CTA.
        num_ab_stage: Operand stages in shared memory.
        smem_bytes: Shared memory of a CTA.
        acc_registers: Accumulator registers of a thread: the final sums of all M blocks; where
            they are promoted, the partial ones of one M block; with split_k, its share of those of
            all parts of K.
        load_registers: Registers of a thread of the loading warpgroup (setmaxnreg).
        math_registers: Registers of a thread of a math warpgroup (setmaxnreg).
        part_m: Rows of the operand `a` that are loaded or left out together where a group does not
            fill its tile.
        short_m: Most rows of a tile for which there are TMA boxes of as many rows; 0 without such
            boxes.
        out_n: Columns of a tile that one CTA stores.
        epilogue_n: Columns of one store box.
        max_entries: Entries of the table of tile counts, or of the list of tiles with rows.
        lane_tiles: Tiles that a lane of the scheduler warp assigns of each wave, a tile for each
            cluster; 0 without a scheduler warp.
        scale_chunk: k-blocks whose weight scales are handed over at once.
        scale_columns: Columns of a tile that share a weight scale, wherever the tile starts.
        scale_values: Weight scales kept for each k-block: one for each `scale_columns`, and padding
            to whole 16-byte loads.
        scale_box: Activation scales that one copy loads: those of one M block of all math
            warpgroups.
        scale_pitch: `scale_box`, rounded up so that copies start at whole 128 bytes.
        short_scale_box: Activation scales that one copy loads of a short tile.
        tail_m: Most rows of a block that are multiplied with swapped operands.
        extra_m: Most rows that the last tile of a group has beyond those of the config.
    """

    math_warpgroups: int
    m_blocks: int
    threads: int
    num_ab_stage: int
    smem_bytes: int
    acc_registers: int
    load_registers: int
    math_registers: int
    part_m: int
    short_m: int
    out_n: int
    epilogue_n: int
    max_entries: int
    lane_tiles: int
    scale_chunk: int
    scale_columns: int
    scale_values: int
    scale_box: int
    scale_pitch: int
    short_scale_box: int
    tail_m: int
    extra_m: int


class Sm90Rules(GemmRules):
    """Rules of persistent kernels with one loading warpgroup and up to three math warpgroups."""

    arch = "sm_90a"
    space = Space(
        tile_m=(64, 128, 192, 256),
        tile_n=tuple(range(16, 257, 16)),
        tile_k={
            DType.E4M3: (ROW_BYTES,),
            DType.BF16: (ROW_BYTES // 2,),
            DType.F16: (ROW_BYTES // 2,),
        },
        cluster=((1, 1), (2, 1), (1, 2)),
        num_acc_stage=(1,),
        split_k=(1, 2, 4),
        operands=tuple(
            (operand, out)
            for operand in (DType.E4M3, DType.BF16, DType.F16)
            for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=FLOAT_SCALES,
        # Of 16 bits alone WGMMA reads a b that lies column by column (PTX ISA, wgmma, imm-trans-b).
        n_major=(DType.BF16, DType.F16),
    )

    lists_tiles = True
    """Whether contiguous kernels list the tiles that have rows."""

    schedules_tiles = True
    """Whether kernels of ragged and masked rows schedule tiles by their rows."""

    def derive(self, config: GroupedGemmConfig) -> Sm90Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_prepacked(config, "sm_90a", n_major=self.space.n_major)
        refuse_selectors(config, "sm_90a")
        refuse_pairs(config, "sm_90a")
        self._check_instruction(config)
        self._check_cluster(config)
        self._check_split_k(config)
        check_early(config)
        check_tail(config)
        check_extra(config)
        tile = config.tile
        math_warpgroups, m_blocks = boxes.math_warpgroups(tile.m), boxes.m_blocks(tile.m)
        registers = boxes.REGISTERS[math_warpgroups]
        acc_registers = self._accumulators(config)
        num_ab_stage, used_bytes = self._stages(config)
        max_entries, list_bytes = self._entries(config, SMEM_BYTES - used_bytes)
        has_blocks = config.operands.scale_granularity is ScaleGranularity.BLOCK128
        return Sm90Derived(
            math_warpgroups=math_warpgroups,
            m_blocks=m_blocks,
            threads=128 * (math_warpgroups + 1),
            num_ab_stage=num_ab_stage,
            smem_bytes=boxes.align(used_bytes + list_bytes, _SWIZZLE_BYTES),
            acc_registers=acc_registers,
            load_registers=registers.load,
            math_registers=registers.math,
            part_m=boxes.part_m(config),
            short_m=boxes.short_m(config),
            out_n=boxes.out_n(config),
            epilogue_n=boxes.epilogue_n(boxes.out_n(config), config.operands.out_dtype),
            max_entries=max_entries,
            lane_tiles=self._lane_tiles(config),
            scale_chunk=SCALE_CHUNK if has_blocks else 0,
            scale_columns=boxes.scale_columns(tile.n) if has_blocks else 0,
            scale_values=boxes.scale_values(tile.n) if has_blocks else 0,
            scale_box=boxes.scale_box(config) if has_blocks else 0,
            scale_pitch=boxes.align(boxes.scale_box(config), 32) if has_blocks else 0,
            short_scale_box=boxes.short_scale_box(config) if has_blocks else 0,
            tail_m=tail_m(config),
            extra_m=extra_m(config),
        )

    def _check_instruction(self, config: GroupedGemmConfig) -> None:
        tile, types = config.tile, config.operands
        refuse_unless(
            types.a_dtype == types.b_dtype
            and (types.a_dtype, types.out_dtype) in self.space.operands,
            "E_MMA",
            f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no sm_90a kernel; a and b "
            "share one of e4m3, bf16, f16 and the output is bf16, f16 or f32",
        )
        refuse_scales(config, self.space, "sm_90a")
        refuse_unless(
            _is_promoted(config) or types.scale_granularity is not ScaleGranularity.BLOCK128,
            "E_SCALES",
            f"{types.a_dtype} operands have no block128 scales: their sums stay in the tensor "
            "cores over all of K; allowed: tensor, row",
        )
        (depth,) = self.space.tile_k[types.a_dtype]
        refuse_unless(
            tile.k == depth,
            "E_TILE_K",
            f"tile_k={tile.k}: a stage's rows are {ROW_BYTES} bytes, which the swizzle spans, so "
            f"{types.a_dtype} operands have tile_k {depth}",
        )
        refuse_unless(
            tile.m in self.space.tile_m,
            "E_WGMMA_M",
            f"tile_m={tile.m}: one WGMMA has 64 rows, and one, two or three warpgroups take one of "
            "them, or two take two: 64, 128, 192 or 256",
        )
        refuse_unless(
            config.layout is not Layout.CONTIGUOUS or tile.m != 192,
            "E_WGMMA_M",
            "tile_m=192 with the contiguous layout: tiles begin at whole blocks of "
            f"{GROUP_ALIGNMENT} rows, as groups do; allowed: 64, 128, 256",
        )
        refuse_unless(
            tile.n in self.space.tile_n and tile.n <= MAX_N[types.a_dtype],
            "E_WGMMA_N",
            f"tile_n={tile.n}: stores write 16 columns at once and accumulators fit up to "
            f"{MAX_N[types.a_dtype]}: a multiple of 16 from 16 to {MAX_N[types.a_dtype]}",
        )
        has_blocks = types.scale_granularity is ScaleGranularity.BLOCK128
        beyond = tile.n - SCALE_BLOCK if has_blocks else 0
        refuse_unless(
            beyond <= 0 or tile.n % beyond == 0 or SCALE_BLOCK % beyond == 0,
            "E_SFB_SPAN",
            f"tile_n={tile.n} would meet three blocks of b_scale; above {SCALE_BLOCK} only 144, "
            "160 and 192 meet two at most",
        )
        refuse_unless(
            config.pipeline.num_acc_stage == 1,
            "E_ACC_STAGE",
            f"num_acc_stage={config.pipeline.num_acc_stage}: two partial accumulators in one "
            "warpgroup make ptxas serialise WGMMA (C7514), so sm_90a has 1",
        )

    def _check_cluster(self, config: GroupedGemmConfig) -> None:
        cluster = (config.cluster.m, config.cluster.n)
        refuse_unless(
            cluster in self.space.cluster,
            "E_CLUSTER",
            f"cluster {cluster[0]}x{cluster[1]}: clusters of more than 2 CTAs do not all fit on "
            "the chip at once and halved the speed; allowed: 1x1, 2x1, 1x2",
        )
        refuse_unless(
            config.layout is not Layout.CONTIGUOUS or config.tile.m < 256 or config.cluster.m == 1,
            "E_CLUSTER",
            "a contiguous tile of 256 rows may meet two groups, one after the other, so that the "
            "CTAs of a cluster 2x1 would not keep step; allowed: 1x1, 1x2",
        )

    def _check_split_k(self, config: GroupedGemmConfig) -> None:
        tile, split_k = config.tile, config.schedule.split_k
        refuse_unless(
            split_k in self.space.split_k,
            "E_SPLIT_K",
            f"split_k={split_k}: the CTAs of one tile are a cluster of 1, 2 or 4",
        )
        if split_k == 1:
            return
        refuse_unless(
            _is_promoted(config),
            "E_SPLIT_K",
            f"split_k={split_k}: a part of K may be empty, which only sums that are promoted start "
            "from; it needs e4m3 operands",
        )
        refuse_unless(
            config.cluster.size == 1,
            "E_SPLIT_K",
            f"split_k={split_k} makes the cluster itself, so the cluster of operands must be 1x1 "
            f"(got {config.cluster.m}x{config.cluster.n})",
        )
        refuse_unless(
            tile.m <= 128,
            "E_SPLIT_K",
            f"split_k={split_k} is for few rows: tile_m must be 64 or 128 (got {tile.m})",
        )
        refuse_unless(
            tile.n % (16 * split_k) == 0,
            "E_SPLIT_K",
            f"split_k={split_k}: each of as many CTAs stores a multiple of 16 columns of the tile, "
            f"so tile_n must be a multiple of {16 * split_k} (got {tile.n})",
        )

    def _accumulators(self, config: GroupedGemmConfig) -> int:
        """Return the accumulator registers of a thread."""
        tile, m_blocks = config.tile, boxes.m_blocks(config.tile.m)
        room = boxes.REGISTERS[boxes.math_warpgroups(tile.m)]
        registers, most, kinds = tile.n // 2 * m_blocks, room.plain, ""
        if _is_promoted(config):
            registers, most = registers + tile.n // 2, room.promoted
            kinds = "tile_n / 2 partial and "
        shares = ""
        if config.schedule.split_k > 1:
            registers, shares = registers + boxes.out_n(config) // 2, ", and those that it stores"
        refuse_unless(
            registers <= most,
            "E_REGS",
            f"a {tile.m}x{tile.n} tile takes {registers} accumulator registers a thread "
            f"({kinds}{m_blocks} x tile_n / 2 final{shares}); above {most} they spill",
        )
        return registers

    def _stages(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the operand stages, and the bytes of shared memory of all but a list of tiles."""
        tile = config.tile
        stage, fixed = self._memory(config)
        minimum = 3 if tile.m * tile.n >= 128 * 192 else 4
        most = (SMEM_BYTES - fixed) // stage
        stages = config.pipeline.num_ab_stage or min(MAX_STAGES, most)
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= minimum,
            "E_STAGES",
            f"{stages} stages are too few to hide the loads of a {tile.m}x{tile.n} tile: at least "
            f"{minimum}",
        )
        return stages, fixed + stages * stage

    def _entries(self, config: GroupedGemmConfig, free_bytes: int) -> tuple[int, int]:
        """
        Return the entries of the table or list of tiles, and the bytes of a list.

        A list gets the memory that the stages leave: it also works with fewer entries.
        """
        if config.layout is not Layout.CONTIGUOUS:
            return MAX_ENTRIES, 0
        if not (self.lists_tiles and boxes.has_list(config)):
            return 0, 0
        count = min(MAX_ENTRIES, max(0, free_bytes // 4 - 1) // 32 * 32)
        return count, 4 * (count + 1) if count else 0

    def _lane_tiles(self, config: GroupedGemmConfig) -> int:
        """
        Return the tiles of a wave that each lane of the scheduler warp assigns; 0 without one.
        """
        return boxes.lane_tiles(config) if self.schedules_tiles else 0

    def _memory(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the bytes of shared memory of an operand stage, and of everything else."""
        tile, types, split_k = config.tile, config.operands, config.schedule.split_k
        height = tile.m + extra_m(config)
        stage = (height + tile.n) * tile.k * types.a_dtype.bits // 8 + _RING_SLOT_BYTES
        fixed = height * boxes.out_n(config) * types.out_dtype.bits // 8 + 2 * (
            _TILE_INFO_BYTES + 2 * _RING_SLOT_BYTES
        )
        if split_k > 1:
            sums = (split_k - 1) * tile.m * boxes.out_n(config) * 4
            fixed += sums + boxes.math_warpgroups(tile.m) * _RING_SLOT_BYTES
        match types.scale_granularity:
            case ScaleGranularity.BLOCK128:
                stage += boxes.m_blocks(tile.m) * boxes.align(boxes.scale_box(config), 32) * 4
                fixed += 2 * SCALE_CHUNK * boxes.scale_values(tile.n) * 4
            case ScaleGranularity.ROW:
                fixed += 2 * (tile.m + tile.n) * 4
            case _:
                fixed += 16
        if config.epilogue.bias:
            fixed += boxes.math_warpgroups(tile.m) * boxes.out_n(config) * 4
        if config.layout is not Layout.CONTIGUOUS:
            fixed += 4 * (MAX_ENTRIES + 1)
        if self._lane_tiles(config):
            fixed += 2 * (4 + _RING_SLOT_BYTES)
        return stage, fixed


def _is_promoted(config: GroupedGemmConfig) -> bool:
    """Return whether partial sums are added up outside of the tensor cores."""
    return config.operands.a_dtype is DType.E4M3
