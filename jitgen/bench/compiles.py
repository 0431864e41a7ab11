# SPDX-License-Identifier: Apache-2.0
"""
Suites of compiles and loads: warm loads from disk, the cost of a compile beyond the compiler, and
kernels a minute. Each function is a suite.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from jitgen.autotune.measure.clock import compete_on_host
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row, row_of, temporary_cache
from jitgen.config import Arch, Layout, ScaleGranularity
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Tile
from jitgen.runtime.session import current

LOAD_MS, COMPILE_MS, LINK_MS, PER_MINUTE = 0.5, 20.0, 15.0, 120.0
"""
Budgets: milliseconds of a warm load, of a compile without the compiler and of a link; and kernels
compiled per minute.
"""

_WARMUP = 3
_TILES = ((16, 64), (8, 64), (32, 64), (16, 32), (8, 32), (32, 32))
_JOBS = 2

LOADED = tuple(
    GroupedGemmConfig(
        layout=layout, operands=Operands(scale_granularity=scales), tile=Tile(m=m, n=64, k=128)
    )
    for layout, scales, m in itertools.product(Layout, FLOAT_SCALES, (16, 32))
)

PREWARMED = tuple(
    GroupedGemmConfig(
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


def load() -> Iterator[Row]:
    """
    Yield the time of a warm load of one kernel: read the entry, check every digest, load the
    library, and find its function.

    Each repetition loads another kernel, because loading a library a second time costs next to
    nothing. All kernels come from one store, as in a process that serves a model.
    """
    from jitgen.cache import Store
    from jitgen.plans.prewarm import prewarm as prewarmed
    from jitgen.runtime.loader import KernelLoader

    with temporary_cache() as root:
        if not prewarmed(LOADED, arch=Arch.CPU, store=Store.open(root)).ok:
            raise WrongResult("a kernel did not compile")
        loader, waiting = KernelLoader(Store.open(root)), iter(LOADED)
        (times,) = compete_on_host(
            [lambda: loader.get(next(waiting), Arch.CPU)],
            warmup=_WARMUP,
            repetitions=len(LOADED) - _WARMUP,
        )
    if {kernel.tier for kernel in loader.loaded()} != {"disk"}:
        raise WrongResult("a kernel did not come from disk")
    yield row_of("load", "KernelLoader.get of a kernel on disk", times, "ms", LOAD_MS)


def cold() -> Iterator[Row]:
    """
    Yield the time that a compile takes besides the compiler itself: rendering, key, lock and
    publishing; and the time of linking. The first compile, which imports the compiler, is not
    counted.
    """
    from jitgen.runtime.spec import spec_of
    from jitgen.runtime.tiers import build

    overhead, linking = [], []
    with temporary_cache():
        tiers = current.get().loader.tiers
        for m, n in _TILES:
            config = GroupedGemmConfig(
                layout=Layout.RAGGED, operands=Operands(), tile=Tile(m=m, n=n, k=128)
            )
            start = time.perf_counter()
            entry, _ = build(tiers, spec_of(config, Arch.CPU))
            seconds = time.perf_counter() - start
            overhead.append(seconds - entry.meta.compile_s - entry.meta.link_s)
            linking.append(entry.meta.link_s)
    for what, found, budget in (
        ("render, key, lock and publish", overhead[1:], COMPILE_MS),
        ("linking", linking[1:], LINK_MS),
    ):
        times = Times(seconds=tuple(found))
        yield row_of("cold", f"{what}, on top of the compile", times, "ms", budget)


def prewarm() -> Iterator[Row]:
    """
    Yield the number of kernels compiled per minute: 24 sm_90a configs, an empty cache and two
    compile processes. The start of these processes is part of the time.
    """
    from jitgen.plans.prewarm import prewarm as prewarmed

    with temporary_cache():
        report = prewarmed(PREWARMED, arch=Arch.SM_90A, jobs=_JOBS)
    if not report.ok:
        errors = [row.error for row in report.rows if row.error]
        raise WrongResult(f"{len(errors)} of {len(PREWARMED)} kernels did not compile: {errors[0]}")
    seconds = sorted(row.seconds for row in report.rows)
    yield Row(
        suite="prewarm",
        what=f"{len(PREWARMED)} sm_90a kernels by {report.jobs} processes",
        value=len(PREWARMED) / report.wall_s * 60,
        unit="a minute",
        budget=PER_MINUTE,
        is_rate=True,
        detail=f"{report.wall_s:.1f} s; {seconds[0]:.2f}..{seconds[-1]:.2f} s a kernel",
    )
