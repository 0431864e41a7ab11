# SPDX-License-Identifier: Apache-2.0
"""
The rules of sm_100a and sm_103a (B200, B300): tcgen05 with accumulators in tensor memory.

Limits of instructions are those of the PTX ISA (tcgen05.mma, tcgen05.alloc); those of registers and
shared memory were checked by compiling.
"""

from __future__ import annotations

import math

from jitgen.config.config import SCALE_BLOCK, SCALES, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.support.frozen import frozen
from jitgen.targets.gemm import (
    GemmRules,
    Space,
    refuse_early,
    refuse_prepacked,
    refuse_scales,
    refuse_selectors,
    refuse_stages,
    refuse_swap_tail,
)
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sm_100a.sizes import (
    ATOM_BYTES,
    CTA_ROWS,
    MAX_ENTRIES,
    MAX_STAGES,
    MIN_STAGES,
    PART_M,
    RING_SLOT_BYTES,
    ROW_BYTES,
    SCALE_CHUNK,
    SCALE_STAGES,
    SHIFT_COLUMNS,
    SMEM_BYTES,
    SWIZZLE_BYTES,
    THREADS,
    TILE_INFO_BYTES,
    TMEM_COLUMNS,
    UNPACKED_ALIGNMENT,
    UPDATE_WARPS,
    WIDE,
    align,
    atoms,
    epilogue_n,
    has_atoms,
    has_block_table,
    is_block,
    num_ctas,
    read_n,
    scale_blocks,
    scale_box,
    scale_columns,
    scale_padding,
    scale_values,
)


@frozen
class Sm100Derived:
    """
    Numbers that follow from a legal config; those that do not apply to it are 0.

    Attributes:
        ctas: CTAs that multiply a tile together: 2 are a pair.
        update_warps: Warps that read, scale and store sums.
        threads: Threads of a CTA.
        update_registers: Registers of a thread of the update warps (setmaxnreg); 0 where an equal
            share is enough.
        other_registers: Registers of a thread of the other warps.
        tmem_columns: Columns of tensor memory that a CTA allocates: a power of two from 32 on.
        num_ab_stage: Operand stages in shared memory.
        smem_bytes: Shared memory of a CTA.
        part_m: Rows of a that one copy loads where a group does not fill its tile.
        read_n: Columns that a warp reads from tensor memory at once.
        epilogue_n: Columns of one store box.
        max_entries: Entries of the table of tile counts.
        scale_stages: k-blocks whose activation scales may be loaded ahead.
        scale_chunk: k-blocks whose weight scales are handed over at once.
        scale_columns: Columns of a tile that share a weight scale, wherever the tile starts.
        scale_values: Weight scales kept for each k-block: one for each `scale_columns`.
        scale_blocks: Blocks of 128 columns whose scales, in atoms, a tile of b may need.
        scale_box: Activation scales that one copy loads: those of a CTA's rows.
        scale_pitch: `scale_box`, rounded up so that copies start at whole 128 bytes.
        lane_tiles: Tiles that each lane of a scheduler warp assigns; 0, because there is no
            scheduler warp.
    """

    ctas: int
    update_warps: int
    threads: int
    update_registers: int
    other_registers: int
    tmem_columns: int
    num_ab_stage: int
    smem_bytes: int
    part_m: int
    read_n: int
    epilogue_n: int
    max_entries: int
    scale_stages: int
    scale_chunk: int
    scale_columns: int
    scale_values: int
    scale_blocks: int
    scale_box: int
    scale_pitch: int
    lane_tiles: int = 0


