# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `dispatch`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.dispatch import DispatchConfig, DispatchProblem, Tiling
from jitgen.targets import dispatch_space
from jitgen.targets.sm_90a.wire import LISTED, WireRules


class Dispatch(WireRules[DispatchConfig, DispatchProblem]):
    """Rules of the `dispatch` kernels, their candidates and their cost model."""

    sums = dispatch_space.SUMS
    entry = "sm90/dispatch.py.jinja"
    second = ("sm90/dispatch_records.py.jinja", dispatch_space.is_quantised)
    usual = DispatchConfig()
    columns = "k"
    check_kind = staticmethod(dispatch_space.check_kind)
    legal_kind = staticmethod(dispatch_space.legal_kind)

    def listed_for(self, problem: DispatchProblem) -> tuple[Tiling, ...]:
        """Return the tilings that may be chosen: with a thread for each pair that is sorted."""
        return tuple(each for each in LISTED if each.threads >= problem.most_in_a_cta)

    def check_sizes(self, problem: DispatchProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        super().check_sizes(problem)
        dispatch_space.require_records(problem)

    def vectors(self, problem: DispatchProblem) -> int:
        """Return how many vectors, of 8 bytes each, a rank sends in a call; it receives as many."""
        return problem.ranks * problem.m * problem.length
