# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `route`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.route import RouteConfig, RouteProblem, Scoring
from jitgen.targets import route_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.protocol import legal_of, refuse_unless
from jitgen.targets.sums import SumOrder

_SCORE_US = 4e-3
"""One score, and one look at it for one of the chosen, on one core of a cloud x86-64 server."""


class Route(CpuTiledRules[RouteConfig, RouteProblem]):
    """Rules of the `route` kernels, their candidates and their cost model."""

    sums = SumOrder(
        words="a token's experts, in their order",
        free=(
            *("scoring", "scores_dtype", "bias", "grouped", "group_scoring", "softcap"),
            *("hashed", "load", "experts", "tiling"),
        ),
    )
    entry = "cpu/route.py.jinja"
    usual = RouteConfig(scoring=Scoring.GIVEN)
    kind_of = staticmethod(route_space.kind_of)

    def check_kind(self, config: RouteConfig) -> None:
        """Raise a Refusal where fields do not go together, or no kernel has so many experts."""
        route_space.check_kind(config)
        route_space.check_experts(config)

    def legal_kind(self, config: RouteConfig) -> RouteConfig:
        """
        Return `config` with fields that go together, and a number of experts that a kernel has.
        """
        most = route_space.room_for(config.experts) or route_space.EXPERTS[-1]
        return replace(route_space.legal_kind(config), experts=most)

    def kinds(self) -> Iterator[RouteConfig]:
        """Yield every kind with every number of experts, with the default tiling."""
        for kind in route_space.kinds():
            for experts in route_space.EXPERTS:
                yield replace(kind, experts=experts)

    def candidates(self, problem: RouteProblem) -> tuple[RouteConfig, ...]:
        """Return the candidate config for `problem`; none if no kernel serves it."""
        experts = self.experts_for(problem)
        if experts is None:
            return ()
        return legal_of((replace(self.kind_of(problem), experts=experts),), self)

    def scratch_bytes(self, config: RouteConfig) -> int:
        """Return the bytes of logits, scores, keys and counts of each expert."""
        return 5 * 4 * config.experts

    def cost_of(self, problem: RouteProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        looks = 1 + problem.top_k // 4
        return Cost(problem.m * problem.experts * _SCORE_US * looks, max(1, problem.m))

    def check_sizes(self, problem: RouteProblem) -> None:
        """Raise a Refusal for more experts, or more experts of a token, than a kernel has."""
        route_space.check_sizes(problem)
        refuse_unless(
            self.experts_for(problem) is not None,
            "E_SIZE",
            f"must be of at most {route_space.EXPERTS[-1]} experts (got {problem.experts})",
        )

    def experts_for(self, problem: RouteProblem) -> int | None:
        """Return the `RouteConfig.experts` of kernels for `problem`; None where there is none."""
        chosen = 0 if problem.scores_dtype is None else problem.experts
        return route_space.room_for(max(chosen, problem.sorted_experts))
