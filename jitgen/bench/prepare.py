# SPDX-License-Identifier: Apache-2.0
"""
What it takes to prepare MXFP4 weights for Hopper when they are loaded: seconds, and memory at most.

The matrices are the gate and up projections of gpt-oss: all 128 experts on a GPU, two on a CPU in a
fresh process. Preparation goes group by group, so that time grows with the experts and memory
beyond the result does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import torch

from jitgen.autotune.measure.clock import has_gpu
from jitgen.bench.protocol import Row, python
from jitgen.config.config import BLayout
from jitgen.formats.prepared import prepare_mxfp4

EXPERTS = 128
N, K = 5760, 2880
_CPU_EXPERTS = 2
_MB = 1e6

LAYOUTS = tuple(layout for layout in BLayout if layout.is_prepared)

_SCRIPT = """\
import json, resource, sys, time
from pathlib import Path
import torch

from jitgen.formats.prepared import prepare_mxfp4

layout, experts, n, k = sys.argv[1], *map(int, sys.argv[2:])
packed = torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8)
scale = torch.randint(115, 124, (experts, n, k // 32), dtype=torch.uint8)
prepare_mxfp4(packed[:1, :64], scale[:1, :64], layout=layout)
pages = int(Path("/proc/self/statm").read_text().split()[1])
before = pages * resource.getpagesize()
start = time.perf_counter()
found = prepare_mxfp4(packed, scale, layout=layout)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak": peak - before - found.nbytes, "held": found.nbytes}))
"""


def rows() -> Iterator[Row]:
    """Yield time and memory of every layout, on the CPU and, if there is one, on the GPU."""
    for layout in LAYOUTS:
        sizes = map(str, (_CPU_EXPERTS, N, K))
        found = json.loads(python(_SCRIPT, layout, *sizes))
        seconds = found["seconds"] / _CPU_EXPERTS * EXPERTS
        words = f"{EXPERTS} experts would take {seconds:.0f} s; {torch.get_num_threads()} threads"
        yield from _rows(layout, _CPU_EXPERTS, "CPU", found, words)
    if has_gpu():
        for layout in LAYOUTS:
            yield from _rows(layout, EXPERTS, "GPU", _on_gpu(layout), "")


def _on_gpu(layout: BLayout) -> dict[str, float]:
    """Return seconds, and bytes beyond operands and result at the peak and of the result."""
    sizes, bits = (EXPERTS, N), torch.uint8
    packed = torch.randint(0, 256, (*sizes, K // 2), dtype=bits, device="cuda")
    scale = torch.randint(115, 124, (*sizes, K // 32), dtype=bits, device="cuda")
    prepare_mxfp4(packed[:1], scale[:1], layout=layout)  # loads torch's kernels
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    found = prepare_mxfp4(packed, scale, layout=layout)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() - before - found.nbytes
    return {"seconds": seconds, "peak": peak, "held": found.nbytes}


def _rows(
    layout: BLayout, experts: int, where: str, found: dict[str, float], detail: str
) -> Iterator[Row]:
    what = f"{experts} experts N{N} K{K} as {layout}, {where}"
    yield Row(suite="prepare", what=what, value=found["seconds"], unit="s", detail=detail)
    yield Row(
        suite="prepare",
        what=f"{what}: memory beyond operands and result",
        value=found["peak"] / _MB,
        unit="MB",
        detail=f"the result takes {found['held'] / _MB:.0f} MB",
    )
