# SPDX-License-Identifier: Apache-2.0
"""What a compile costs beyond the compiler: rendering, the key, the lock, linking, publishing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from jitgen.bench.protocol import Row, temporary_cache
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import KernelConfig, Operands, Tile
from jitgen.runtime.session import current

BUDGET_MS = 20.0
LINK_BUDGET_MS = 15.0
_TILES = ((16, 64), (8, 64), (32, 64), (16, 32), (8, 32), (32, 32))


def rows() -> Iterator[Row]:
    """Yield the overhead without linking, and linking; the first compile, an import, is not in."""
    from jitgen.runtime.spec import spec_of
    from jitgen.runtime.tiers import build

    overhead, linking = [], []
    with temporary_cache():
        tiers = current.get().loader.tiers
        for rows_, columns in _TILES:
            config = KernelConfig(
                layout=Layout.RAGGED, operands=Operands(), tile=Tile(m=rows_, n=columns, k=128)
            )
            start = time.perf_counter()
            entry, _ = build(tiers, spec_of(config, Arch.CPU))
            seconds = time.perf_counter() - start
            overhead.append((seconds - entry.meta.compile_s - entry.meta.link_s) * 1e3)
            linking.append(entry.meta.link_s * 1e3)
    figures = (
        ("render, key, lock and publish", overhead[1:], BUDGET_MS),
        ("linking", linking[1:], LINK_BUDGET_MS),
    )
    for what, found, budget in figures:
        yield Row(
            suite="cold",
            what=f"{what}, on top of the compile",
            value=statistics.median(found),
            unit="ms",
            budget=budget,
            detail=f"{min(found):.3g}..{max(found):.3g} ms in {len(found)} compiles",
        )
