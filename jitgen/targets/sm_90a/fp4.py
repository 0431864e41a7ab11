# SPDX-License-Identifier: Apache-2.0
"""
The rules of sm_90a for prepacked weights, which WGMMA takes from registers, as its A.

Weights were prepacked for that (`jitgen.formats.prepacked`): 64 rows x 128 of K are one block of
4,352 bytes, or 4,608, which a warpgroup decodes to e4m3 or bf16 and multiplies. Tokens are WGMMA's
N, so that few of them make small instructions.

That registers suffice, and which loop is faster, was checked by compiling and measured on an H200.
"""

from __future__ import annotations

from jitgen.config.config import BLayout, DType, Layout, ScaleGranularity
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
from jitgen.targets.sm_90a.boxes import has_list
from jitgen.targets.sm_90a.rules import MAX_ENTRIES, SMEM_BYTES

DEPTH = BLOCK_DEPTH
"""Values along K of a block, and so of a stage."""

MAX_STAGES = 12
"""More operand stages than this never made a kernel faster."""

MIN_STAGES = 4
"""With fewer stages, the latency of memory is not hidden."""

MIN_WIDTH = 8
"""Rows of a that the narrowest WGMMA takes."""

TALL_ROWS = 128
"""Tiles of more tokens are tall: their WGMMAs take quarters of them, and steps are turned."""

MAX_WIDTH = 192
"""
Rows of a that WGMMAs multiply at once. Those of taller tiles are two parts, which are multiplied
with the same decoded weights one after the other, so that the partial sums of a part suffice.
"""

LISTED_ROWS = 65_536
"""
Number of contiguous rows for which the list of tiles has entries: 512 groups of one block each.
CTAs also compute tiles after these, including those that only contain padding, which are three of
four if groups are small. With the list no candidate kernel has fewer stages than for ragged rows,
whose table takes memory as well, except one of ten if blocks of 4,608 bytes just fill the memory.
"""

REGISTERS = 65_536
"""Registers of an SM."""

LOAD_REGISTERS = 24
"""Registers of a thread of the loading warpgroup: the minimum of setmaxnreg."""

SPARE_REGISTERS = 16
"""
Registers of a thread for words in flight, factors and states of pipelines; with fewer, loops spill.
"""

SOME_PARTIALS, MOST_PARTIALS = 4, 8
"""
Partial sums of a k-block if each 32 values along K have a scale, and if each 16 have one. WGMMAs
multiply 32 values, so in the second case the other 16 are zeros, in separate registers.
"""

_MORE_FACTORS = 12
"""
Additional registers for scales of 16 values along K, compared with those of 32, which fit into the
spare registers.
"""

