# SPDX-License-Identifier: Apache-2.0
"""
Sizes of an SM of sm_120a and sm_121a, of the parts of kernels, and those that follow from a config,
legal or not.
"""

from __future__ import annotations

from jitgen.config.config import SCALE_BLOCK, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig

SMEM_BYTES = 101_376
"""Shared memory that one CTA can have: 99 KiB of the SM's 100."""

TOKEN_PART = 8
"""Rows of a, the tokens, of one matrix instruction: its n side."""

WEIGHT_PART = 16
"""Rows of b, the weights, of one matrix instruction: its m side."""

MATH_WARPS = 8
"""Most warps that multiply: with one that loads, three of them share a quarter of the SM."""

WIDE_M = 64
"""Rows from which on two warps share the weights: each then reads half of a, which is larger."""

MAX_STAGES = 8
"""More operand stages than this hide nothing more."""

MIN_STAGES = 2
"""With a single operand stage, nothing loads while warps multiply."""

MAX_ENTRIES = 512
"""Entries of the table of tile counts in shared memory, as on sm_90a."""

VALUES = {ScaleGranularity.MX32: 32, ScaleGranularity.NV16: 16}
"""Values along K that share a scale."""

ATOM_LINES = 32
"""Lines of 16 bytes of an atom of scales: each has the four scales of four rows, 32 apart."""

LINE_BYTES = 16

WORD_SCALES = 4
"""Scales along K in an atom: a word, which an instruction takes from a register."""

QUAD, SEEN_LANES = 4, 2
"""
Lanes of a quad that an instruction can be told to take the scales of tokens from (thread-id-b of
mma.sync), and those with which public probes of hardware agree: 0 and 1. Nothing shows the others.
"""

RING_SLOT_BYTES = 16
"""Bytes of the two mbarriers, full and free, of a slot of a ring buffer."""

SWIZZLE_BYTES = 1024
"""Alignment of operands in shared memory, in bytes: the 128-byte swizzle repeats after so many."""

BANK_BYTES = 16
"""Rows of the staging area are so much longer than their values: no two share all banks."""


def align(size: int, to: int) -> int:
    """Return `size`, rounded up to a multiple of `to`."""
    return -(-size // to) * to


def is_block(config: GroupedGemmConfig) -> bool:
    """Return whether scales are applied to sums of 128, by promotion."""
    return config.operands.scale_granularity is ScaleGranularity.BLOCK128


def is_unscaled(config: GroupedGemmConfig) -> bool:
    """Return whether tokens have no scales: bf16, which weights are decoded to."""
    return config.operands.a_scale_granularity is ScaleGranularity.NONE


def has_block_table(config: GroupedGemmConfig) -> bool:
    """
    Return whether a kernel has a table of blocks of tokens' scales beside that of tiles: a ragged
    kernel whose tiles do not have the height of a block.
    """
    has_blocks = config.layout is Layout.RAGGED and config.tile.m != SCALE_BLOCK
    return has_blocks and not is_block(config) and not is_unscaled(config)


def warps(config: GroupedGemmConfig) -> tuple[int, int]:
    """
    Return the math warps along M and along N.

    Four along M scale fewest sums by promotion; where instructions scale, two parts of weights are
    the most whose scales fit a word.
    """
    tile = config.tile
    warps_m = 2 if tile.m >= WIDE_M and tile.m % (2 * TOKEN_PART) == 0 else 1
    if is_block(config) and tile.m == SCALE_BLOCK:
        warps_m = 4
    return warps_m, min(tile.n // WEIGHT_PART, MATH_WARPS // warps_m)


def row_bytes(dtype: DType, tile_k: int) -> int:
    """Return the bytes of an operand's row in a stage; e2m1 stays packed."""
    return tile_k * dtype.bits // 8


def scale_lines(tile_m: int) -> int:
    """Return the lines of an atom that the scales of a tile of a are in."""
    return tile_m if ATOM_LINES % tile_m == 0 else ATOM_LINES


def scale_blocks(tile_m: int) -> int:
    """
    Return the largest number of atoms along M that a tile of a meets, which begins at any multiple
    of its rows.
    """
    return 1 if SCALE_BLOCK % tile_m == 0 else 2


def scale_words(config: GroupedGemmConfig) -> int:
    """Return the number of atoms of scales along K of a stage."""
    return config.tile.k // (WORD_SCALES * VALUES[config.operands.scale_granularity])


def token_lanes(config: GroupedGemmConfig) -> int:
    """Return the number of lanes of a quad from which instructions take the scales of tokens."""
    return SEEN_LANES if config.schedule.safe_selectors else QUAD


def scale_box(config: GroupedGemmConfig) -> int:
    """
    Return how many float32 scales one copy loads for a tile of a.

    A ragged tile starts at any row, but the TMA unit faults where its first coordinate is not at
    whole 16 bytes, so that a box begins up to 3 rows ahead.
    """
    return config.tile.m + 4 if config.layout is Layout.RAGGED else config.tile.m


def scale_bytes(config: GroupedGemmConfig) -> int:
    """Return the bytes of shared memory that the scales of a stage take."""
    if is_block(config):
        return align(scale_box(config), 32) * 4
    of_tokens = scale_blocks(config.tile.m) * scale_lines(config.tile.m)
    lines = ATOM_LINES if is_unscaled(config) else of_tokens + ATOM_LINES
    return scale_words(config) * lines * LINE_BYTES


def stage_bytes(config: GroupedGemmConfig) -> int:
    """Return the bytes of shared memory that a stage takes, barriers included."""
    tile, types = config.tile, config.operands
    operands = tile.m * row_bytes(types.a_dtype, tile.k) + tile.n * row_bytes(types.b_dtype, tile.k)
    return operands + scale_bytes(config) + RING_SLOT_BYTES


def fixed_bytes(config: GroupedGemmConfig) -> int:
    """Return the bytes of shared memory that all else takes: results on their way, and tables."""
    warps_m, warps_n = warps(config)
    row = config.tile.n // warps_n * config.operands.out_dtype.bits // 8 + BANK_BYTES
    staging = warps_m * warps_n * TOKEN_PART * row
    if config.layout is Layout.CONTIGUOUS:
        return staging
    return staging + 4 * (MAX_ENTRIES + 1) * (1 + has_block_table(config))
