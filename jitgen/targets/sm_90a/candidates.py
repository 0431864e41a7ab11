# SPDX-License-Identifier: Apache-2.0
"""
The few configs that the selector may choose: what prewarming compiles, so it stays short.

The entries for sm_90a are what is left of some 17 a layout when those are dropped that measured
problems miss least: some 200 of each layout (an H200, FP8 operands with block scales;
docs/hopper.md). Five facts shape them. A cluster (2, 1) that shares b wins where a group has
several tiles of rows: two CTAs that read the same weights on their own drift apart, until L2 no
longer holds what the first has read. A tile of 256 rows needs no cluster for that, and one of 192
rows none where groups have a little more than 128. Where one group leaves SMs without a tile, two
CTAs take half of K each. And weights that are read once are best streamed past L2.
"""

from __future__ import annotations

from jitgen.config import DType, Layout
from jitgen.ops.grouped_gemm.config import Cluster, KernelConfig, Operands, Schedule, Tile
from jitgen.targets.sm_90a.rules import ROW_BYTES

_STREAM = Schedule(raster=1, stream_b=True)
_SPLIT = Schedule(raster=1, stream_b=True, split_k=2)

_CONTIGUOUS = (
    (64, 64, Cluster(), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (128, 112, Cluster(n=2), _STREAM),
    (128, 128, Cluster(), _SPLIT),
    (128, 128, Cluster(n=2), _STREAM),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_RAGGED = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(), _SPLIT),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (192, 128, Cluster(), Schedule()),
    (192, 128, Cluster(n=2), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_MASKED = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(), _SPLIT),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 160, Cluster(m=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (192, 128, Cluster(), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_FP8 = {
    Layout.CONTIGUOUS: _CONTIGUOUS,
    Layout.RAGGED: _RAGGED,
    Layout.MASKED: _MASKED,
}
_BF16 = (
    # Without promotion accumulators leave room for 256 columns. Of 14 that were timed forward and
    # backward (docs/gradients.md) one of the last two is the best or within 3 % of it, always.
    (64, 64, Cluster(), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 256, Cluster(m=2), Schedule()),
)


def candidates(layout: Layout, operands: Operands) -> tuple[KernelConfig, ...]:
    """Return the configs that may be chosen, legal or not."""
    shapes = _FP8[layout] if operands.a_dtype is DType.E4M3 else _BF16
    depth = ROW_BYTES * 8 // operands.a_dtype.bits
    return tuple(
        KernelConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=rows, n=columns, k=depth),
            cluster=cluster,
            schedule=schedule,
        )
        for rows, columns, cluster, schedule in shapes
    )
