# SPDX-License-Identifier: Apache-2.0
"""
Sizes of an SM of sm_100a and sm_103a, of the parts of kernels, and those that follow from a config,
legal or not.
"""

from __future__ import annotations

import math

from jitgen.config.config import SCALE_BLOCK, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig

SMEM_BYTES = 232_448
"""Shared memory that one CTA can have: 227 KiB of the SM's 228."""

TMEM_COLUMNS = 512
"""Columns of an SM's tensor memory, 128 lanes of 32 bits each."""

CTA_ROWS = 128
"""Rows of a tile that are one CTA's: the lanes of tensor memory, all of which are filled."""

UPDATE_WARPS = 8
"""Warps that read sums: each sees a quarter of the lanes, and takes half of the columns."""

ROW_BYTES = 128
"""Bytes of one row of an operand's stage: what its swizzle spans."""

MAX_STAGES = 10
"""More operand stages than this hide nothing more."""

MIN_STAGES = 3
"""Fewer do not hide the loads."""

SCALE_STAGES = 8
"""
Number of k-blocks whose activation scales may be loaded ahead: scales are needed longer than
operands.
"""

SCALE_CHUNK = 32
"""k-blocks whose weight scales are handed to the update warps at once."""

MAX_ENTRIES = 512
"""Entries of the table of tile counts in shared memory, as on sm_90a."""

PART_M = 32
"""Rows of a that one copy loads where a group does not fill its tile."""

ATOM_BYTES = 512
"""Bytes of an atom of scales: 128 rows or columns, 4 places along K."""

ATOM_COLUMNS = 4
"""Columns of tensor memory that an atom takes, each with the scales of 32 rows or columns."""

SHIFT_COLUMNS = 64
"""Columns of b that scales in tensor memory are shifted by, as NVIDIA's examples do."""

UNPACKED_K = 128
"""
Values of 4 bits that the TMA unit unpacks to bytes at once, for matrix instructions with an e4m3 a:
PTX ISA, "Tensors": rows, boxes and coordinates of b4x16_p64 are whole multiples of it.
"""

UNPACKED_ALIGNMENT = 32
"""Alignment of a matrix of 4-bit values that are unpacked, and of each of its rows, in bytes."""

VALUES = {ScaleGranularity.MX32: 32, ScaleGranularity.NV16: 16}
"""Values along K that share a scale."""

THREADS = 32 * (UPDATE_WARPS + 4)
"""Update warps, and a warpgroup of a multiply, a load, a plan and an idle warp."""

WIDE = 192
"""Columns from which on the totals of an update warp need more registers than an equal share."""

RING_SLOT_BYTES = 16
"""Bytes of the two mbarriers, full and free, of a slot of a ring buffer."""

TILE_INFO_BYTES = 32
"""Bytes in which a tile is described: first row, tile along N, group and two ends of rows."""

SWIZZLE_BYTES = 1024
"""Alignment of operands in shared memory, in bytes: the 128-byte swizzle repeats after so many."""


def align(size: int, to: int) -> int:
    """Return `size`, rounded up to a multiple of `to`."""
    return -(-size // to) * to


def is_block(config: GroupedGemmConfig) -> bool:
    """Return whether scales change within K and are applied to sums of 128."""
    return config.operands.scale_granularity is ScaleGranularity.BLOCK128


def has_atoms(config: GroupedGemmConfig) -> bool:
    """Return whether the tensor core applies the scales, which come in atoms."""
    return config.operands.scale_granularity in VALUES


def has_block_table(config: GroupedGemmConfig) -> bool:
    """
    Return whether a kernel has a table of blocks of scales beside that of tiles: a ragged kernel
    with tiles of 256 rows, because a block has 128.
    """
    return has_atoms(config) and config.layout is Layout.RAGGED and config.schedule.two_cta


def atoms(config: GroupedGemmConfig) -> int:
    """Return the number of atoms of scales along K of a stage, for each 128 rows or columns."""
    values = VALUES[config.operands.scale_granularity]
    return ROW_BYTES * 8 // config.operands.a_dtype.bits // (4 * values)


def scale_padding(config: GroupedGemmConfig, stages: int) -> int:
    """
    Return the unused bytes between the stages of scales of a and of b.

    The kernel's struct begins both, as it does tiles, at a multiple of SWIZZLE_BYTES: that is two
    atoms, and an odd number of them ends halfway.
    """
    if not has_atoms(config):
        return 0
    size = ATOM_BYTES * atoms(config) * stages
    return align(size, SWIZZLE_BYTES) - size


def scale_blocks(tile_n: int) -> int:
    """
    Return the largest number of blocks of 128 columns that a tile of b meets, wherever it starts.
    """
    return -(-(tile_n + SCALE_BLOCK - math.gcd(tile_n, SCALE_BLOCK)) // SCALE_BLOCK)


def scale_columns(config: GroupedGemmConfig) -> int:
    """Return the columns of tensor memory that scales take."""
    if not has_atoms(config):
        return 0
    return ATOM_COLUMNS * atoms(config) * (1 + scale_blocks(config.tile.n))


def num_ctas(config: GroupedGemmConfig) -> int:
    """Return the CTAs that multiply a tile together."""
    return 2 if config.schedule.two_cta else 1


def read_n(tile_n: int) -> int:
    """
    Return the columns that a warp reads from tensor memory at once: its half of a tile if that has
    at most 64, else 64 or 32 with one weight scale.
    """
    half = tile_n // 2
    if half <= 64:
        return half
    return 64 if half % 64 == 0 else 32


def scale_box(config: GroupedGemmConfig) -> int:
    """
    Return how many activation scales one copy loads for a CTA's rows.

    A ragged tile starts at any row, but the TMA unit faults where its first coordinate is not at
    whole 16 bytes, so that a box begins up to 3 rows ahead.
    """
    return CTA_ROWS + 4 if config.layout is Layout.RAGGED else CTA_ROWS


def epilogue_n(columns: int, out_dtype: DType) -> int:
    """Return the columns of one store box: as wide as a swizzle of 128, 64 or 32 bytes allows."""
    widths = (size * 8 // out_dtype.bits for size in (128, 64, 32))
    return next(width for width in widths if columns % width == 0)


def scale_values(tile_n: int) -> int:
    """Return the number of weight scales kept for a k-block."""
    return tile_n // math.gcd(tile_n, SCALE_BLOCK)
