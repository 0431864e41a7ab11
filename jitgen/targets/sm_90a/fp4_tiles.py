# SPDX-License-Identifier: Apache-2.0
"""
Tiles of prepacked weights on sm_90a: the rows of a that WGMMAs take at once, and the registers of a
thread.
"""

from __future__ import annotations

from jitgen.config.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.fp4_space import format_of

MIN_WIDTH = 8
"""Rows of a that the narrowest WGMMA takes."""

TALL_ROWS = 128
"""Tiles of more tokens are tall: their WGMMAs take quarters of them, and steps are turned."""

MAX_WIDTH = 192
"""
Rows of a that WGMMAs multiply at once. Those of taller tiles are two parts, which are multiplied
with the same decoded weights one after the other, so that the partial sums of a part suffice.
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

MORE_FACTORS = 12
"""
Additional registers for scales of 16 values along K, compared with those of 32, which fit into the
spare registers.
"""

_FACTORS = 20
"""
Registers for the weight scales of two k-blocks, in addition to the spare ones, if there are as
many: with fewer, kernels spill.
"""


def block_bytes(config: GroupedGemmConfig) -> int:
    """Return the bytes of a block of weights."""
    return 4 * format_of(config.operands).facts.block_words


def partials(config: GroupedGemmConfig) -> int:
    """
    Return the number of partial sums of a k-block, each of which is promoted with a scale of
    weights.
    """
    return format_of(config.operands).facts.partials[config.operands.b_layout]


def rows_of_a(config: GroupedGemmConfig) -> int:
    """Return the rows of a in a tile: two for each token if a is two e4m3 parts."""
    return config.tile.m * (2 if config.operands.a_dtype is DType.E4M3X2 else 1)


def is_tall(config: GroupedGemmConfig) -> bool:
    """Return whether a tile has more than `TALL_ROWS` tokens."""
    return config.tile.m > TALL_ROWS


def part_rows(config: GroupedGemmConfig) -> int:
    """Return the most rows of a that WGMMAs multiply at once."""
    rows = rows_of_a(config)
    return rows // 2 if rows > MAX_WIDTH and is_tall(config) else rows


def narrowest(config: GroupedGemmConfig) -> int:
    """Return the fewest rows of a that a WGMMA takes."""
    return max(MIN_WIDTH, rows_of_a(config) // 4)


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
    return narrowest(config) if is_narrow else rows_of_a(config)


def threads(config: GroupedGemmConfig) -> int:
    """Return the threads of a CTA: math warpgroups of 64 columns each, and one that loads."""
    return 128 * (config.tile.n // 64 + 1)


def math_registers(config: GroupedGemmConfig) -> int:
    """
    Return the registers that setmaxnreg can give each math thread.

    A CTA owns the registers that it is launched with, a multiple of 8 for each thread. setmaxnreg
    moves these between warpgroups, and waits for ever for more: 4 math warpgroups get 112, not 120.
    """
    warpgroups = config.tile.n // 64
    pool = REGISTERS // threads(config) // 8 * 8 * (warpgroups + 1)
    return min(240, (pool - LOAD_REGISTERS) // warpgroups // 8 * 8)


def value_registers(config: GroupedGemmConfig) -> int:
    """Return the registers of a k-block of decoded weights: 64 x 128 values in 128 threads."""
    is_wide = config.operands.b_layout is BLayout.WIDE1
    return 32 if is_wide or partials(config) == MOST_PARTIALS else 16


def scale_registers(config: GroupedGemmConfig) -> int:
    """Return the registers of the scales of a thread's rows of a: two of every 8."""
    return rows_of_a(config) // 4


def share_registers(config: GroupedGemmConfig) -> int:
    """Return the sums of a thread that one CTA of a tile with split K stores."""
    return rows_of_a(config) // 2 // config.schedule.split_k


def _room(config: GroupedGemmConfig, rows: int) -> int:
    """Return the registers that a thread has left while WGMMAs take `rows` rows of a tile of a."""
    room = math_registers(config) - SPARE_REGISTERS - sums(config, rows)
    room -= (rows_of_a(config) - rows) // 2  # final sums of rows that the tile does not have
    if config.schedule.split_k > 1:
        room -= share_registers(config)
    if config.operands.a_scale_granularity is ScaleGranularity.BLOCK128:
        room -= scale_registers(config)
    return room


def is_paired(config: GroupedGemmConfig) -> bool:
    """
    Return whether registers suffice to hold the weights of two k-blocks, for kernels that gain by
    it.
    """
    rows = rows_of_a(config)
    needed = 2 * value_registers(config)
    if partials(config) == SOME_PARTIALS:
        needed += _FACTORS
    return _is_slow(partials(config), rows) and needed <= _room(config, rows)


def early_rows(config: GroupedGemmConfig, *, is_paired: bool) -> int:
    """
    Return the largest number of rows of a WGMMA for which registers suffice for both the scales and
    the sums that they scale.

    If scales are part of e4m3 values, the rows of a whole tile decide: when the rows that a tile
    has decided, full tiles took 2 % longer. Tall tiles have no registers for it.
    """
    if config.operands.a_scale_granularity is not ScaleGranularity.ROW or is_tall(config):
        return 0
    values = value_registers(config) * (2 if is_paired else 1)
    rows, found = rows_of_a(config), 0
    tried = narrowest(config) if partials(config) >= SOME_PARTIALS else rows
    while tried <= rows:
        if values + scale_registers(config) <= _room(config, tried):
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


def sums(config: GroupedGemmConfig, rows: int) -> int:
    """
    Return the accumulator registers of a thread, for partial and final sums of `rows` rows of a.
    """
    return (partials(config) * min(rows, part_rows(config)) + rows) // 2


def scale_box(config: GroupedGemmConfig) -> int:
    """
    Return the number of activation scales that one copy loads; 0 if there are no scales for parts
    of K.

    A ragged tile starts at any row, but the TMA unit faults where its first coordinate is not at
    whole 16 bytes, so that a box begins up to 3 rows ahead.
    """
    if config.operands.a_scale_granularity is not ScaleGranularity.BLOCK128:
        return 0
    return config.tile.m + (4 if config.layout is Layout.RAGGED else 0)
