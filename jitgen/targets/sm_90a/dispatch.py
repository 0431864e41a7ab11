# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `dispatch`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.targets import dispatch_space
from jitgen.targets.protocol import Template
from jitgen.targets.sm_90a.wire import WireRules


class Dispatch(WireRules[DispatchConfig, DispatchProblem]):
    """Rules of the `dispatch` kernels, their candidates and their cost model."""

    sums = dispatch_space.SUMS
    entry, of_records = "sm90/dispatch.py.jinja", "sm90/dispatch_records.py.jinja"
    usual = DispatchConfig()
    columns = "k"
    check_kind = staticmethod(dispatch_space.check_flags)
    legal_kind = staticmethod(dispatch_space.legal_flags)

    def templates(self) -> tuple[Template, ...]:
        """Return the template of kernels that send bfloat16, and that of those that quantise."""
        return dispatch_space.templates_of(self.entry, self.of_records)

    def check_sizes(self, problem: DispatchProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        super().check_sizes(problem)
        dispatch_space.require_records(problem)

    def vectors(self, problem: DispatchProblem) -> int:
        """Return how many vectors, of 8 bytes each, a rank sends in a call; it receives as many."""
        return problem.ranks * problem.m * problem.length
