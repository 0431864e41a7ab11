# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests run on Hopper besides what may be chosen."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config import Arch, DType, Layout
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    Operands,
    Schedule,
    Tile,
)
from jitgen.targets.sm_90a.fp4 import OPERANDS
from tests.candidates import candidates

SHAPES = [
    (64, 16, 1, 1),
    (64, 64, 1, 2),
    (64, 192, 2, 1),
    (128, 128, 1, 1),
    (128, 128, 2, 1),
    (128, 160, 1, 2),
    (128, 192, 2, 1),
    (192, 96, 2, 1),
    (192, 128, 1, 1),
    (256, 128, 1, 2),
]
"""Tile rows and columns, cluster; contiguous rows have no tile of 192."""

ACCUMULATOR_BITS = {DType.E4M3: 12, DType.E4M3X2: 12, DType.BF16: 16, DType.F16: 16}
"""
Bits of accumulators that `verify` assumes, by type of a. Hopper's FP8 tensor cores keep about 13
bits beside the largest product of a step. Sums of bf16 and f16 stay there over all of K, and each
step of 16 may round: this allows for the 537 steps of the longest test, and one product left out of
its sums would still show.
"""

SPLIT_SHAPES = [(64, 32, 2), (64, 64, 2), (64, 128, 4), (128, 64, 2)]

OTHER_TYPES = [
    ("e4m3", "block128", "f16", (128, 192, 2, 1)),
    ("e4m3", "block128", "f32", (128, 128, 2, 1)),
    ("e4m3", "row", "f32", (64, 16, 1, 2)),
    ("e4m3", "tensor", "f32", (256, 48, 1, 1)),
    ("bf16", "tensor", "bf16", (64, 64, 1, 2)),
    ("bf16", "tensor", "bf16", (128, 128, 2, 1)),
    ("bf16", "tensor", "bf16", (128, 256, 2, 1)),
    ("bf16", "tensor", "bf16", (192, 192, 1, 2)),
    ("bf16", "tensor", "bf16", (256, 128, 1, 2)),
    ("bf16", "row", "f16", (64, 16, 1, 1)),
    ("bf16", "row", "f32", (128, 192, 1, 2)),
    ("f16", "tensor", "f16", (64, 64, 1, 2)),
    ("f16", "tensor", "f16", (128, 256, 2, 1)),
    ("f16", "row", "f32", (128, 192, 1, 2)),
]
"""Types of a and b, scales, type of the output, tile rows and columns, cluster."""

OF_FP8_TO_BF16 = [
    GroupedGemmConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=m, n=n, k=128),
        cluster=Cluster(m=cluster_m, n=cluster_n),
        schedule=Schedule(raster=4 if m == 256 else 8, stream_b=m == 64),
    )
    for layout in Layout
    for scales in FLOAT_SCALES
    for m, n, cluster_m, cluster_n in SHAPES
    if m != 192 or layout is not Layout.CONTIGUOUS
] + [
    GroupedGemmConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=m, n=n, k=128),
        schedule=Schedule(raster=1, stream_b=True, split_k=split_k),
    )
    for layout in Layout
    for scales in FLOAT_SCALES
    for m, n, split_k in SPLIT_SHAPES
]

OF_OTHER_TYPES = [
    GroupedGemmConfig(
        layout=layout,
        operands=Operands(
            a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, scale_granularity=scales
        ),
        tile=Tile(m=m, n=n, k=1024 // DType(dtype).bits),
        cluster=Cluster(m=cluster_m, n=cluster_n),
    )
    for layout in Layout
    for dtype, scales, out_dtype, (m, n, cluster_m, cluster_n) in OTHER_TYPES
    if m != 192 or layout is not Layout.CONTIGUOUS
]

OF_N_MAJOR = [
    GroupedGemmConfig(
        layout=layout,
        operands=Operands(
            a_dtype=dtype,
            b_dtype=dtype,
            out_dtype=out_dtype,
            scale_granularity=scales,
            b_layout="nmajor",
        ),
        tile=Tile(m=m, n=n, k=64),
        cluster=Cluster(m=cluster_m, n=cluster_n),
    )
    for layout in Layout
    for dtype, scales, out_dtype, (m, n, cluster_m, cluster_n) in (
        ("bf16", "tensor", "bf16", (64, 64, 1, 2)),
        ("bf16", "tensor", "bf16", (128, 192, 2, 1)),
        ("bf16", "tensor", "bf16", (128, 256, 2, 1)),
        ("bf16", "row", "f32", (128, 96, 1, 2)),
        ("bf16", "tensor", "f16", (256, 80, 1, 1)),
        ("f16", "tensor", "f16", (128, 192, 2, 1)),
    )
]
"""Kernels of N-major b, with columns in swizzles of 128, 64 and 32 bytes."""

OF_EARLY = [
    GroupedGemmConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=64, n=n, k=128),
        schedule=Schedule(raster=1, stream_b=True, early_b=True),
    )
    for layout in (Layout.RAGGED, Layout.MASKED)
    for scales in FLOAT_SCALES
    for n in (64, 128)
]
"""
Kernels that chains ask for: b and groups of a test are there before the last kernel in front
begins.
"""

_BIASED = Epilogue(bias=True)

OF_BIASED = [
    replace(config, epilogue=_BIASED)
    for number, config in enumerate((*OF_FP8_TO_BF16, *OF_OTHER_TYPES, *OF_N_MAJOR, *OF_EARLY))
    if number % 7 == 0
]
"""
Every seventh of the kernels above, with a bias: each layout, kind of scales, parts of K, early b.
"""

PREPACKED = [
    config if types.out_dtype is DType.BF16 else replace(config, epilogue=_BIASED)
    for layout in Layout
    for types in OPERANDS
    for number, config in enumerate(candidates(Arch.SM_90A, layout, types))
    if types.out_dtype is DType.BF16 or number == 0
]
"""
Kernels that may be chosen for prepacked weights; of results that are not bf16 one each, with a
bias.
"""

CONFIGS = [*OF_FP8_TO_BF16, *OF_OTHER_TYPES, *OF_N_MAJOR, *OF_EARLY, *OF_BIASED]
