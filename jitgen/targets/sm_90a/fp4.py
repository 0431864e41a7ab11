# SPDX-License-Identifier: Apache-2.0
"""
The rules of sm_90a for prepacked weights, which WGMMA takes from registers, as its A.

Weights were prepacked for that (`jitgen.formats.prepacked`): 64 rows x 128 of K are one block of
4,352 bytes, or 4,608, which a warpgroup decodes to e4m3 or bf16 and multiplies. Tokens are WGMMA's
N, so that few of them make small instructions.

`fp4_tiles` computes registers. That these suffice, and which loop is faster, was checked by
compiling and measured on an H200.
"""

from __future__ import annotations

from jitgen.config.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.config.prepacked import BLOCK_DEPTH
from jitgen.support.frozen import frozen
from jitgen.targets.fp4_space import OPERANDS, format_of, refuse_other_operands
from jitgen.targets.gemm import (
    GemmRules,
    Space,
    refuse_early,
    refuse_pairs,
    refuse_stages,
    refuse_swap_tail,
)
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sm_90a import fp4_tiles as tiles
from jitgen.targets.sm_90a.boxes import has_list
from jitgen.targets.sm_90a.rules import MAX_ENTRIES, SMEM_BYTES

DEPTH = BLOCK_DEPTH
"""Values along K of a block, and so of a stage."""

MAX_STAGES = 12
"""More operand stages than this never made a kernel faster."""

MIN_STAGES = 4
"""With fewer stages, the latency of memory is not hidden."""

LISTED_ROWS = 65_536
"""
Number of contiguous rows for which the list of tiles has entries: 512 groups of one block each.
CTAs also compute tiles after these, including those that only contain padding, which are three of
four if groups are small. With the list no candidate kernel has fewer stages than for ragged rows,
whose table takes memory as well, except one of ten if blocks of 4,608 bytes just fill the memory.
"""


@frozen
class Fp4Derived:
    """
    Numbers that follow from a legal config; those that do not apply to it are 0.

    Attributes:
        block_words: 32-bit words of a block of weights: values, then scales.
        value_words: 32-bit words of a block's values.
        scale_words: 32-bit words of the scales of a block's row.
        num_partials: Partial sums of a k-block; 0: one sum takes all of K.
        math_warpgroups: Warpgroups that multiply, 64 columns of a tile each; one more loads.
        threads: Threads of a CTA.
        num_ab_stage: Operand stages in shared memory.
        smem_bytes: Shared memory of a CTA.
        acc_registers: Accumulator registers of a thread, partial and final.
        load_registers: Registers of a thread of the loading warpgroup (setmaxnreg).
        math_registers: Registers of a thread of a math warpgroup (setmaxnreg).
        is_paired: Whether a k-block is decoded while the one before is multiplied, in other
            registers.
        is_tall: Whether a tile has more than `tiles.TALL_ROWS` tokens.
        part_rows: Most rows of a that WGMMAs multiply at once: a tile's, or half of them.
        narrowest: Fewest rows of a that a WGMMA takes: all of a tile's, half or a quarter. Each
            tile is multiplied with as few as hold its own.
        narrowest_box: Fewest rows of a that one copy loads: as few as are multiplied, or a tile's.
        early_rows: Largest number of rows of a WGMMA for which scales of rows are read ahead of the
            sums that they scale: their way from memory costs short sums a tenth of their time.
        max_entries: Entries of the table of tile counts, or of the list of tiles with rows.
        scale_box: Activation scales that one copy loads.
        scale_pitch: `scale_box`, rounded up so that copies start at whole 128 bytes.
    """

    block_words: int
    value_words: int
    scale_words: int
    num_partials: int
    math_warpgroups: int
    threads: int
    num_ab_stage: int
    smem_bytes: int
    acc_registers: int
    load_registers: int
    math_registers: int
    is_paired: bool
    is_tall: bool
    part_rows: int
    narrowest: int
    narrowest_box: int
    early_rows: int
    max_entries: int
    scale_box: int
    scale_pitch: int


