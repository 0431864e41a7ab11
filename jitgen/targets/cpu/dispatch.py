# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `dispatch`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

VALUE_US = 1.5e-3
"""Microseconds of a word that is sent or taken, on one core of a cloud x86-64 server."""


class Dispatch(CpuTiledRules[DispatchConfig, DispatchProblem]):
    """Rules of the `dispatch` kernels, their candidates and their cost model."""

    sums = SumOrder(words="nothing: tokens are copied", free=("can_mask", "tiling"))
    entry = "cpu/dispatch.py.jinja"
    usual = DispatchConfig()
    alignment = 8
    limiter = "stream"

    def scratch_bytes(self, config: DispatchConfig) -> int:  # it is for no values
        """Return the bytes of stack that one call takes: none."""
        return 0

    def check_sizes(self, problem: DispatchProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        require_vectors("K", problem.k)

    def cost_of(self, problem: DispatchProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        words = 2 * problem.ranks * problem.m * (problem.k // 2 + 2 * problem.top_k)
        return Cost(words * VALUE_US, max(1, problem.m))


def require_vectors(name: str, size: int) -> None:
    """Raise a Refusal unless a row is whole vectors of four columns."""
    refuse_unless(size % 4 == 0, "E_SIZE", f"must have {name} a multiple of 4 (got {size})")
