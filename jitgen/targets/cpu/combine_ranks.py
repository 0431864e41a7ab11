# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `combine_ranks`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.combine_ranks import CombineRanksConfig, CombineRanksProblem
from jitgen.targets import combine_space, dispatch_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.dispatch import VALUE_US, require_vectors
from jitgen.targets.cpu.rules import CpuTiledRules


class CombineRanks(CpuTiledRules[CombineRanksConfig, CombineRanksProblem]):
    """Rules of the `combine_ranks` kernels, their candidates and their cost model."""

    sums = combine_space.SUMS_OF_RANKS
    entry = "cpu/combine_ranks.py.jinja"
    second = ("cpu/combine_ranks_experts.py.jinja", combine_space.adds_rows)
    usual = CombineRanksConfig()
    alignment = 8
    limiter = "stream"

    def check_kind(self, config: CombineRanksConfig) -> None:
        """Raise a Refusal where fields do not go together, or not on a CPU."""
        combine_space.check_ranks(config)
        dispatch_space.refuse_flags(config)

    def legal_kind(self, config: CombineRanksConfig) -> CombineRanksConfig:
        """Return `config`, made legal."""
        return replace(combine_space.legal_ranks(config), by_flags=False)

    def scratch_bytes(self, config: CombineRanksConfig) -> int:  # all are alike
        """Return the bytes of the sums of two columns."""
        return 8

    def check_sizes(self, problem: CombineRanksProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        require_vectors("N", problem.n)

    def cost_of(self, problem: CombineRanksProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        words = 2 * problem.ranks * problem.m * problem.n // 2
        return Cost(words * VALUE_US, max(1, problem.m))
