# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `combine_ranks`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.combine_ranks import CombineRanksConfig, CombineRanksProblem
from jitgen.targets import combine_space
from jitgen.targets.sm_90a.wire import WireRules


class CombineRanks(WireRules[CombineRanksConfig, CombineRanksProblem]):
    """Rules of the `combine_ranks` kernels, their candidates and their cost model."""

    sums = combine_space.SUMS_OF_RANKS
    entry = "sm90/combine_ranks.py.jinja"
    second = ("sm90/combine_ranks_experts.py.jinja", combine_space.adds_rows)
    usual = CombineRanksConfig()
    check_kind = staticmethod(combine_space.check_ranks)
    legal_kind = staticmethod(combine_space.legal_ranks)
    columns = "n"

    def vectors(self, problem: CombineRanksProblem) -> int:
        """Return how many vectors, of 8 bytes each, a rank sends in a call; it receives as many."""
        return problem.ranks * problem.m * problem.n // 4
