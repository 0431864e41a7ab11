# SPDX-License-Identifier: Apache-2.0
"""The kernels that the GPU tests run; prewarm them on any machine: python -m tests.gpu.configs."""

from __future__ import annotations

from jitgen.model import Cluster, KernelConfig, Layout, Operands, ScaleGranularity, Schedule, Tile

SHAPES = [
    (64, 16, 1, 1),
    (64, 64, 1, 2),
    (64, 192, 2, 1),
    (128, 128, 1, 1),
    (128, 128, 2, 1),
    (128, 160, 1, 2),
    (128, 192, 2, 1),
    (256, 128, 1, 2),
]

SPLIT_SHAPES = [(64, 32, 2), (64, 64, 2), (64, 128, 4), (128, 64, 2)]

CONFIGS = [
    KernelConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=m, n=n, k=128),
        cluster=Cluster(m=cluster_m, n=cluster_n),
        schedule=Schedule(raster=4 if m == 256 else 8, stream_b=m == 64),
    )
    for layout in Layout
    for scales in ScaleGranularity
    for m, n, cluster_m, cluster_n in SHAPES
] + [
    KernelConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=m, n=n, k=128),
        schedule=Schedule(raster=1, stream_b=True, split_k=split_k),
    )
    for layout in Layout
    for scales in ScaleGranularity
    for m, n, split_k in SPLIT_SHAPES
]

if __name__ == "__main__":
    import jitgen

    report = jitgen.prewarm(CONFIGS, arch="sm_90a")
    print(report)
