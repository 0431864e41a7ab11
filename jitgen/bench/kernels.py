# SPDX-License-Identifier: Apache-2.0
"""Every kernel that may be chosen, on the GPU at hand, where it is hardest: to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.cases import Case
from jitgen.bench.grouped_report import Checked
from jitgen.bench.runner import attempt, device
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import KernelConfig, Problem
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import rules

_ROWS = (0, 1, 127, 0, 128, 129, 259)
"""Empty groups, and rows around those of tiles."""

EDGES = tuple(
    Case(
        layout=layout,
        groups=len(_ROWS),
        rows_per_group=1,
        n=584,
        k=1184,
        max_rows=max(_ROWS) if layout is Layout.MASKED else None,
    )
    for layout in Layout
)
"""What each step of the check is called by: a layout, and N and K that end within a tile."""


KINDS = (
    (DType.E4M3, ScaleGranularity.BLOCK128),
    (DType.E4M3, ScaleGranularity.MX32),
    (DType.E2M1, ScaleGranularity.MX32),
    (DType.E2M1, ScaleGranularity.NV16),
)
"""Types of a and b, and scales; a target without kernels for one leaves it out."""


def check(case: Case) -> Iterator[Checked]:
    """Yield for each kernel that may be chosen for the layout of `case` what it computed."""
    for dtype, scales in KINDS:
        problem = replace(case.problem, m=sum(_ROWS), a_dtype=dtype, scale_granularity=scales)
        yield from _check(problem)


def _check(problem: Problem) -> Iterator[Checked]:
    arch = default_arch()
    configs = rules(arch, problem.op).candidates(problem)
    if not configs:
        return
    call = random_call(problem, _ROWS, is_exact=True, has_spare=True)
    solved = Solved.of(call.copy(device()), is_exact=True)
    arguments: dict[str, Any] = solved.arguments
    for config in configs:

        def compute(config: KernelConfig = config) -> None:
            solved.out.fill_(float("nan"))
            jitgen.grouped_gemm(**arguments, config=config)
            if wrong := solved.wrong():
                raise WrongResult(f"{wrong} of {solved.out.numel()} values are wrong")

        reason: dict[str, str] = {}
        attempt("", compute, reason)
        yield Checked(kernel=config.name(arch), reason=reason.get("", ""))
