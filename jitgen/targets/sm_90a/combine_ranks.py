# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `combine_ranks`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.combine_ranks import CombineRanksConfig, CombineRanksProblem
from jitgen.targets import combine_space
from jitgen.targets.sm_90a.wire import WireRules
from jitgen.targets.sums import SumOrder


class CombineRanks(WireRules[CombineRanksConfig, CombineRanksProblem]):
    """Rules of the kernels, their candidates and their cost model."""

    sums = SumOrder(
        words="rank by rank; what is shared last",
        free=("has_shared", "is_weighted", "can_mask", "tiling"),
    )
    entry = "sm90/combine_ranks.py.jinja"
    usual = CombineRanksConfig()
    check_kind = staticmethod(combine_space.check_kind)
    legal_kind = staticmethod(combine_space.legal_kind)
    columns = "n"

    def vectors(self, problem: CombineRanksProblem) -> int:
        """Return the vectors that a rank sends and takes."""
        return problem.ranks * problem.m * problem.n // 4
