# SPDX-License-Identifier: Apache-2.0
"""Mistakes in rows of a tile beyond those of its blocks: their tiles, loads, sums and stores."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite

_SYNC = "    sync_warpgroup(math_warpgroup)\n    vectors"


def _extra(name: str, old: str, new: str, kind: str, *names: str) -> Mutation:
    edit = rewrite((old, new))
    return Mutation(
        name=name, program="extra rows", edit=edit, kind=kind, names=names, of_source=True
    )


EXTRA = (
    _extra(
        "a tile ahead of the last one has extra rows",
        "live_end = end if tile_m == coord.tiles_m - 1 else row + TILE_M",
        "live_end = end",
        "deadlock",
    ),
    _extra(
        "the bytes of extra rows are not announced",
        "usual.stage_bytes + (EXTRA_M * ROW_BYTES if has_extra else 0)",
        "usual.stage_bytes",
        "deadlock",
    ),
    _extra(
        "the first rows of a tile are loaded as its extra rows",
        "from_row(a.extra.gmem, work.row + TILE_M)",
        "from_row(a.extra.gmem, work.row)",
        "wrong",
    ),
    _extra(
        "eight extra rows are multiplied where there are more",
        "            if (num_extra > rows - 8) & (num_extra <= rows):",
        "            if (num_extra > 0) & (rows == 8):",
        "wrong",
    ),
    _extra(
        "both warpgroups take the same columns of extra rows",
        "weights = tCrB[None, math_warpgroup, None, None]",
        "weights = tCrB[None, 0, None, None]",
        "wrong",
    ),
    _extra(
        "extra rows are scaled as the first ones of the tile",
        "first_row = TILE_M + thread % 4 * 2",
        "first_row = thread % 4 * 2",
        "wrong",
    ),
    _extra(
        "stages of extra rows lie as close as eight of them",
        "stride=EXTRA_M * TILE_K)",
        "stride=8 * TILE_K)",
        "wrong",
    ),
    _extra(
        "extra rows are copied before all of them are there",
        _SYNC,
        "    vectors",
        "race",
    ),
    _extra(
        "extra rows are stored where the tile begins",
        "from_row(store.out, work.row + TILE_M)",
        "from_row(store.out, work.row)",
        "wrong",
    ),
)
"""Mistakes in a kernel whose tiles have 192 rows, and up to 16 more."""
