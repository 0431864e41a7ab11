# SPDX-License-Identifier: Apache-2.0
"""
Warm load of one kernel: read the entry, check every digest, load the library, find its function.

Each repetition loads another copy of the cache, because the system gives a library that is loaded
already back at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from jitgen.bench.protocol import Row, Times, compete, temporary_cache
from jitgen.model import Arch, KernelConfig, Layout, Operands, Tile

BUDGET_MS = 0.5
_COPIES = 40
CONFIG = KernelConfig(layout=Layout.RAGGED, operands=Operands(), tile=Tile(m=16, n=64, k=128))


def rows() -> Iterator[Row]:
    """Yield the time of one load."""
    from jitgen.cache import Store
    from jitgen.runtime.registry import Registry

    with temporary_cache() as root:
        original = root / "0"
        Registry(Store.open(original)).get(CONFIG, Arch.CPU)
        copies = [root / str(number + 1) for number in range(_COPIES)]
        for copy in copies:
            shutil.copytree(original, copy)
        registries = iter([Registry(Store.open(copy)) for copy in copies])
        (times,) = compete(
            [lambda: next(registries).get(CONFIG, Arch.CPU)], warmup=4, repetitions=_COPIES - 4
        )
    yield _row(times)


def _row(times: Times) -> Row:
    return Row(
        suite="load",
        what="Registry.get of a kernel on disk",
        value=times.median * 1e3,
        unit="ms",
        budget=BUDGET_MS,
        detail=times.detail(1e3, "ms"),
    )
