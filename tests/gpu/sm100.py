# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests run on Blackwell besides what may be chosen."""

from __future__ import annotations

from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)

SHAPES = [
    (128, 32, 1, 1, 4),
    (128, 64, 1, 2, 1),
    (128, 64, 1, 1, 4),
    (128, 128, 1, 1, 1),
    (128, 128, 2, 1, 2),
    (128, 192, 1, 2, 2),
    (256, 64, 2, 1, 3),
    (256, 128, 2, 1, 4),
    (256, 192, 2, 1, 2),
    (256, 256, 2, 1, 2),
]
"""Tile rows and columns, cluster, accumulator stages; 256 rows are a pair's."""

SPLIT_SHAPES = [(64, 4, 2), (128, 1, 2), (128, 4, 4)]
"""Tile columns, accumulator stages, CTAs that share K; block128 scales alone."""

SCALED_SHAPES = [
    (128, 64, 1, 1, 4),
    (128, 128, 1, 1, 3),
    (256, 128, 2, 1, 3),
    (256, 192, 2, 1, 2),
    (256, 256, 2, 1, 1),
]
"""Shapes as in `SHAPES`, where scales take columns of tensor memory, too."""

SCALED_TYPES = [
    ("e4m3", "e4m3", "mx32"),
    ("e4m3", "e2m1", "mx32"),
    ("e2m1", "e2m1", "mx32"),
    ("e2m1", "e2m1", "nv16"),
]
"""Types of a and of b, and scales."""

OTHER_TYPES = [
    ("e4m3", "block128", "f16", (256, 192, 2, 1, 2)),
    ("e4m3", "block128", "f32", (128, 128, 1, 1, 2)),
    ("e4m3", "row", "f32", (128, 64, 1, 1, 1)),
    ("e2m1", "nv16", "f32", (128, 128, 1, 1, 2)),
]
"""Types of a and b, scales, type of the output, and a shape."""

ACCUMULATOR_BITS = {DType.E4M3: 12, DType.E2M1: 12}
"""
Bits of accumulators that `verify` assumes, by type of a: as on Hopper, because those of Blackwell's
tensor cores are not known.
"""


def _config(
    layout: Layout, types: Operands, shape: tuple[int, int, int, int, int]
) -> GroupedGemmConfig:
    m, n, cluster_m, cluster_n, stages = shape
    return GroupedGemmConfig(
        layout=layout,
        operands=types,
        tile=Tile(m=m, n=n, k=1024 // types.a_dtype.bits),
        cluster=Cluster(m=cluster_m, n=cluster_n),
        pipeline=Pipeline(num_acc_stage=stages),
        schedule=Schedule(two_cta=m == 256, stream_b=n == 64),
    )


def _types(dtype: str, scales: str, out_dtype: str = "bf16", b_dtype: str = "") -> Operands:
    return Operands(
        a_dtype=DType(dtype),
        b_dtype=DType(b_dtype or dtype),
        out_dtype=DType(out_dtype),
        scale_granularity=ScaleGranularity(scales),
    )


OF_OTHER_TYPES = [
    _config(layout, _types(dtype, scales, out_dtype), shape)
    for layout in Layout
    for dtype, scales, out_dtype, shape in OTHER_TYPES
] + [
    _config(layout, _types(dtype, scales, b_dtype=b_dtype), shape)
    for layout in Layout
    for dtype, b_dtype, scales in SCALED_TYPES
    for shape in SCALED_SHAPES
]

OF_SPLIT_K = [
    GroupedGemmConfig(
        layout=layout,
        tile=Tile(m=128, n=n, k=128),
        pipeline=Pipeline(num_acc_stage=stages),
        schedule=Schedule(raster=1, stream_b=True, split_k=split_k),
    )
    for layout in Layout
    for n, stages, split_k in SPLIT_SHAPES
]

CONFIGS = [
    *(
        _config(layout, _types("e4m3", scales), shape)
        for layout in Layout
        for scales in FLOAT_SCALES
        for shape in SHAPES
    ),
    *(
        # groups of other layouts may leave two of four CTAs without a tile
        _config(Layout.CONTIGUOUS, _types("e4m3", scales), (128, 128, 2, 2, 4))
        for scales in FLOAT_SCALES
    ),
    *OF_SPLIT_K,
    *OF_OTHER_TYPES,
]