class Sm100Rules(GemmRules):
    """
    Rules of persistent kernels with eight warps that read sums, and one warp each that multiplies,
    loads and plans.
    """

    arch = "sm_100a"
    space = Space(
        tile_m=(128, 256),
        tile_n=(32, 64, 128, 192, 256),
        tile_k={DType.E4M3: (ROW_BYTES,), DType.E2M1: (2 * ROW_BYTES,)},
        cluster=((1, 1), (2, 1), (1, 2), (2, 2)),
        num_acc_stage=(1, 2, 3, 4),
        split_k=(1, 2, 4),
        operands=tuple(
            (operand, out)
            for operand in (DType.E4M3, DType.E2M1)
            for out in (DType.BF16, DType.F16, DType.F32)
        ),
        scale_granularity=SCALES,
        two_cta=(False, True),
        mixed=((DType.E4M3, DType.E2M1),),
        mixed_alignment=UNPACKED_ALIGNMENT,
    )

    def derive(self, config: GroupedGemmConfig) -> Sm100Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_prepacked(config, self.arch)
        refuse_selectors(config, self.arch)
        refuse_early(config, f"a kernel of {self.arch}")
        refuse_swap_tail(config, f"a kernel of {self.arch}")
        self._check_types(config)
        self._check_tile(config)
        self._check_pair(config)
        self._check_cluster(config)
        self._check_split_k(config)
        self._check_tensor_memory(config)
        tile, types = config.tile, config.operands
        num_ab_stage, smem_bytes = self._stages(config)
        has_table = config.layout is not Layout.CONTIGUOUS
        has_blocks = is_block(config)
        columns = config.pipeline.num_acc_stage * tile.n + scale_columns(config)
        return Sm100Derived(
            ctas=num_ctas(config),
            update_warps=UPDATE_WARPS,
            threads=THREADS,
            # 2 x 216 + 64 registers for three warpgroups: the pool of 65,536 / 128 has 512. A
            # split tile's warps hold their share of the sums besides.
            update_registers=216 if tile.n >= WIDE or config.schedule.split_k > 1 else 0,
            other_registers=64,
            tmem_columns=max(32, 1 << (columns - 1).bit_length()),
            num_ab_stage=num_ab_stage,
            smem_bytes=smem_bytes,
            part_m=PART_M if has_table else 0,
            read_n=read_n(tile.n),
            epilogue_n=epilogue_n(tile.n // 2 // config.schedule.split_k, types.out_dtype),
            max_entries=MAX_ENTRIES if has_table else 0,
            scale_stages=SCALE_STAGES if has_blocks else 0,
            scale_chunk=SCALE_CHUNK if has_blocks else 0,
            scale_columns=math.gcd(tile.n, SCALE_BLOCK) if has_blocks else 0,
            scale_values=scale_values(tile.n) if has_blocks else 0,
            scale_blocks=scale_blocks(tile.n) if has_atoms(config) else 0,
            scale_box=scale_box(config) if has_blocks else 0,
            scale_pitch=align(scale_box(config), 32) if has_blocks else 0,
        )

    def _check_types(self, config: GroupedGemmConfig) -> None:
        types = config.operands
        refuse_unless(
            self.space.has(types),
            "E_MMA",
            f"{types.a_dtype} x {types.b_dtype} -> {types.out_dtype} has no {self.arch} kernel; a "
            "and b are both e4m3, or both e2m1, or e4m3 and e2m1, and the output is bf16, f16 or "
            "f32",
        )
        refuse_scales(config, self.space, self.arch)

    def _check_tile(self, config: GroupedGemmConfig) -> None:
        tile = config.tile
        refuse_unless(
            tile.m in self.space.tile_m,
            "E_MMA_M",
            f"tile_m={tile.m}: a CTA has {CTA_ROWS} rows, one for each lane of tensor memory; 64 "
            "would take the tensor core as long, so that rows that a group lacks are left out of "
            "the loads instead: 128, or 256 of a pair (two_cta)",
        )
        refuse_unless(
            tile.n in self.space.tile_n,
            "E_MMA_N",
            f"tile_n={tile.n}: an instruction takes up to 256 columns, and a warp reads half of "
            "them in steps of 16, 32 or 64 that share a weight scale: "
            f"{', '.join(map(str, self.space.tile_n))}",
        )
        refuse_unless(
            tile.n % SHIFT_COLUMNS == 0 or not has_atoms(config),
            "E_MMA_N",
            f"tile_n={tile.n} with {config.operands.scale_granularity} scales: tiles would begin "
            "at odd columns of their scales in tensor memory, and nothing says that hardware "
            f"takes them: a multiple of {SHIFT_COLUMNS}",
        )
        types = config.operands
        (depth,) = self.space.tile_k[types.a_dtype]
        refuse_unless(
            tile.k == depth,
            "E_TILE_K",
            f"tile_k={tile.k}: a stage's rows are {ROW_BYTES} bytes, which the swizzle spans"
            + (f", and block128 scales change every {SCALE_BLOCK} of K" if is_block(config) else "")
            + f": {depth} for {types.a_dtype} operands",
        )

    def _check_pair(self, config: GroupedGemmConfig) -> None:
        tile, cluster = config.tile, config.cluster
        is_pair = config.schedule.two_cta
        refuse_unless(
            is_pair == (tile.m == 2 * CTA_ROWS),
            "E_TWO_CTA",
            f"tile_m={tile.m} with two_cta={is_pair}: a tile of {2 * CTA_ROWS} rows is that of a "
            f"pair of CTAs, one of {CTA_ROWS} that of one",
        )
        refuse_unless(
            not is_pair or (cluster.m, cluster.n) == (2, 1),
            "E_TWO_CTA",
            f"cluster {cluster.m}x{cluster.n} with two_cta: the two CTAs of a pair are a cluster "
            "2x1, and kernels have one pair in each",
        )

    def _check_cluster(self, config: GroupedGemmConfig) -> None:
        cluster = (config.cluster.m, config.cluster.n)
        refuse_unless(
            cluster in self.space.cluster,
            "E_CLUSTER",
            f"cluster {cluster[0]}x{cluster[1]}: an operand is shared by two CTAs; allowed: 1x1, "
            "2x1 (they share b), 1x2 (they share a), 2x2 (both)",
        )
        refuse_unless(
            config.cluster.size < 4 or config.layout is Layout.CONTIGUOUS,
            "E_CLUSTER",
            f"cluster 2x2: a {config.layout} group may have an odd number of tiles along M, and "
            "two of four CTAs would have none; allowed: 1x1, 2x1, 1x2",
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
            self._is_promoted(config),
            "E_SPLIT_K",
            f"split_k={split_k}: a part of K may be empty, which only sums that are promoted start "
            "from; it needs block128 scales",
        )
        refuse_unless(
            config.cluster.size == 1,
            "E_SPLIT_K",
            f"split_k={split_k} makes the cluster itself, so the cluster of operands must be 1x1, "
            f"and a tile one CTA's (got {config.cluster.m}x{config.cluster.n})",
        )
        refuse_unless(
            tile.n <= SCALE_BLOCK and tile.n % (32 * split_k) == 0,
            "E_SPLIT_K",
            f"split_k={split_k}: a warp stores its part of half of the columns, at least 16, and "
            f"has room for those of {SCALE_BLOCK}; tile_n must be a multiple of {32 * split_k} up "
            f"to that (got {tile.n})",
        )

    def _check_tensor_memory(self, config: GroupedGemmConfig) -> None:
        stages, n, scales = config.pipeline.num_acc_stage, config.tile.n, scale_columns(config)
        most = (TMEM_COLUMNS - scales) // n
        beside = f" and {scales} of scales" if scales else ""
        refuse_unless(
            stages <= most,
            "E_TMEM",
            f"num_acc_stage={stages}: sums of {n} columns in {stages} stages{beside} are "
            f"{stages * n + scales} columns of tensor memory, which has {TMEM_COLUMNS}: at most "
            f"{most} stages",
        )

    def _is_promoted(self, config: GroupedGemmConfig) -> bool:
        """Return whether sums of parts of K are added to totals in registers, which begin at 0."""
        return is_block(config)

    def _memory(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the bytes of shared memory of an operand stage, and of everything else."""
        tile, types, ctas = config.tile, config.operands, num_ctas(config)
        stage = (CTA_ROWS + tile.n // ctas) * ROW_BYTES + RING_SLOT_BYTES
        split_k = config.schedule.split_k
        out = CTA_ROWS * tile.n // split_k
        fixed = out * types.out_dtype.bits // 8 + 2 * (TILE_INFO_BYTES + 2 * RING_SLOT_BYTES)
        if split_k > 1:
            fixed += out * 4 * (split_k - 1) + UPDATE_WARPS // 4 * RING_SLOT_BYTES
        fixed += config.pipeline.num_acc_stage * RING_SLOT_BYTES
        match types.scale_granularity:
            case ScaleGranularity.BLOCK128:
                a_scale = align(scale_box(config), 32) * 4 + RING_SLOT_BYTES
                fixed += SCALE_STAGES * a_scale + 2 * SCALE_CHUNK * scale_values(tile.n) * 4
            case ScaleGranularity.ROW:
                fixed += 2 * (CTA_ROWS + tile.n) * 4
            case ScaleGranularity.MX32 | ScaleGranularity.NV16:
                stage += ATOM_BYTES * atoms(config) * (1 + scale_blocks(tile.n))
                fixed += 16
            case _:
                fixed += 16
        fixed += 16  # where tensor memory begins, and the barrier of a pair that frees it
        if config.layout is not Layout.CONTIGUOUS:
            fixed += 4 * (MAX_ENTRIES + 1) * (1 + has_block_table(config))
        return stage, fixed

    def _stages(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the operand stages and the bytes of the kernel's struct of shared memory."""
        stage, fixed = self._memory(config)
        fixed = align(fixed, 128)
        most = (SMEM_BYTES - fixed) // stage
        most -= most * stage + fixed + scale_padding(config, most) > SMEM_BYTES
        stages = config.pipeline.num_ab_stage or min(MAX_STAGES, most)
        fixed += scale_padding(config, stages)
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= MIN_STAGES,
            "E_STAGES",
            f"{stages} stages are too few to hide the loads of a {config.tile.m}x{config.tile.n} "
            f"tile: at least {MIN_STAGES}",
        )
        return stages, align(fixed + stages * stage, SWIZZLE_BYTES)
