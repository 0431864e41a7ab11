# SPDX-License-Identifier: Apache-2.0
"""Tiles and stores of sm_120a: which rows and columns, and the memory in which they are turned."""

from __future__ import annotations

from tests.compile.mutations import swap
from tests.compile.mutations_sm_100a import ptx, source
from tests.compile.mutations_sm_120a import (
    ALPHA,
    BLOCKS,
    CONTIGUOUS,
    LOW,
    MIXED,
    PACKED,
    PADDED,
    WIDE,
)

STORES = (
    source(
        MIXED,
        "rows of the next group are stored",
        "fault",
        ("(work.row + row < work.live_end) & ", ""),
    ),
    source(
        MIXED,
        "columns beyond N are stored",
        "wrong",
        (" & (first_column + column < num_columns)", ""),
    ),
    source(
        PADDED,
        "rows of padding are stored",
        "wrong",
        ("is_stored & (group == work.group)", "is_stored"),
    ),
    source(
        MIXED,
        "warps share the memory in which they turn sums",
        "race",
        ("storage.out.data_ptr() + own.warp * (8 * OUT_ROW_BYTES)", "storage.out.data_ptr()"),
    ),
    source(
        MIXED,
        "warps have memory for half of their rows",
        "race",
        ("own.warp * (8 * OUT_ROW_BYTES)", "own.warp * (4 * OUT_ROW_BYTES)"),
    ),
    source(
        MIXED,
        "more rows are stored than a warp has turned",
        "race",
        ("            is_stored = is_stored & (r < 8)\n", "            pass\n"),
    ),
    source(
        WIDE,
        "half of the rows are not stored",
        "wrong",
        ("(8 * vectors + 31) // 32", "(8 * vectors + 31) // 64"),
    ),
    source(
        MIXED,
        "tokens are stored in the order of columns",
        "wrong",
        ("token_of(lane % 8) * OUT_ROW_BYTES", "lane % 8 * OUT_ROW_BYTES"),
    ),
    source(
        MIXED,
        "both matrices of a part go to the same place",
        "wrong",
        (" + lane // 8 % 2 * 16\n", "\n"),
    ),
    source(
        WIDE,
        "both parts of weights go to the same place",
        "wrong",
        ("[place + part_n * 32, words[0], words[1]]", "[place, words[0], words[1]]"),
    ),
    source(
        ALPHA,
        "float32 sums of both halves of 16 weights go to the same place",
        "wrong",
        ("lane // 4 + i // 2 * 8]", "lane // 4]"),
    ),
    source(
        ALPHA,
        "float32 sums of both tokens of a lane go to the same row",
        "wrong",
        ("token_of(lane % 4 * 2 + i % 2)", "token_of(lane % 4 * 2)"),
    ),
    source(
        WIDE,
        "all parts of tokens are stored where the first is",
        "wrong",
        ("own.row + part_m * 8)", "own.row)"),
    ),
    source(
        MIXED,
        "all warps store the first one's columns",
        "wrong",
        (
            "first_column = work.tile_n * TILE_N + own.column",
            "first_column = work.tile_n * TILE_N",
        ),
    ),
    source(
        MIXED,
        "rows are turned before those before have left",
        "convergence",
        ("        cute.arch.sync_warp()  # the rows before have left\n", ""),
    ),
    source(
        MIXED,
        "rows leave before all lanes have turned theirs",
        "race",
        (
            "        cute.arch.sync_warp()\n        copy_rows(",
            "        copy_rows(",
        ),
    ),
    ptx(
        LOW,
        "matrices are not transposed",
        "wrong",
        swap("stmatrix.sync.aligned.m8n8.x2(.trans).shared", ""),
    ),
)
"""Mistakes in how sums are stored."""

TILES = (
    source(
        PACKED,
        "tiles are counted for twice their rows",
        "wrong",
        ("first_tile, TILE_M)", "first_tile, 2 * TILE_M)"),
    ),
    source(
        BLOCKS,
        "blocks of scales are counted for half their rows",
        "wrong",
        ("first_block, 128)", "first_block, 64)"),
    ),
    source(
        BLOCKS,
        "the block of a tile is that of its group",
        "wrong",
        ("block=coord.block + tile_m * TILE_M // 128", "block=coord.block"),
    ),
    source(
        LOW,
        "a tile in two is left out",
        "wrong",
        (
            "begin=begin,\n        end=end,\n        step=step,",
            "begin=begin,\n        end=end,\n        step=2 * step,",
        ),
    ),
    source(
        LOW,
        "a tile is computed by two CTAs",
        "race",
        ("        begin=begin,\n", "        begin=cutlass.max(begin - 1, 0),\n"),
    ),
    source(
        CONTIGUOUS,
        "rows of the next tile tell a tile's group",
        "wrong",
        ("row + lane % GROUP_ROWS", "row + lane + 112"),
    ),
    source(
        CONTIGUOUS,
        "lanes beyond a tile's rows end it",
        "wrong",
        ("live = place + 1 if belongs", "live = place if belongs"),
    ),
)
"""Mistakes in the number and the places of tiles."""
