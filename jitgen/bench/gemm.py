# SPDX-License-Identifier: Apache-2.0
"""
Device time of GPU kernels with a cold L2, on the expert layers of DeepSeek-V3.

Where DeepGEMM is installed it runs the same operands in turn; its time is a row of its own, never a
budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jitgen
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.cases import MATRICES
from jitgen.bench.peers import PEER, find_all
from jitgen.bench.report import OURS
from jitgen.bench.runner import KernelSuite, Ready, Side
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import Problem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.support.frozen import frozen


@frozen
class Case:
    """
    One measurement.

    Attributes:
        problem: The sizes.
    """

    problem: Problem

    def __str__(self) -> str:
        """Return the case as tables show it: ``8 x (128 x 4096 x 7168)``."""
        problem = self.problem
        return f"{problem.groups} x ({problem.rows_per_group} x {problem.n} x {problem.k})"

    @property
    def amount(self) -> int:
        """Operations."""
        return 2 * self.problem.m * self.problem.n * self.problem.k

    def sides(self, _: Arch) -> Iterator[Side]:
        """Yield our kernel, and DeepGEMM's on the same operands where it is installed."""
        workload, rows = Workload.random(self.problem), self.problem.rows_per_group
        ours = Ready(
            calls=(partial(workload.call, jitgen.grouped_gemm),),
            check=partial(workload.check, f"the kernel for {self}"),
            out=lambda: workload.out,
        )
        yield Side(name=OURS, prepare=lambda: ours, is_needed=True)
        found = find_all((PEER,))[0]
        if found and not rows % GROUP_ALIGNMENT:
            peer = partial(found[0].prepare, workload, rows)
            yield Side(name=PEER, prepare=peer, is_needed=True)

    def ratios(self, _: Arch) -> tuple[()]:
        """Return nothing: no budget is set."""
        return ()


CASES = tuple(
    Case(problem=Problem(layout=Layout.RAGGED, groups=groups, m=groups * rows, n=n, k=k))
    for groups, rows in ((8, 128), (8, 1024), (8, 4096), (32, 64), (32, 512))
    for n, k in MATRICES
)

SUITE = KernelSuite(
    name="gemm",
    cases=lambda _: CASES,
    unit="TFLOP/s",
    counts_flop=True,
    repetitions=4,
    needs_gpu="the gemm suite",
)
rows = SUITE.rows
