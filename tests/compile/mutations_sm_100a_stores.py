# SPDX-License-Identifier: Apache-2.0
"""Stores, scales, clearing and registers of sm_100a."""

from __future__ import annotations

from tests.compile.mutations import drop, swap
from tests.compile.mutations_sm_100a import (
    FEW_ROWS,
    FULL_LAST,
    ONE,
    PAIR,
    WIDE,
    ptx,
    source,
)

STORES = (
    source(
        ONE,
        "no proxy fence between a tile and its store",
        "proxy",
        (
            '    cute.arch.fence_proxy("async.shared", space="cta")\n    cute.arch.sync_warp()\n',
            "    cute.arch.sync_warp()\n",
        ),
        names=("stage_block",),
    ),
    source(
        ONE,
        "a warp does not meet between a tile and its store",
        "race",
        (
            '    cute.arch.fence_proxy("async.shared", space="cta")\n    cute.arch.sync_warp()\n',
            '    cute.arch.fence_proxy("async.shared", space="cta")\n',
        ),
        names=("stage_block",),
    ),
    source(
        ONE,
        "lanes write while the one that stores still waits",
        "race",
        (
            "    cute.arch.cp_async_bulk_wait_group(0, read=True)\n    cute.arch.sync_warp()\n",
            "    cute.arch.cp_async_bulk_wait_group(0, read=True)\n",
        ),
        names=("store_block",),
    ),
    source(
        ONE,
        "a store reads what the next tile overwrites",
        "race",
        (
            "    cute.arch.cp_async_bulk_wait_group(0, read=True)\n    cute.arch.sync_warp()\n",
            "    cute.arch.sync_warp()\n",
        ),
        names=("store_block",),
    ),
    source(
        ONE,
        "stores are in no group",
        "race",
        ("    cute.arch.cp_async_bulk_commit_group()\n", ""),
        names=("store_block",),
    ),
    source(
        ONE,
        "the last store still reads at the end",
        "exit",
        (
            (
                "        plan, work = take_tile(plans, plan)\n"
                "    cute.arch.cp_async_bulk_wait_group(0, read=True)\n"
            ),
            "        plan, work = take_tile(plans, plan)\n",
        ),
    ),
    source(
        ONE,
        "rows of others are stored with the group's",
        "fault",
        ("rows = cutlass.min(work.live_end - row, 32)", "rows = 32"),
        names=("store_rows",),
    ),
    source(
        PAIR,
        "a block with rows of others is stored as a whole",
        "race",
        ("if row + 32 <= work.row_end:", "if row <= work.live_end:"),
        names=("store_block",),
    ),
    source(
        WIDE,
        "a row between a group's is stored with them",
        "wrong",
        ("        is_stored = is_stored & (store.groups[row + r] == work.group)\n", ""),
    ),
    source(
        ONE,
        "columns beyond the end are stored",
        "proxy",
        (
            "is_stored = first_column + column < num_columns",
            "is_stored = first_column + column < num_columns + TILE_N",
        ),
        names=("store_rows",),
    ),
    source(
        ONE,
        "scales of rows are not shifted to where their box starts",
        "wrong",
        ("        row += first_row(work) % 4  # see copies_of_scales()\n", ""),
    ),
    source(
        ONE,
        "a box of scales starts anywhere",
        "fault",
        ("row = first_row(work) // 4 * 4", "row = first_row(work)"),
        names=("load_tiles",),
    ),
    source(
        ONE,
        "a slot of scales is as long as a box",
        "fault",
        ("SCALE_PITCH = 160", "SCALE_PITCH = 132"),
        names=("load_tiles",),
    ),
    source(
        ONE,
        "scales of the next block of K",
        "wrong",
        (
            "scales.sBScale[column // SCALE_COLUMNS, k, scale.index]",
            "scales.sBScale[column // SCALE_COLUMNS, (k + 1) % SCALE_CHUNK, scale.index]",
        ),
    ),
    source(
        WIDE,
        "one weight scale for all columns",
        "wrong",
        ("scales.sBScale[column // SCALE_COLUMNS,", "scales.sBScale[0 * column,"),
    ),
    source(
        WIDE,
        "no column has the next weight scale",
        "wrong",
        ("next_scale if is_next else scale", "scale"),
    ),
    source(
        FULL_LAST,
        "scales are read beyond the last row",
        "fault",
        ("place = cutlass.min(row + i, last_row)", "place = row + i"),
        names=("hand_over_scales",),
    ),
    source(
        FEW_ROWS,
        "stages of a are not cleared",
        "uninitialised",
        ("    clear_a(sA)\n", ""),
        names=("multiply",),
    ),
    source(
        FEW_ROWS,
        "no proxy fence behind the clearing of a",
        "proxy",
        ('    cute.arch.fence_proxy("async.shared", space="cta")\n\n\n', "\n\n"),
        names=("clear_a",),
    ),
    source(
        PAIR,
        "the cluster does not meet after the barriers' initialisation",
        "start",
        ("    pipeline.pipeline_init_wait(cluster_shape_mn=(CLUSTER_SIZE, 1))\n", ""),
        names=("copy_b",),
    ),
    ptx(
        WIDE,
        "the update warps want more registers than there are",
        "deadlock",
        swap("setmaxnreg.inc.sync.aligned.u32 (#);", "240"),
    ),
    ptx(
        WIDE,
        "the other warps give no registers back",
        "deadlock",
        drop("(setmaxnreg.dec.sync.aligned.u32 #;)"),
    ),
)
