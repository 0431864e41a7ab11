# SPDX-License-Identifier: Apache-2.0
"""Parts of a tile of sm_90a: warpgroups, blocks of 64 rows, and the boxes of the TMA unit."""

from __future__ import annotations

import math
from typing import NamedTuple

from jitgen.config.config import SCALE_BLOCK, DType, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.targets.sm_90a.tails import extra_m

SHORT_M = 8
"""
Rows of a short tile, for which there are separate boxes of a and of scales. For each k-block the
TMA unit needs 2 ns for a row of a, and 0.5 ns for a scale, that is beyond the end of the tensor; in
decoding most of a usual box may be beyond it.
"""


def align(size: int, to: int) -> int:
    """Return `size`, rounded up to a multiple of `to`."""
    return -(-size // to) * to


WARPGROUPS = {64: 1, 128: 2, 192: 3, 256: 2}
"""
Warpgroups that multiply, by the rows of a tile: with two or more, one promotes while others
multiply. The two of a tile of 256 rows compute two blocks of 64 each, because with four warpgroups
a thread would only have 96 registers.
"""


class Registers(NamedTuple):
    """
    Registers of a thread (setmaxnreg); a CTA has at most the 65,536 that it is launched with.

    Attributes:
        load: Registers of a thread of the loading warpgroup.
        math: Registers of a thread of a math warpgroup.
        promoted: Registers of `math` that partial and final sums may take before ptxas spills.
        plain: Registers of `math` that final sums may take where nothing is promoted.
    """

    load: int
    math: int
    promoted: int
    plain: int


REGISTERS = {
    1: Registers(load=40, math=248, promoted=192, plain=208),
    2: Registers(load=40, math=232, promoted=192, plain=208),
    3: Registers(load=32, math=160, promoted=128, plain=128),
}
"""
Registers of a thread, by the number of math warpgroups. With 208 plain accumulators shared memory
ends, too.
"""


def math_warpgroups(tile_m: int) -> int:
    """Return the warpgroups that multiply."""
    return WARPGROUPS[tile_m]


def m_blocks(tile_m: int) -> int:
    """Return the blocks of 64 rows that each math warpgroup takes."""
    return tile_m // (64 * math_warpgroups(tile_m))


def part_m(config: GroupedGemmConfig) -> int:
    """
    Return the rows of a that one copy loads if a group does not fill its tile; 0 if tiles are
    always loaded whole.

    Groups in decoding have a few rows, but 64 would be loaded; otherwise a block of 64 is the unit
    that a warpgroup can skip. Contiguous groups fill all blocks of 128 rows but their last, and
    checking this for each k-block costs 2 to 4 % of a call whose blocks are full. So only kernels
    that stream weights load parts: they serve groups of one block, half of which is often padding.
    """
    if config.layout is Layout.CONTIGUOUS:
        has_halves = config.tile.m == GROUP_ALIGNMENT and config.cluster.m == 1
        return 64 if has_halves and config.schedule.stream_b else 0
    return 16 if config.tile.m == 64 else 64


def scale_box(config: GroupedGemmConfig) -> int:
    """
    Return how many activation scales one copy loads: those of a block of 64 rows of each math
    warpgroup, and of extra rows.

    A ragged tile starts at any row, but the TMA unit faults (illegal instruction) where its first
    coordinate is not at whole 16 bytes, so that a box begins up to 3 rows ahead.
    """
    return box_of_scales(config, 64 * math_warpgroups(config.tile.m) + extra_m(config))


def box_of_scales(config: GroupedGemmConfig, rows: int) -> int:
    """Return how many activation scales one copy loads for `rows` rows of a tile."""
    return rows + 4 if config.layout is Layout.RAGGED else rows


def out_n(config: GroupedGemmConfig) -> int:
    """Return the columns that one CTA stores: those of a tile, or its share of them."""
    return config.tile.n // config.schedule.split_k


def epilogue_n(out_n: int, out_dtype: DType) -> int:
    """Return the columns of one store box: as wide as a swizzle of 128, 64 or 32 bytes allows."""
    widths = (size * 8 // out_dtype.bits for size in (128, 64, 32))
    return next(width for width in widths if out_n % width == 0)


def has_list(config: GroupedGemmConfig) -> bool:
    """
    Return whether a contiguous kernel lists the tiles that have rows, and computes no others.

    Every block of 128 rows has rows of a group, but many smaller tiles are padding.
    """
    is_part = config.layout is Layout.CONTIGUOUS and config.tile.m < GROUP_ALIGNMENT
    return is_part and config.cluster.m == 1


def short_m(config: GroupedGemmConfig) -> int:
    """
    Return the rows of a short tile, which has separate boxes; 0 if the config has no short tiles.
    """
    has_table = config.layout is not Layout.CONTIGUOUS
    return SHORT_M if has_table and config.tile.m == 64 and config.cluster.size == 1 else 0


MOST_SMS = 132
"""Most SMs of a chip with sm_90a."""


def lane_tiles(config: GroupedGemmConfig) -> int:
    """
    Return the tiles per lane of a scheduler warp that assigns the tiles of a wave; 0 if CTAs take
    tiles in their order.

    Tiles of one block of 64 rows all take about as long, and the rows of contiguous groups are not
    counted.
    """
    is_counted = config.layout is not Layout.CONTIGUOUS and config.schedule.split_k == 1
    if not is_counted or config.tile.m == 64:
        return 0
    return -(-MOST_SMS // config.cluster.size // 32)


def short_scale_box(config: GroupedGemmConfig) -> int:
    """
    Return the number of activation scales of a short tile that one copy loads; 0 if there are no
    such tiles.
    """
    rows = short_m(config)
    return box_of_scales(config, rows) if rows else 0


def scale_columns(tile_n: int) -> int:
    """Return how many columns of a tile share a weight scale, wherever the tile starts."""
    return math.gcd(tile_n, SCALE_BLOCK)


def scale_values(tile_n: int) -> int:
    """
    Return the number of weight scales kept for a k-block: 1, or a multiple of 4, which is read 16
    bytes at a time.
    """
    count = tile_n // scale_columns(tile_n)
    return 1 if count == 1 else align(count, 4)
