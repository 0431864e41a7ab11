# SPDX-License-Identifier: Apache-2.0
"""
The few configs that the selector may choose: what prewarming compiles, so it stays short.

The entries for sm_90a are a selection from some 30 for each layout: those were dropped without
which measured problems lose least: FP8 operands with block scales, 344 problems on an H200 and 274
on an H100 (docs/selection-measured.md). The best of these takes 0.8 and 0.6 % longer than the best
of all 30. Five facts shape them. Since tiles are dealt by their rows, those that share a in a
cluster (1, 2), or nothing, win on an H200, where contiguous tiles of 192 columns that share b in a
cluster (2, 1) win on an H100. A tile of 256 rows reads weights half as often, and one of 192 rows
reads them once where groups have a little more than 128. Columns that divide N fill the last wave:
so there are 112 and 160. Where one group leaves SMs without a tile, two CTAs take half of K each.
And weights that are read once are best streamed past L2.
"""

from __future__ import annotations

from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.targets.sm_90a.rules import ROW_BYTES

_STREAM = Schedule(raster=1, stream_b=True)
_SPLIT = Schedule(raster=1, stream_b=True, split_k=2)
_STRIPS = Schedule(raster=4)
_TAIL = Schedule(swap_tail=True)
_EXTRA = Schedule(swap_tail=True, extra_rows=True)

_CONTIGUOUS = (
    (128, 112, Cluster(n=2), _STREAM),
    (128, 128, Cluster(), _STREAM),
    (128, 128, Cluster(), _SPLIT),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 160, Cluster(n=2), Schedule()),
    (128, 192, Cluster(), Schedule()),
    (128, 192, Cluster(n=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), _STRIPS),
    (256, 128, Cluster(n=2), _STRIPS),
    (256, 128, Cluster(n=2), Schedule()),
)
"""
Candidates for contiguous rows. Two differ in the height of their strips along M alone: see
`jitgen.targets.sm_90a.cost.LONG_ROWS`.
"""

_OWN_TILES = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(), _SPLIT),
    (64, 112, Cluster(), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 128, Cluster(n=2), _TAIL),
    (128, 160, Cluster(), Schedule()),
    (128, 192, Cluster(), Schedule()),
    (192, 128, Cluster(), _STREAM),
    (192, 128, Cluster(n=2), Schedule()),
    (192, 128, Cluster(n=2), _EXTRA),
    (256, 128, Cluster(n=2), _STRIPS),
)
"""
Candidates for layouts in which every group has tiles of its own. Those that swap operands for the
last rows of groups came later, beside those that do not, and tiles of 192 rows that also take extra
rows replaced those that swap alone: see docs/hopper.md.
"""

_FP8 = {
    Layout.CONTIGUOUS: _CONTIGUOUS,
    Layout.RAGGED: _OWN_TILES,
    Layout.MASKED: _OWN_TILES,
}
_BF16_CONTIGUOUS = (
    (64, 64, Cluster(), _STREAM),
    (128, 128, Cluster(), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (128, 256, Cluster(), Schedule()),
    (128, 256, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), _STRIPS),
)
_BF16_OWN_TILES = (
    (64, 64, Cluster(), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 192, Cluster(), Schedule()),
    (128, 256, Cluster(m=2), Schedule()),
    (192, 128, Cluster(), Schedule()),
    (192, 192, Cluster(n=2), Schedule()),
)
"""
Without promotion accumulators leave room for 256 columns. What is left of 20, as above, over 115
problems of an H200; 128x256 for long products of even groups (docs/gradients.md).
"""
_BF16 = {
    Layout.CONTIGUOUS: _BF16_CONTIGUOUS,
    Layout.RAGGED: _BF16_OWN_TILES,
    Layout.MASKED: _BF16_OWN_TILES,
}


def candidates(layout: Layout, operands: Operands) -> tuple[GroupedGemmConfig, ...]:
    """Return the configs that may be chosen, legal or not."""
    shapes = (_FP8 if operands.a_dtype is DType.E4M3 else _BF16)[layout]
    depth = ROW_BYTES * 8 // operands.a_dtype.bits
    return tuple(
        GroupedGemmConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=rows, n=columns, k=depth),
            cluster=cluster,
            schedule=schedule,
        )
        for rows, columns, cluster, schedule in shapes
    )
