# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `combine`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.combine import CombineConfig, CombineProblem
from jitgen.targets import combine_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.sums import SumOrder

_VALUE_US = 1.5e-3
"""Microseconds of one value that is added, on one core of a cloud x86-64 server."""


class Combine(CpuTiledRules[CombineConfig, CombineProblem]):
    """Rules of the `combine` kernels, their candidates and their cost model."""

    sums = SumOrder(
        words="expert by expert, as the token lists them; what is shared last",
        free=("has_shared", "is_weighted", "tiling"),
    )
    entry = "cpu/combine.py.jinja"
    usual = CombineConfig()
    check_kind = staticmethod(combine_space.check_kind)
    legal_kind = staticmethod(combine_space.legal_kind)

    def scratch_bytes(self, config: CombineConfig) -> int:  # all are alike
        """Return the bytes of a block of values and one of sums, as bits and as float32."""
        return 2 * 128 * (2 + 4)

    def cost_of(self, problem: CombineProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        added = problem.m * problem.n * (problem.top_k + problem.has_shared)
        return Cost(added * _VALUE_US, max(1, problem.m))
