# SPDX-License-Identifier: Apache-2.0
"""
Device time of GPU kernels with a cold L2, on the expert layers of DeepSeek-V3.

Where DeepGEMM is installed it runs the same operands in turn; its time is a row of its own, never a
budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jitgen
from jitgen.autotune.measure.clock import compete, require_gpu
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.cases import MATRICES
from jitgen.bench.peers import PEER, find_all
from jitgen.bench.protocol import Row
from jitgen.config import Layout
from jitgen.config.grouped_gemm import Problem
from jitgen.config.layouts import GROUP_ALIGNMENT

CASES = tuple(
    Problem(layout=Layout.RAGGED, groups=groups, m=groups * rows, n=n, k=k)
    for groups, rows in ((8, 128), (8, 1024), (8, 4096), (32, 64), (32, 512))
    for n, k in MATRICES
)


def rows() -> Iterator[Row]:
    """
    Yield the rate of every case, and the peer's where there is one.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
        WrongResult: A kernel computes something wrong.
    """
    require_gpu("the gemm suite")
    for problem in CASES:
        workload = Workload.random(problem)
        workload.call()
        workload.check(f"the kernel for {_words(problem)}")
        functions: dict[str, Callable[[], object]] = {
            "jitgen": partial(workload.call, jitgen.grouped_gemm)
        }
        if (peer := _peer(workload)) is not None:
            functions[PEER] = peer
        for name, times in zip(functions, compete(list(functions.values())), strict=True):
            yield _row(name, workload, times)


def _row(name: str, workload: Workload, times: Times) -> Row:
    return Row(
        suite="gemm",
        what=f"{name}: {_words(workload.problem)}",
        value=workload.flop / times.median * 1e-12,
        unit="TFLOP/s",
        is_rate=True,
        detail=f"{times.median * 1e6:.1f} us; {times.detail(1e6, 'us')}",
    )


def _words(problem: Problem) -> str:
    return f"{problem.groups} x ({problem.rows_per_group} x {problem.n} x {problem.k})"


def _peer(workload: Workload) -> Callable[[], object] | None:
    """Return DeepGEMM's kernel on the same operands once its result is right; None without it."""
    found, _ = find_all((PEER,))
    if not found or workload.problem.rows_per_group % GROUP_ALIGNMENT:
        return None
    prepared = found[0].prepare(workload, workload.problem.rows_per_group)
    prepared.call()
    prepared.check()
    return prepared.call
