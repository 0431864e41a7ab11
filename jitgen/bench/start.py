# SPDX-License-Identifier: Apache-2.0
"""
A serving process's start: from after ``import torch`` to the first right result, warm cache.

Every repetition is a fresh process. It must get there without the compiler and without Jinja. The
garbage that importing torch leaves is collected before the clock starts: its collection takes as
long as all the rest, and falls to whoever allocates next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row, python, temporary_cache

BUDGET_MS = 45.0
_PROCESSES = 9

PROBLEM = """\
import gc, json, sys, time
import torch

generator = torch.Generator().manual_seed(0)
m, n, k, groups = 64, 128, 256, 4
a = torch.randint(-3, 4, (m, k), generator=generator).to(torch.float8_e4m3fn)
b = torch.randint(-3, 4, (groups, n, k), generator=generator).to(torch.float8_e4m3fn)
a_scale = torch.ones(k // 128, m).T
b_scale = torch.ones(groups, n // 128, k // 128)
offs = torch.arange(m // groups, m + 1, m // groups, dtype=torch.int32)
"""
"""What a script begins with that makes one small call, whose exact answer it knows."""

_SCRIPT = (
    PROBLEM
    + """\
before = set(sys.modules)
gc.collect()

start = time.perf_counter()
import jitgen

out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
seconds = time.perf_counter() - start

loaded = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
rows = [a[g * 16 : g * 16 + 16].float() @ b[g].float().T for g in range(groups)]
print(json.dumps({
    "seconds": seconds,
    "is_right": bool((out == torch.cat(rows).to(torch.bfloat16)).all()),
    "loaded": loaded,
}))
"""
)


def rows() -> Iterator[Row]:
    """Yield the time to the first result."""
    with temporary_cache() as root:
        environment = {"JITGEN_CACHE_DIR": str(root), "JITGEN_ARCH": "cpu"}
        python(_SCRIPT, environment=environment)  # compiles the kernel
        environment["JITGEN_ON_MISS"] = "error"
        found = [json.loads(python(_SCRIPT, environment=environment)) for _ in range(_PROCESSES)]
    for result in found:
        if not result["is_right"]:
            raise WrongResult("a fresh process computed a wrong result")
        if forbidden := {"cutlass", "jinja2"} & set(result["loaded"]):
            raise WrongResult(f"a warm start imported {', '.join(sorted(forbidden))}")
    times = Times(seconds=tuple(result["seconds"] for result in found))
    yield Row(
        suite="start",
        what="import jitgen to the first right result",
        value=times.median * 1e3,
        unit="ms",
        budget=BUDGET_MS,
        detail=times.detail(1e3, "ms"),
    )