_FACTORS = 20
"""
Registers for the weight scales of two k-blocks, in addition to the spare ones, if there are as
many: with fewer, kernels spill.
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
        is_tall: Whether a tile has more than `TALL_ROWS` tokens.
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
        is_paired = _is_paired(config)
        facts = format_of(config.operands).facts
        return Fp4Derived(
            block_words=facts.block_words,
            value_words=facts.value_words,
            scale_words=facts.scale_words,
            num_partials=partials(config),
            math_warpgroups=tile.n // 64,
            threads=_threads(config),
            num_ab_stage=num_ab_stage,
            smem_bytes=smem_bytes,
            acc_registers=acc_registers,
            load_registers=LOAD_REGISTERS,
            math_registers=_math_registers(config),
            is_paired=is_paired,
            is_tall=is_tall(config),
            part_rows=_part_rows(config),
            narrowest=narrowest(config),
            narrowest_box=narrowest_box(config),
            early_rows=_early_rows(config, is_paired=is_paired),
            max_entries=_entries(config),
            scale_box=_scale_box(config),
            scale_pitch=-(-_scale_box(config) // 32) * 32,
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
            not is_tall(config)
            or (partials(config) == 1 and types.a_scale_granularity is ScaleGranularity.ROW),
            "E_WGMMA_N",
            f"tile_m={tile.m}: only e4m3 tokens with scales of rows, beside weights with one "
            f"partial sum of a k-block, have tiles of more than {TALL_ROWS} tokens",
        )
        refuse_unless(
            not is_tall(config) or config.layout is not Layout.CONTIGUOUS,
            "E_TILE_M",
            f"tile_m={tile.m}: contiguous groups start at multiples of {GROUP_ALIGNMENT} rows, and "
            "a tile has rows of one group",
        )

    def _check_cluster(self, config: GroupedGemmConfig) -> None:
        cluster, split_k = config.cluster, config.schedule.split_k
        tall = is_tall(config)
        refuse_unless(
            cluster.size == 1 or ((cluster.m, cluster.n) == (1, 2) and tall),
            "E_CLUSTER",
            f"cluster {cluster.m}x{cluster.n}: two CTAs may share tokens in tiles of more than "
            f"{TALL_ROWS} (1x2); sharing fewer changed the time by 1 %, so clusters are 1x1",
        )
        refuse_unless(
            split_k in self.space.split_k and not (tall and split_k > 1),
            "E_SPLIT_K",
            f"split_k={split_k}: one CTA takes all of K of a tile, or each of two a half: 1 or 2",
        )
        refuse_unless(
            _share_registers(config) % 4 == 0,
            "E_SPLIT_K",
            f"split_k={split_k}: sums are exchanged 16 bytes at a time, and with tile_m="
            f"{config.tile.m} a thread has {_share_registers(config)} for each CTA: it needs at "
            f"least {8 * split_k} rows of a",
        )

    def _registers(self, config: GroupedGemmConfig) -> int:
        """Return the accumulator registers of a thread."""
        sums = _sums(config, _rows(config))
        needed = sums + _value_registers(config) + SPARE_REGISTERS
        scales = ""
        if partials(config) == MOST_PARTIALS:
            needed += _MORE_FACTORS
            scales = f", {_MORE_FACTORS} more scales"
        if config.schedule.split_k > 1:
            needed += _share_registers(config)
            scales += f", {_share_registers(config)} sums to store"
        if config.operands.a_scale_granularity is ScaleGranularity.BLOCK128:
            needed += _scale_registers(config)
            scales += f", {_scale_registers(config)} scales of a"
        most, warpgroups = _math_registers(config), config.tile.n // 64
        refuse_unless(
            needed <= most,
            "E_REGS",
            f"tile_m={config.tile.m} takes {needed} registers a thread ({sums} for "
            f"{partials(config)} partial sums and the final one, {_value_registers(config)} "
            f"decoded weights{scales}, {SPARE_REGISTERS} others); {warpgroups} math warpgroups "
            f"(tile_n={config.tile.n}) "
            f"leave {most}, and more spill",
        )
        return sums

    def _stages(self, config: GroupedGemmConfig) -> tuple[int, int]:
        """Return the operand stages and the bytes of the kernel's struct of shared memory."""
        rows = _rows(config) * DEPTH * (2 if config.operands.a_dtype is DType.BF16 else 1)
        scales = -(-_scale_box(config) // 32) * 128
        stage = config.tile.n // 64 * block_bytes(config) + rows + scales + 16  # two barriers
        words = _entries(config) * (1 if config.layout is Layout.CONTIGUOUS else 3)
        fixed = 4 * (words + 1) if words else 0
        if config.schedule.split_k > 1:
            fixed += config.tile.n // 64 * (128 * _share_registers(config) * 4 + 16)
        most = (SMEM_BYTES - fixed) // stage
        stages = config.pipeline.num_ab_stage or min(MAX_STAGES, most)
        refuse_stages(stages, most, stage=stage, fixed=fixed, smem_bytes=SMEM_BYTES)
        refuse_unless(
            stages >= MIN_STAGES,
            "E_STAGES",
            f"{stages} stages are too few to hide the way from memory: at least {MIN_STAGES}",
        )
        return stages, -(-(stages * stage + fixed) // 1024) * 1024


def block_bytes(config: GroupedGemmConfig) -> int:
    """Return the bytes of a block of weights."""
    return 4 * format_of(config.operands).facts.block_words


def partials(config: GroupedGemmConfig) -> int:
    """
    Return the number of partial sums of a k-block, each of which is promoted with a scale of
    weights.
    """
    return format_of(config.operands).facts.partials[config.operands.b_layout]


def _rows(config: GroupedGemmConfig) -> int:
    """Return the rows of a in a tile: two for each token if a is two e4m3 parts."""
    return config.tile.m * (2 if config.operands.a_dtype is DType.E4M3X2 else 1)


def is_tall(config: GroupedGemmConfig) -> bool:
    """Return whether a tile has more than `TALL_ROWS` tokens."""
    return config.tile.m > TALL_ROWS


def _part_rows(config: GroupedGemmConfig) -> int:
    """Return the most rows of a that WGMMAs multiply at once."""
    rows = _rows(config)
    return rows // 2 if rows > MAX_WIDTH and is_tall(config) else rows


def narrowest(config: GroupedGemmConfig) -> int:
    """Return the fewest rows of a that a WGMMA takes."""
    return max(MIN_WIDTH, _rows(config) // 4)


def width_for(config: GroupedGemmConfig, rows: float) -> int:
    """Return the rows of a that WGMMAs take in a tile that has so many of a group."""
    width = narrowest(config)
    while width < rows:
        width += narrowest(config) if is_tall(config) else width
    return width


def narrowest_box(config: GroupedGemmConfig) -> int:
    """
    Return the fewest rows of a that one copy loads.

    Most of the last tile of a contiguous group may be padding. The rows of ragged groups follow
    each other without padding: smaller loads were not tried for them in tiles of up to 128 tokens,
    and taller tiles have them because L2 could not feed a wave of tiles with few rows otherwise.
    """
    is_narrow = config.layout is Layout.CONTIGUOUS or is_tall(config)
    return narrowest(config) if is_narrow else _rows(config)


def _entries(config: GroupedGemmConfig) -> int:
    """Return the entries of the table of tiles, or of the list of tiles with rows."""
    if config.layout is not Layout.CONTIGUOUS:
        return MAX_ENTRIES
    return LISTED_ROWS // config.tile.m if has_list(config) else 0


def _threads(config: GroupedGemmConfig) -> int:
    return 128 * (config.tile.n // 64 + 1)


def _math_registers(config: GroupedGemmConfig) -> int:
    """
    Return the registers that setmaxnreg can give each math thread.

    A CTA owns the registers that it is launched with, a multiple of 8 for each thread. setmaxnreg
    moves these between warpgroups, and waits for ever for more: 4 math warpgroups get 112, not 120.
    """
    warpgroups = config.tile.n // 64
    pool = REGISTERS // _threads(config) // 8 * 8 * (warpgroups + 1)
    return min(240, (pool - LOAD_REGISTERS) // warpgroups // 8 * 8)


def _value_registers(config: GroupedGemmConfig) -> int:
    """Return the registers of a k-block of decoded weights: 64 x 128 values in 128 threads."""
    is_wide = config.operands.b_layout is BLayout.WIDE1
    return 32 if is_wide or partials(config) == MOST_PARTIALS else 16


def _scale_registers(config: GroupedGemmConfig) -> int:
    """Return the registers of the scales of a thread's rows of a: two of every 8."""
    return _rows(config) // 4


def _share_registers(config: GroupedGemmConfig) -> int:
    """Return the sums of a thread that one CTA of a tile with split K stores."""
    return _rows(config) // 2 // config.schedule.split_k


def _room(config: GroupedGemmConfig, rows: int) -> int:
    """Return the registers that a thread has left while WGMMAs take `rows` rows of a tile of a."""
    room = _math_registers(config) - SPARE_REGISTERS - _sums(config, rows)
    room -= (_rows(config) - rows) // 2  # final sums of rows that the tile does not have
    if config.schedule.split_k > 1:
        room -= _share_registers(config)
    if config.operands.a_scale_granularity is ScaleGranularity.BLOCK128:
        room -= _scale_registers(config)
    return room


def _is_paired(config: GroupedGemmConfig) -> bool:
    """
    Return whether registers suffice to hold the weights of two k-blocks, for kernels that gain by
    it.
    """
    rows = _rows(config)
    needed = 2 * _value_registers(config)
    if partials(config) == SOME_PARTIALS:
        needed += _FACTORS
    return _is_slow(partials(config), rows) and needed <= _room(config, rows)


def _early_rows(config: GroupedGemmConfig, *, is_paired: bool) -> int:
    """
    Return the largest number of rows of a WGMMA for which registers suffice for both the scales and
    the sums that they scale.

    If scales are part of e4m3 values, the rows of a whole tile decide: when the rows that a tile
    has decided, full tiles took 2 % longer. Tall tiles have no registers for it.
    """
    if config.operands.a_scale_granularity is not ScaleGranularity.ROW or is_tall(config):
        return 0
    values = _value_registers(config) * (2 if is_paired else 1)
    rows, found = _rows(config), 0
    tried = narrowest(config) if partials(config) >= SOME_PARTIALS else rows
    while tried <= rows:
        if values + _scale_registers(config) <= _room(config, tried):
            found = tried
        tried *= 2
    return found


def _is_slow(num_partials: int, rows: int) -> bool:
    """
    Return whether decoding takes so long that it should overlap with multiplying.

    Decoding to bf16 does (without overlap, 8 tokens took 139 us instead of 133 on an H200), and
    decoding to e4m3 with scales does from 32 rows on (3 %). Where each 32 of K has a scale, it does
    up to 16 rows (half a percent): more rows were not tried.
    """
    if num_partials == MOST_PARTIALS:
        return False
    if num_partials == SOME_PARTIALS:
        return rows <= 16
    return num_partials == 0 or rows >= 32


def _sums(config: GroupedGemmConfig, rows: int) -> int:
    """
    Return the accumulator registers of a thread, for partial and final sums of `rows` rows of a.
    """
    return (partials(config) * min(rows, _part_rows(config)) + rows) // 2


def _scale_box(config: GroupedGemmConfig) -> int:
    """
    Return the number of activation scales that one copy loads; 0 if there are no scales for parts
    of K.

    A ragged tile starts at any row, but the TMA unit faults where its first coordinate is not at
    whole 16 bytes, so that a box begins up to 3 rows ahead.
    """
    if config.operands.a_scale_granularity is not ScaleGranularity.BLOCK128:
        return 0
    return config.tile.m + (4 if config.layout is Layout.RAGGED else 0)
