# SPDX-License-Identifier: Apache-2.0
"""What the cpu target says of `route`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.route import RouteConfig, RouteProblem, Tiling
from jitgen.support.frozen import frozen
from jitgen.targets import route_space
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

_SCORE_US = 4e-3
"""One score, and one look at it for one of the chosen, on one core of a cloud x86-64 server."""

_PARAMETERS = frozenset(
    ("name", "config_json", "scoring", "scores_dtype", "bias", "grouped", "experts")
)


@frozen
class CpuRouteDerived:
    """
    What follows from a legal cpu config.

    Attributes:
        scratch_bytes: Stack that one call takes: logits, scores, keys and counts of each expert.
    """

    scratch_bytes: int


class Route:
    """The rules of its kernels, the one that may be chosen, and what it costs."""

    generation = 1
    alignment = 1
    row_edges: tuple[int, ...] = (1,)
    sums = SumOrder(
        words="a token's experts, in their order",
        free=(
            "scoring",
            "scores_dtype",
            "bias",
            "grouped",
            "experts",
            "tiling",
        ),
    )

    def derive(self, config: RouteConfig) -> CpuRouteDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        route_space.check_kind(config)
        route_space.check_experts(config)
        refuse_unless(
            config.tiling == Tiling(),
            "E_TILING",
            f"{'_'.join(config.tiling.words())}: a cpu kernel is one thread, which has nobody to "
            "share its work with",
        )
        return CpuRouteDerived(scratch_bytes=5 * 4 * config.experts)

    def nearest(self, config: RouteConfig) -> RouteConfig | None:
        """Return the legal config that is nearest to a refused one: there always is one."""
        most = route_space.room_for(config.experts) or route_space.EXPERTS[-1]
        return replace(route_space.legal_kind(config), experts=most, tiling=Tiling())

    def configs(self) -> Iterator[RouteConfig]:
        """Yield every config that the target can be asked for, legal or not."""
        for kind, experts in itertools.product(route_space.kinds(), route_space.EXPERTS):
            yield replace(kind, experts=experts)

    def candidates(self, problem: RouteProblem) -> tuple[RouteConfig, ...]:
        """Return the config that may be chosen for `problem`; none where it has no kernel."""
        experts = self.experts_for(problem)
        if experts is None:
            return ()
        return legal_of((replace(route_space.of_problem(problem), experts=experts),), self)

    def predict(
        self,
        problem: RouteProblem,
        config: RouteConfig,
        device: Device,  # noqa: ARG002  # one core is like another
        num_sms: int,  # noqa: ARG002  # and one thread does all of it
    ) -> Candidate:
        """Return what `config` would take for `problem` on one core."""
        looks = 1 + problem.top_k // 4
        return Candidate(
            config=config,
            cost=problem.m * problem.experts * _SCORE_US * looks,
            padding_ratio=1.0,
            waves=max(1, problem.m),
            traffic_bytes=problem.traffic_bytes,
            limiter="multiply",
        )

    def doubt(self, problem: RouteProblem, device: Device) -> str:  # noqa: ARG002
        """Return nothing: there is one candidate."""
        return ""

    def check_sizes(self, problem: RouteProblem) -> None:
        """Raise a Refusal where the scratch memory is too small."""
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

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="cpu/route.py.jinja", parameters=_PARAMETERS),)
