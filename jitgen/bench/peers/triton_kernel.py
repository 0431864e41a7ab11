# SPDX-License-Identifier: Apache-2.0
"""A grouped FP8 GEMM with block scales in Triton, like those of fused MoE layers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK_K = 128
"""Values of K that share a scale."""


# Counts of tiles are not specialised on: each would be compiled anew for 1 and multiples of 16.
@triton.jit(do_not_specialize=["num_tiles", "a_scale_step"])
def _grouped_gemm(
    a,
    b,
    a_scale,
    b_scale,
    out,
    tiles,
    num_tiles,
    n,
    k,
    a_scale_step,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
):
    """
    Compute one tile; programs go through RASTER tiles of rows before the next tile of columns.
    """
    place = tl.program_id(0)
    columns = tl.cdiv(n, BLOCK_N)
    raster = place // (RASTER * columns)
    height = tl.minimum(num_tiles - raster * RASTER, RASTER)
    inside = place % (RASTER * columns)
    tile_m = raster * RASTER + inside % height
    tile_n = inside // height

    group = tl.load(tiles + tile_m * 4).to(tl.int64)
    first = tl.load(tiles + tile_m * 4 + 1).to(tl.int64)
    count = tl.load(tiles + tile_m * 4 + 2)
    first_scale = tl.load(tiles + tile_m * 4 + 3).to(tl.int64)
    row = tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    is_row = row < count
    is_column = column < n

    a_at = a + (first + row)[:, None] * k + depth[None, :]
    b_at = b + group * n * k + column.to(tl.int64)[None, :] * k + depth[:, None]
    a_scale_at = a_scale + first_scale + row
    blocks = tl.cdiv(k, BLOCK_K)
    b_scale_at = b_scale + (group * tl.cdiv(n, BLOCK_N) + tile_n) * blocks
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(blocks):
        x = tl.load(a_at, mask=is_row[:, None], other=0.0)
        y = tl.load(b_at, mask=is_column[None, :], other=0.0)
        scale = tl.load(a_scale_at, mask=is_row, other=0.0) * tl.load(b_scale_at + block)
        total += tl.dot(x, y) * scale[:, None]
        a_at += BLOCK_K
        b_at += BLOCK_K
        a_scale_at += a_scale_step
    out_at = out + (first + row)[:, None] * n + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def launch(
    operands: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    tiles: Tensor,
    a_scale_step: int,
    *,
    block_m: int,
    raster: int,
    num_warps: int,
    num_stages: int,
) -> None:
    """
    Enqueue the product.

    Args:
        operands: a, b, a_scale, b_scale and out. K is a multiple of 128.
        tiles: (T, 4) int32: group, first row of a and out, rows, and offset of the first row's
            scale, of each tile of at most `block_m` rows.
        a_scale_step: Elements from one block of K to the next in a_scale.
        block_m: Rows of a tile.
        raster: Tiles of rows that share a tile of columns while it is in L2.
        num_warps: Warps of a program.
        num_stages: Blocks of K in flight.
    """
    b = operands[1]
    _, n, k = b.shape
    grid = (len(tiles) * triton.cdiv(n, BLOCK_K),)
    _grouped_gemm[grid](
        *operands,
        tiles,
        len(tiles),
        n,
        k,
        a_scale_step,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_K,
        BLOCK_K=BLOCK_K,
        RASTER=raster,
        num_warps=num_warps,
        num_stages=num_stages,
    )
