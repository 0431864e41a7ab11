# SPDX-License-Identifier: Apache-2.0
"""
Warm load of one kernel: read the entry, check every digest, load the library, find its function.

Each repetition loads another kernel, because the system gives a library that is loaded already back
at once. All come from one store, as in a process that serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jitgen.autotune.measure.clock import compete_on_host
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.protocol import Row, temporary_cache
from jitgen.config import Arch, Layout
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import KernelConfig, Operands, Tile

BUDGET_MS = 0.5
_WARMUP = 3
CONFIGS = tuple(
    KernelConfig(
        layout=layout, operands=Operands(scale_granularity=scales), tile=Tile(m=m, n=64, k=128)
    )
    for layout, scales, m in itertools.product(Layout, FLOAT_SCALES, (16, 32))
)


def rows() -> Iterator[Row]:
    """Yield the time of one load."""
    from jitgen.cache import Store
    from jitgen.plans.prewarm import prewarm
    from jitgen.runtime.loader import KernelLoader

    with temporary_cache() as root:
        if not prewarm(CONFIGS, arch=Arch.CPU, store=Store.open(root)).ok:
            raise WrongResult("a kernel did not compile")
        loader, waiting = KernelLoader(Store.open(root)), iter(CONFIGS)
        (times,) = compete_on_host(
            [lambda: loader.get(next(waiting), Arch.CPU)],
            warmup=_WARMUP,
            repetitions=len(CONFIGS) - _WARMUP,
        )
    if {kernel.tier for kernel in loader.loaded()} != {"disk"}:
        raise WrongResult("a kernel did not come from disk")
    yield Row(
        suite="load",
        what="KernelLoader.get of a kernel on disk",
        value=times.median * 1e3,
        unit="ms",
        budget=BUDGET_MS,
        detail=times.detail(1e3, "ms"),
    )