class Fp4Rules(GemmRules):
    """Rules of persistent kernels with one loading warpgroup and two to four math warpgroups."""

    arch = "sm_90a"
    space = Space(
        tile_m=(8, 16, 32, 64, 128, 192, 256),
        tile_n=(128, 192, 256),
        tile_k=dict.fromkeys((DType.E4M3, DType.E4M3X2, DType.BF16), (DEPTH,)),
        cluster=((1, 1), (1, 2)),
        num_acc_stage=(1,),
        split_k=(1, 2),
        operands=(),
        scale_granularity=(),
        prepacked=OPERANDS,
    )

    def derive(self, config: GroupedGemmConfig) -> Fp4Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        refuse_pairs(config, "sm_90a")
        refuse_early(config, "a kernel of prepacked weights")
        refuse_swap_tail(config, "a kernel of prepacked weights")
        self._check_operands(config)
        self._check_tile(config)
        self._check_cluster(config)
        tile = config.tile
        acc_registers = self._registers(config)
        num_ab_stage, smem_bytes = self._stages(config)
        is_paired = tiles.is_paired(config)
        facts = format_of(config.operands).facts
        return Fp4Derived(
            block_words=facts.block_words,
            value_words=facts.value_words,
            scale_words=facts.scale_words,
            num_partials=tiles.partials(config),
            math_warpgroups=tile.n // 64,
            threads=tiles.threads(config),
            num_ab_stage=num_ab_stage,
            smem_bytes=smem_bytes,
            acc_registers=acc_registers,
            load_registers=tiles.LOAD_REGISTERS,
            math_registers=tiles.math_registers(config),
            is_paired=is_paired,
            is_tall=tiles.is_tall(config),
            part_rows=tiles.part_rows(config),
            narrowest=tiles.narrowest(config),
            narrowest_box=tiles.narrowest_box(config),
            early_rows=tiles.early_rows(config, is_paired=is_paired),
            max_entries=_entries(config),
            scale_box=tiles.scale_box(config),
            scale_pitch=-(-tiles.scale_box(config) // 32) * 32,
        )

    def _check_operands(self, config: GroupedGemmConfig) -> None:
        refuse_other_operands(config.operands, "sm_90a")
        refuse_unless(
            config.pipeline.num_acc_stage == 1,
            "E_ACC_STAGE",
            f"num_acc_stage={config.pipeline.num_acc_stage}: accumulators are registers of the "
            "warpgroup that promotes them, so sm_90a has 1",
        )

    def _check_tile(self, config: GroupedGemmConfig) -> None:
        tile = config.tile
        refuse_unless(
            tile.k == DEPTH,
            "E_TILE_K",
            f"tile_k={tile.k}: a stage has whole blocks of prepacked weights, {DEPTH} deep",
        )
        refuse_unless(
            tile.m in self.space.tile_m,
            "E_WGMMA_N",
            f"tile_m={tile.m}: tokens are WGMMA's N, in steps of 8, and kernels were made for "
            f"{', '.join(map(str, self.space.tile_m))}",
        )
        refuse_unless(
            tile.n in self.space.tile_n,
            "E_WGMMA_M",
            f"tile_n={tile.n}: each of two to four warpgroups takes 64 rows of weights: 128, 192 "
            "or 256",
        )
        types = config.operands
        refuse_unless(
            not tiles.is_tall(config)
            or (tiles.partials(config) == 1 and types.a_scale_granularity is ScaleGranularity.ROW),
            "E_WGMMA_N",
            f"tile_m={tile.m}: only e4m3 tokens with scales of rows, beside weights with one "
            f"partial sum of a k-block, have tiles of more than {tiles.TALL_ROWS} tokens",
        )
        refuse_unless(
            not tiles.is_tall(config) or config.layout is not Layout.CONTIGUOUS,
            "E_TILE_M",
            f"tile_m={tile.m}: contiguous groups start at multiples of {GROUP_ALIGNMENT} rows, and "
            "a tile has rows of one group",
        )

    def _check_cluster(self, config: GroupedGemmConfig) -> None:
        cluster, split_k = config.cluster, config.schedule.split_k
        tall = tiles.is_tall(config)
        refuse_unless(
            cluster.size == 1 or ((cluster.m, cluster.n) == (1, 2) and tall),
            "E_CLUSTER",
            f"cluster {cluster.m}x{cluster.n}: two CTAs may share tokens in tiles of more than "
            f"{tiles.TALL_ROWS} (1x2); sharing fewer changed the time by 1 %, so clusters are 1x1",
        )
        refuse_unless(
            split_k in self.space.split_k and not (tall and split_k > 1),
            "E_SPLIT_K",
            f"split_k={split_k}: one CTA takes all of K of a tile, or each of two a half: 1 or 2",
        )
        refuse_unless(
            tiles.share_registers(config) % 4 == 0,
            "E_SPLIT_K",
            f"split_k={split_k}: sums are exchanged 16 bytes at a time, and with tile_m="
            f"{config.tile.m} a thread has {tiles.share_registers(config)} for each CTA: it needs "
            f"at least {8 * split_k} rows of a",
        )

    def _registers(self, config: GroupedGemmConfig) -> int:
        """Return the accumulator registers of a thread."""
        sums = tiles.sums(config, tiles.rows_of_a(config))
        needed = sums + tiles.value_registers(config) + tiles.SPARE_REGISTERS
        scales = ""
        if tiles.partials(config) == tiles.MOST_PARTIALS:
            needed += tiles.MORE_FACTORS
            scales = f", {tiles.MORE_FACTORS} more scales"
        if config.schedule.split_k > 1:
            needed += tiles.share_registers(config)
            scales += f", {tiles.share_registers(config)} sums to store"
        if config.operands.a_scale_granularity is ScaleGranularity.BLOCK128:
            needed += tiles.scale_registers(config)
            scales += f", {tiles.scale_registers(config)} scales of a"
        most, warpgroups = tiles.math_registers(config), config.tile.n // 64
        refuse_unless(
            needed <= most,
            "E_REGS",
            f"tile_m={config.tile.m} takes {needed} registers a thread ({sums} for "
            f"{tiles.partials(config)} partial sums and the final one, "
            f"{tiles.value_registers(config)} decoded weights{scales}, {tiles.SPARE_REGISTERS} "
            f"others); {warpgroups} math warpgroups (tile_n={config.tile.n}) leave {most}, and "
            "more spill",
        )
        return sums

    def _stages(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the operand stages and the bytes of the kernel's struct of shared memory."""
        rows = tiles.rows_of_a(config) * DEPTH * (2 if config.operands.a_dtype is DType.BF16 else 1)
        scales = -(-tiles.scale_box(config) // 32) * 128
        stage = config.tile.n // 64 * tiles.block_bytes(config) + rows + scales + 16  # two barriers
        words = _entries(config) * (1 if config.layout is Layout.CONTIGUOUS else 3)
        fixed = 4 * (words + 1) if words else 0
        if config.schedule.split_k > 1:
            fixed += config.tile.n // 64 * (128 * tiles.share_registers(config) * 4 + 16)
        most = (SMEM_BYTES - fixed) // stage
        stages = config.pipeline.num_ab_stage or min(MAX_STAGES, most)
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= MIN_STAGES,
            "E_STAGES",
            f"{stages} stages are too few to hide the way from memory: at least {MIN_STAGES}",
        )
        return stages, -(-(stages * stage + fixed) // 1024) * 1024


def _entries(config: GroupedGemmConfig) -> int:
    """Return the entries of the table of tiles, or of the list of tiles with rows."""
    if config.layout is not Layout.CONTIGUOUS:
        return MAX_ENTRIES
    return LISTED_ROWS // config.tile.m if has_list(config) else 0
