# SPDX-License-Identifier: Apache-2.0
"""Kernels a minute: 24 sm_90a configs, an empty cache, two compile processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.protocol import Row, temporary_cache
from jitgen.config import Arch, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, KernelConfig, Operands, Tile

BUDGET_PER_MINUTE = 120.0
JOBS = 2

CONFIGS = tuple(
    KernelConfig(
        layout=layout,
        operands=Operands(scale_granularity=scales),
        tile=Tile(m=m, n=n, k=128),
        cluster=Cluster(m=m // 64, n=1) if m == 128 else Cluster(),
    )
    for layout, scales, (m, n) in itertools.product(
        Layout,
        (ScaleGranularity.BLOCK128, ScaleGranularity.ROW),
        ((64, 64), (64, 128), (128, 128), (128, 192)),
    )
)


def rows() -> Iterator[Row]:
    """Yield the rate, the start of the processes included."""
    from jitgen.plans.prewarm import prewarm

    with temporary_cache():
        report = prewarm(CONFIGS, arch=Arch.SM_90A, jobs=JOBS)
    if not report.ok:
        errors = [row.error for row in report.rows if row.error]
        raise WrongResult(f"{len(errors)} of {len(CONFIGS)} kernels did not compile: {errors[0]}")
    seconds = sorted(row.seconds for row in report.rows)
    yield Row(
        suite="prewarm",
        what=f"{len(CONFIGS)} sm_90a kernels by {report.jobs} processes",
        value=len(CONFIGS) / report.wall_s * 60,
        unit="a minute",
        budget=BUDGET_PER_MINUTE,
        is_rate=True,
        detail=f"{report.wall_s:.1f} s; {seconds[0]:.2f}..{seconds[-1]:.2f} s a kernel",
    )
