# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how the last rows of a group are multiplied with swapped operands, and stored."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite

_MULTIPLY = "multiply_tail((start, go_on), tCrB, tCrA, acc, load.index)\n"
_RELEASE = "            operands.pipeline.consumer_release(load)\n"
_WAIT = "    cute.arch.cp_async_bulk_wait_group(0, read=True)  # of an earlier block\n"
_STAGE = "    stage_tail(store.smem, total, first_box, thread, rows)\n"
_SYNC = "    sync_warpgroup(math_warpgroup)\n"


def _tails(name: str, old: str, new: str, kind: str, *names: str) -> Mutation:
    edit = rewrite((old, new))
    return Mutation(name=name, program="tails", edit=edit, kind=kind, names=names, of_source=True)


TAILS = (
    _tails(
        "a tail of whole eights is no warpgroup's",
        "(num_rows > rows - 8) & (num_rows <= rows)",
        "(num_rows > rows - 8) & (num_rows < rows)",
        "deadlock",
    ),
    _tails(
        "a tail is computed as a block as well",
        "if num_rows > TAIL_M:",
        "if num_rows >= TAIL_M:",
        "deadlock",
    ),
    _tails(
        "a tail is taken for one of eight rows less",
        "store, work, rows\n",
        "store, work, max(rows - 8, 8)\n",
        "wrong",
    ),
    _tails(
        "the tail of another warpgroup is multiplied",
        "sA.iterator + math_warpgroup * (64 * TILE_K)",
        "sA.iterator",
        "wrong",
    ),
    _tails(
        "a tail is scaled as that of another warpgroup",
        "first_row = math_warpgroup * 64 + cute.arch.lane_idx() % 4 * 2",
        "first_row = cute.arch.lane_idx() % 4 * 2",
        "wrong",
    ),
    _tails(
        "a tail is scaled from the start of the box of scales",
        "    first_row += work.row % 4  # see copies_of_scales()\n",
        "",
        "wrong",
    ),
    _tails(
        "two rows of a tail change their scales",
        "factors[j][v] * acc[v, i, j, block]",
        "factors[j][i] * acc[v, i, j, block]",
        "wrong",
    ),
    _tails(
        "each WGMMA of a tail overwrites the one before",
        "cute.gemm(mmas[min(k, 1)], acc, weights, rows, acc)",
        "cute.gemm(mmas[0], acc, weights, rows, acc)",
        "wrong",
    ),
    _tails(
        "a tail is promoted before it is multiplied",
        "acc, weights, rows, acc)\n    warpgroup.commit_group()\n    warpgroup.wait_group(0)\n",
        "acc, weights, rows, acc)\n    warpgroup.commit_group()\n",
        "race",
        "wgmma",
    ),
    _tails(
        "a stage is given back before its tail is multiplied",
        f"            {_MULTIPLY}{_RELEASE}",
        f"{_RELEASE}            {_MULTIPLY}",
        "race",
    ),
    _tails(
        "a stage with a tail is not given back",
        f"{_MULTIPLY}{_RELEASE}",
        _MULTIPLY,
        "deadlock",
    ),
    _tails(
        "scales of weights are not given back after a tail",
        "        give_back(scales.pipeline, scale)\n        scale.advance()\n    store_tail(",
        "        scale.advance()\n    store_tail(",
        "deadlock",
    ),
    _tails(
        "a tail is written where a block is still being stored",
        f"{_WAIT}{_SYNC}",
        _SYNC,
        "race",
        "cp.async.bulk.tensor",
    ),
    _tails(
        "one thread waits for a block's store, the others write a tail at once",
        f"{_WAIT}{_SYNC}",
        _WAIT,
        "race",
    ),
    _tails(
        "rows of a tail are copied before all of it is there",
        f"{_STAGE}{_SYNC}",
        _STAGE,
        "race",
    ),
    _tails(
        "rows and columns of a tail change places",
        "rounded[v + 2 * i]",
        "rounded[i + 2 * v]",
        "wrong",
    ),
    _tails(
        "the second half of the weights lies over the first",
        "sOut_swapped[None, None, first_box + block]",
        "sOut_swapped[None, None, first_box]",
        "wrong",
    ),
    _tails(
        "a tail is stored at the first rows of its tile",
        "store_rows(store, first_box, work.row + math_warpgroup * 64, work, thread)",
        "store_rows(store, first_box, work.row, work, thread)",
        "wrong",
    ),
)
"""Mistakes in a kernel with a block of 64 rows for each of two warpgroups."""
