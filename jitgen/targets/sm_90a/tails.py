# SPDX-License-Identifier: Apache-2.0
"""The rules of kernels that multiply the last rows of a group with swapped operands."""

from __future__ import annotations

from jitgen.config.config import DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.protocol import refuse_unless

TAIL_M = 40
"""
Most rows of a block of 64 that are multiplied with swapped operands. With 48 a k-block took longer
than with all 64, on an H200: each row has a scale that a whole warpgroup reads.
"""

EXTRA_M = 16
"""Rows that the last tile of a group may have beyond `tile.m`: more do not fit in the registers."""


def tail_m(config: GroupedGemmConfig) -> int:
    """
    Return the most rows of a block that are multiplied with swapped operands; 0 in kernels that
    never swap operands.
    """
    return TAIL_M if config.schedule.swap_tail else 0


def check_tail(config: GroupedGemmConfig) -> None:
    """Check the conditions of `swap_tail`; other configs pass."""
    if not config.schedule.swap_tail:
        return
    tile, types = config.tile, config.operands
    refuse_unless(
        types.a_dtype is DType.E4M3 and types.scale_granularity is ScaleGranularity.BLOCK128,
        "E_SWAP_TAIL",
        f"swap_tail with {types.a_dtype} operands and {types.scale_granularity} scales: it is for "
        "e4m3 operands with block128 scales",
    )
    refuse_unless(
        types.out_dtype is not DType.F32,
        "E_SWAP_TAIL",
        "swap_tail with f32 results: matrices of 16 bits are transposed on the way to shared "
        "memory; allowed: bf16, f16",
    )
    refuse_unless(
        tile.m in {128, 192} and tile.n == 128,
        "E_SWAP_TAIL",
        f"swap_tail with a {tile.m}x{tile.n} tile: a warpgroup takes one block of 64 rows, and two "
        "of 64 columns with one scale; allowed: 128x128, 192x128",
    )
    refuse_unless(
        config.schedule.split_k == 1 and not config.epilogue.bias,
        "E_SWAP_TAIL",
        "swap_tail: sums of swapped operands lie in other threads than split_k and a bias expect "
        "them; it needs split_k 1 and no bias",
    )


def extra_m(config: GroupedGemmConfig) -> int:
    """
    Return the most rows that the last tile of a group has beyond `tile.m`; 0 without `extra_rows`.
    """
    return EXTRA_M if config.schedule.extra_rows else 0


def check_extra(config: GroupedGemmConfig) -> None:
    """Check the conditions of `extra_rows`; other configs pass."""
    if not config.schedule.extra_rows:
        return
    tile = config.tile
    refuse_unless(
        config.schedule.swap_tail,
        "E_EXTRA_ROWS",
        "extra_rows without swap_tail: they are multiplied with swapped operands, as the last rows "
        "of a block are; it needs swap_tail",
    )
    refuse_unless(
        tile.m == 192,
        "E_EXTRA_ROWS",
        f"extra_rows with a {tile.m}x{tile.n} tile: of three math warpgroups two take the extra "
        "rows besides their blocks; allowed: 192x128",
    )
    refuse_unless(
        config.cluster.m == 1,
        "E_EXTRA_ROWS",
        f"extra_rows with cluster {config.cluster.m}x{config.cluster.n}: tiles of a pair along M "
        "take turns in loading their rows of a, and extra rows have no turn; allowed: 1x1, 1x2",
    )
    refuse_unless(
        not config.schedule.early_b,
        "E_EXTRA_ROWS",
        "extra_rows with early_b: what is announced of a stage ahead of the previous kernel's end "
        "are the bytes of a usual tile; it needs early_b off",
    )
