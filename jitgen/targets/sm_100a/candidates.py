# SPDX-License-Identifier: Apache-2.0
"""
The few configs that the selector may choose on B200 and B300: what prewarming compiles.

They come from the cost model on paper, not from measurements: a pair of CTAs halves what the SMs
read of b, and wide tiles what L2 has to fill (`jitgen.targets.sm_100a.cost`), so that large groups
take pairs, the wider the larger. Groups with few rows are bound by the weights that HBM delivers,
and take what has enough tiles for all SMs; there weights are streamed past L2.
"""

from __future__ import annotations

from jitgen.config import Layout, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.targets.sm_100a.sizes import ROW_BYTES

_STREAM = Schedule(raster=1, stream_b=True)
_SPLIT = Schedule(raster=1, stream_b=True, split_k=2)
_PAIR = Schedule(two_cta=True)
_PAIR_STREAM = Schedule(raster=1, stream_b=True, two_cta=True)

_PROMOTED = (
    (128, 64, Cluster(), 4, _STREAM),
    (128, 128, Cluster(), 4, _SPLIT),
    (128, 128, Cluster(), 4, _STREAM),
    (128, 128, Cluster(), 4, Schedule()),
    (256, 128, Cluster(m=2), 4, _PAIR_STREAM),
    (256, 128, Cluster(m=2), 4, _PAIR),
    (256, 192, Cluster(m=2), 2, _PAIR),
    (256, 256, Cluster(m=2), 2, _PAIR),
)
"""
Rows, columns, cluster, accumulator stages and schedule, where scales change along K (block128): the
more stages, the more of the promotion overlaps.
"""

_SUMMED = (
    (128, 64, Cluster(), 4, _STREAM),
    (128, 128, Cluster(), 3, _STREAM),
    (256, 128, Cluster(m=2), 3, _PAIR),
    (256, 192, Cluster(m=2), 2, _PAIR),
    (256, 256, Cluster(m=2), 1, _PAIR),
)
"""
Rows, columns, cluster, accumulator stages and schedule, where the tensor core sums all of K: stages
are tiles, beside the columns of scales.
"""


def candidates(layout: Layout, operands: Operands) -> tuple[GroupedGemmConfig, ...]:
    """Return the configs that may be chosen, legal or not."""
    is_promoted = operands.scale_granularity is ScaleGranularity.BLOCK128
    return tuple(
        GroupedGemmConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=rows, n=columns, k=ROW_BYTES * 8 // operands.a_dtype.bits),
            cluster=cluster,
            pipeline=Pipeline(num_acc_stage=stages),
            schedule=schedule,
        )
        for rows, columns, cluster, stages, schedule in (_PROMOTED if is_promoted else _SUMMED)
    )
