# SPDX-License-Identifier: Apache-2.0
"""
What a warm `grouped_gemm(..., out=out)` costs the host above the bare tvm-ffi call.

Both sides launch the same kernel on rows that belong to no group, so that the kernel itself does
next to nothing and the difference is not lost in it. Runs are short and compared in pairs, so that
another process that takes the core away disturbs few of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch

import jitgen
from jitgen.bench.protocol import Row
from jitgen.config import Arch, Layout
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.runtime.session import current
from jitgen.targets.default import default_arch
from jitgen.tuning.measure.clock import compete_on_host, has_gpu
from jitgen.tuning.measure.workload import Workload

BUDGET_US = 2.0
_CALLS = 100


def rows() -> Iterator[Row]:
    """Yield the difference, and the two times that it is made of."""
    is_gpu = has_gpu()
    arch = default_arch() if is_gpu else Arch.CPU
    problem = Problem(layout=Layout.RAGGED, groups=2, m=32, n=128, k=128)
    workload = Workload.random(problem, device="cuda" if is_gpu else "cpu")
    workload.call()
    workload.check("the kernel of the dispatch suite")
    function = current.get().get_kernel(jitgen.select(problem, arch).config, arch).function
    a, b, a_scale, b_scale = workload.a, workload.b, workload.a_scale, workload.b_scale
    offs, out = torch.zeros_like(workload.groups), workload.out
    tail = (torch.cuda.get_device_properties(a.device).multi_processor_count,) if is_gpu else ()
    gemm = jitgen.grouped_gemm

    def bare() -> None:
        function(a, b, a_scale, b_scale, offs, out, *tail)

    def full() -> None:
        gemm(a, b, a_scale, b_scale, offs=offs, out=out)

    wait = torch.cuda.synchronize if is_gpu else None
    with torch.no_grad():  # as inference runs: else the call has to ask each tensor
        full_times, bare_times = compete_on_host(
            [full, bare], calls=_CALLS, repetitions=201, warmup=20, between=wait
        )
    pairs = zip(full_times.seconds, bare_times.seconds, strict=True)
    above = statistics.median(slow - fast for slow, fast in pairs) * 1e6
    yield Row(
        suite="dispatch",
        what="grouped_gemm(..., out=out) above the bare call",
        value=above,
        unit="us",
        budget=BUDGET_US,
        detail=f"median difference of {len(full_times.seconds)} pairs of {_CALLS} calls, no_grad",
    )
    for what, times in (("the whole call", full_times), ("the bare tvm-ffi call", bare_times)):
        yield Row(
            suite="dispatch",
            what=what,
            value=times.median * 1e6,
            unit="us",
            detail=times.detail(1e6, "us"),
        )
