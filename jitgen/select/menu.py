# SPDX-License-Identifier: Apache-2.0
"""
The few configs that the selector may choose: what prewarming compiles, so it stays short.

The entries for sm_90a are what is left of 15 a layout when those are dropped, one after the other,
that 145 measured problems miss least (an H200, FP8 operands with block scales; docs/hopper.md).
Four facts shape them. A cluster (2, 1) that shares b wins where a group has several tiles of rows:
two CTAs that read the same weights on their own drift apart, until L2 no longer holds what the
first has read. A tile of 256 rows needs no cluster for that. Where one group leaves SMs without a
tile, two CTAs take half of K each. And weights that are read once are best streamed past L2.
"""

from __future__ import annotations

from functools import lru_cache

from jitgen.model import (
    Arch,
    Cluster,
    DType,
    KernelConfig,
    Layout,
    Operands,
    Schedule,
    Tile,
    check,
)
from jitgen.model.dtypes import SCALE_BLOCK

GROUP_ALIGNMENT = 128
"""Rows at whose multiples the groups of the contiguous layout start."""

_STREAM = Schedule(raster=1, stream_b=True)
_SPLIT = Schedule(raster=1, stream_b=True, split_k=2)

_SM90_CONTIGUOUS = (
    (64, 64, Cluster(), _STREAM),
    (64, 128, Cluster(n=2), _STREAM),
    (128, 96, Cluster(n=2), _STREAM),
    (128, 128, Cluster(), _SPLIT),
    (128, 128, Cluster(n=2), _STREAM),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_SM90_RAGGED = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(), _SPLIT),
    (64, 128, Cluster(), _STREAM),
    (128, 96, Cluster(n=2), _STREAM),
    (128, 128, Cluster(m=2), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_SM90_MASKED = (
    (64, 64, Cluster(), _STREAM),
    (64, 64, Cluster(), _SPLIT),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(m=2), _STREAM),
    (128, 128, Cluster(m=2), Schedule()),
    (128, 160, Cluster(m=2), Schedule()),
    (128, 192, Cluster(m=2), Schedule()),
    (256, 128, Cluster(), Schedule(raster=4)),
)
_SM90 = {
    Layout.CONTIGUOUS: _SM90_CONTIGUOUS,
    Layout.RAGGED: _SM90_RAGGED,
    Layout.MASKED: _SM90_MASKED,
}
_SM90_BF16 = (
    # Without promotion accumulators leave room for 256 columns. Not tuned: what the FP8 winners and
    # the size of a stage suggest.
    (64, 64, Cluster(), _STREAM),
    (64, 128, Cluster(), _STREAM),
    (128, 128, Cluster(n=2), Schedule()),
    (128, 256, Cluster(m=2), Schedule()),
)
# Of equally good ones the first is taken: on a CPU the one that needs the least memory.
_CPU = tuple((rows, 128, Cluster(), Schedule()) for rows in (8, 16, 32, 64))


def _shapes(
    arch: Arch, layout: Layout, operands: Operands
) -> tuple[tuple[int, int, Cluster, Schedule], ...]:
    """Return tile rows, tile columns, cluster and schedule of each config."""
    if arch is Arch.CPU:
        return _CPU
    if operands.a_dtype is not DType.E4M3:
        return _SM90_BF16
    return _SM90[layout]


def _depth(arch: Arch, operands: Operands) -> int:
    """Return the depth of a tile: on a GPU 128 bytes, as wide as the swizzle of shared memory."""
    return 8 * SCALE_BLOCK // operands.a_dtype.bits if arch.is_gpu else SCALE_BLOCK


@lru_cache(maxsize=256)
def menu(arch: Arch, layout: Layout, operands: Operands) -> tuple[KernelConfig, ...]:
    """Return the configs that may be chosen; none where `arch` has no kernel for `operands`."""
    configs = (
        KernelConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=rows, n=columns, k=_depth(arch, operands)),
            cluster=cluster,
            schedule=schedule,
        )
        for rows, columns, cluster, schedule in _shapes(arch, layout, operands)
    )
    return tuple(config for config in configs if check(config, arch))
