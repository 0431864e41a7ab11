# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests run on Blackwell's GPUs for desks besides what may be chosen."""

from __future__ import annotations

from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Schedule, Tile

_MX32, _NV16, _BLOCK128 = (
    ScaleGranularity.MX32,
    ScaleGranularity.NV16,
    ScaleGranularity.BLOCK128,
)

FORMATS = [
    (DType.E4M3, DType.E2M1, _MX32),
    (DType.E4M3, DType.E4M3, _MX32),
    (DType.E2M1, DType.E2M1, _MX32),
    (DType.E2M1, DType.E2M1, _NV16),
    (DType.E4M3, DType.E4M3, _BLOCK128),
    (DType.BF16, DType.E2M1, _MX32),
]

SHAPES = [
    (8, 64, 128),
    (8, 128, 128),
    (16, 32, 128),
    (32, 128, 128),
    (64, 64, 128),
    (128, 128, 128),
]
"""Tokens, weights and depth of tiles, for every layout."""

HEIGHTS = range(8, 129, 8)
"""Tokens of tiles that ragged groups may have."""

DEEP = [(8, 64, 512), (8, 128, 256), (16, 128, 256), (32, 128, 256)]
"""
Tokens, weights and depth of tiles, where instructions apply the scales of weights of four bits.
"""

ACCUMULATOR_BITS = {DType.BF16: 16, DType.E4M3: 18, DType.E2M1: 18}
"""
Bits of accumulators that `verify` assumes, by type of a: public measurements of such GPUs find
about 21 bits beside the largest product of a step. Of bf16, which takes twice as many steps, as on
Hopper.
"""


def _config(
    layout: Layout,
    types: tuple[DType, DType, ScaleGranularity],
    shape: tuple[int, int, int],
    out_dtype: DType = DType.BF16,
    schedule: Schedule | None = None,
) -> GroupedGemmConfig:
    a_dtype, b_dtype, scales = types
    m, n, k = shape
    return GroupedGemmConfig(
        layout=layout,
        operands=Operands(
            a_dtype=a_dtype,
            b_dtype=b_dtype,
            out_dtype=out_dtype,
            scale_granularity=scales,
            a_scale_granularity=ScaleGranularity.NONE if a_dtype is DType.BF16 else None,
        ),
        tile=Tile(m=m, n=n, k=k),
        schedule=schedule or Schedule(stream_b=m == 8),
    )


OF_OTHER_TYPES = [
    _config(layout, types, (32, 64, 128), out_dtype)
    for layout in Layout
    for types in FORMATS
    for out_dtype in (DType.F16, DType.F32)
] + [
    _config(layout, types, shape)
    for layout in Layout
    for types in FORMATS
    if types[1] is DType.E2M1
    for shape in DEEP
]

SAFE = [
    _config(layout, types, (64, 128, 128), schedule=Schedule(safe_selectors=True))
    for layout in Layout
    for types in FORMATS
    if types[2] is not _BLOCK128 and types[0] is not DType.BF16
]
"""With lanes that were seen to work: where these are right and others not, lanes are to blame."""

CONFIGS = [
    *(_config(layout, types, shape) for layout in Layout for types in FORMATS for shape in SHAPES),
    *(_config(Layout.RAGGED, types, (m, 64, 128)) for types in FORMATS for m in HEIGHTS),
    *SAFE,
    *OF_OTHER_TYPES,
]
