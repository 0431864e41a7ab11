# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `dispatch`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.targets.sm_90a.wire import WireRules
from jitgen.targets.sums import SumOrder


class Dispatch(WireRules[DispatchConfig, DispatchProblem]):
    """Rules of the `dispatch` kernels, their candidates and their cost model."""

    sums = SumOrder(words="nothing: tokens are copied", free=("can_mask", "tiling"))
    entry = "sm90/dispatch.py.jinja"
    usual = DispatchConfig()
    columns = "k"

    def vectors(self, problem: DispatchProblem) -> int:
        """Return how many vectors, of 8 bytes each, a rank sends in a call; it receives as many."""
        return problem.ranks * problem.m * (problem.k // 4 + problem.top_k)
