# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `route`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jitgen.config.route import RouteConfig, RouteProblem, Scoring, Tiling
from jitgen.support.frozen import frozen
from jitgen.targets import route_space
from jitgen.targets.base import Cost, tiled
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.streams import StreamRules
from jitgen.targets.spaces import check_sides, tilings
from jitgen.targets.sums import SumOrder

LANES = 32
_SIDES = {"threads": (128, 256, 512, 1024), "cluster": (1, 2, 4, 8)}
"""A cluster of 8 is the largest that every device takes without being asked."""
_BYTES = 4
_BARRIER_WORDS = 2
_SHARED_BYTES = 227 * 1024

_FEW_THREADS = 256
"""
Threads of a CTA that chooses for few tokens, unless there are more experts: large CTAs take long to
start.
"""

_MORE_THREADS = 512
"""Threads of a CTA for more tokens than a cluster of `_FEW_THREADS` has warps: 128 in one round."""

_MOST_OF_THREADS = 512
"""Experts up to which each thread adds up the pairs of one."""

_THREADS_OF_MANY = 256
"""
Threads of a CTA for more experts, each of which adds up the pairs of several. A lane that chooses
has 32 experts of a token, three times over, for which more threads have no registers; and their
counts would not fit in the shared memory of sm_120a.
"""

_SPREAD = Tiling(threads=512, cluster=2, is_spread=True, use_pdl=True)
"""
Clusters on all SMs are small: of clusters of eight large CTAs an H200 holds 15, and the sixteenth
waits for another to end. Single CTAs need not wait for each other, but the second launch reads the
counts of twice as many: at 1,024 and 4,096 tokens they took 9 and 4 % longer.
"""

_LAUNCH_US = 1.5
"""
Microseconds of a launch that does nothing and begins while the one before ends. This number and the
next six were measured on an H200.
"""

_SECOND_US = 2.6
"""Microseconds of a second launch that is ready when the first one ends, without its counts."""

_COUNTS_US = 0.008
"""Microseconds that the second launch takes for the counts of each cluster."""

_THREADS_US = 0.15
"""Microseconds to start a CTA of more than `_FEW_THREADS`, beyond those for a smaller one."""

_CLUSTER_US = 1.0
"""
Microseconds to start a cluster of eight and to wait for the counts of its CTAs. A cluster of two on
all SMs took no longer than a CTA alone.
"""

_ISSUED = 2.5
"""
Instructions that an SM issues in a cycle of `Device.clock_mhz` if no warp waits. Kernels as short
as these run at a higher clock. Most instructions are of integers, of which an SM begins two in a
cycle.
"""

_CYCLES = 5.4
"""
Cycles of `Device.clock_mhz` for each instruction of a warp that is alone on its SM: each
instruction waits for an earlier one.
"""

_TOKENS_AT_FIRST = 8
"""Most tokens of a CTA while there are SMs for more clusters, as in the template."""

_INSTRUCTIONS = (320, 14)
"""
Instructions of a warp for a token, whatever k is, and for each of its k experts: counted in SASS
for 256 experts.
"""

_INSTRUCTIONS_OF_PAIR = 4
"""
Instructions of a warp for each pair that is counted, and for each that is sorted: counted in SASS,
where a warp takes 32 pairs at a time.
"""


@frozen
class Sm90RouteDerived:
    """
    Numbers that follow from a legal sm_90a config.

    Attributes:
        shared_bytes: Shared memory of a CTA: counts of each expert by warp and CTA, and experts of
            pairs.
    """

    shared_bytes: int


class Route(StreamRules[RouteConfig, RouteProblem]):
    """Rules of the `route` kernels, their candidates and their cost model."""

    generation = 2
    alignment = 1
    shared_bytes = _SHARED_BYTES
    row_edges: tuple[int, ...] = (8, 16, 64, 128, 256, 1024, 4096, 16384)
    sums = SumOrder(
        words="a token's experts, in the lanes of a warp and then across them",
        free=(
            *("scoring", "scores_dtype", "bias", "grouped", "group_scoring", "softcap"),
            *("hashed", "load", "experts", "tiling"),
        ),
    )
    entry = "sm90/route.py.jinja"
    usual = RouteConfig(scoring=Scoring.GIVEN)
    span = _SIDES
    limiter = "multiply"
    note = f"the model was fitted to sigmoids and given experts on an {H200.name}"
    legal_kind = staticmethod(route_space.legal_kind)
    kinds = staticmethod(route_space.kinds)
    kind_of = staticmethod(route_space.kind_of)

    def derive(self, config: RouteConfig) -> Sm90RouteDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        route_space.check_kind(config)
        route_space.check_experts(config)
        tiling, experts = config.tiling, config.experts
        check_sides(tiling, _SIDES)
        self._check_threads(tiling.threads, experts)
        warps = tiling.threads // LANES
        words = experts * (warps + tiling.cluster + 1) + LANES + tiling.threads + _BARRIER_WORDS
        refuse_unless(
            words * _BYTES <= self.shared_bytes,
            "E_SMEM",
            f"counts of {experts} experts by {warps} warps take {words * _BYTES} bytes of shared "
            f"memory, of which there are {self.shared_bytes}",
        )
        return Sm90RouteDerived(shared_bytes=words * _BYTES)

    def _check_threads(self, threads: int, experts: int) -> None:
        refuse_unless(
            experts <= threads or experts > _MOST_OF_THREADS,
            "E_THREADS",
            f"threads={threads}: each thread adds up the pairs of one expert, and there may be "
            f"{experts}",
        )
        refuse_unless(
            threads == _THREADS_OF_MANY or experts <= _MOST_OF_THREADS,
            "E_THREADS",
            f"threads={threads} must be {_THREADS_OF_MANY} for {experts} experts, whose scores are "
            "in the threads' registers",
        )

    def variants(self, start: RouteConfig) -> Iterator[RouteConfig]:
        """Yield the configs, legal or not, among which the nearest to `start` is searched."""
        for experts in route_space.EXPERTS:
            yield from super().variants(replace(start, experts=experts))

    def sizes_of(self, config: RouteConfig) -> Iterable[int]:
        """
        Return the numbers of a config that `nearest` compares: the experts, then those of the
        tiling.
        """
        return (config.experts, *super().sizes_of(config))

    def configs(self) -> Iterator[RouteConfig]:
        """
        Yield every kind with every number of experts, threads and CTAs of a cluster, spread or not,
        legal or not; `use_pdl` is the default.
        """
        shapes = [
            replace(tiling, is_spread=is_spread)
            for tiling in tilings(Tiling(), _SIDES)
            for is_spread in (False, True)
        ]
        for kind in self.kinds():
            for experts in route_space.EXPERTS:
                sized = replace(kind, experts=experts)
                yield from (tiled(sized, tiling) for tiling in shapes)

    def candidates(self, problem: RouteProblem) -> tuple[RouteConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        experts = self.experts_for(problem)
        if experts is None:
            return ()
        is_given = problem.scoring is Scoring.GIVEN
        few, spread = (Tiling().threads if is_given else max(_FEW_THREADS, experts)), _SPREAD
        if experts > _MOST_OF_THREADS:
            few, spread = _THREADS_OF_MANY, replace(spread, threads=_THREADS_OF_MANY)
        listed: tuple[Tiling, ...] = (
            Tiling(threads=few, cluster=1, use_pdl=True),
            Tiling(threads=few, use_pdl=True),
            spread,
        )
        if few < _MORE_THREADS and experts <= _MOST_OF_THREADS:
            listed = (*listed, Tiling(threads=_MORE_THREADS, use_pdl=True))
        return self.legal(replace(self.kind_of(problem), experts=experts), listed)

    def cost(
        self, problem: RouteProblem, config: RouteConfig, device: Device, num_sms: int
    ) -> Cost:
        """Estimate the time of `config`: launches, and the instructions of one SM."""
        tiling, ctas = config.tiling, config.tiling.cluster
        us = _LAUNCH_US + _CLUSTER_US * (ctas > 1 and not tiling.is_spread)
        passes = 2
        if tiling.is_spread:
            clusters = -(-problem.m // (_TOKENS_AT_FIRST * ctas))
            clusters = max(1, min(num_sms // ctas, clusters))
            ctas *= clusters
            us += _SECOND_US + _COUNTS_US * clusters
            passes = 3
        elif tiling.threads > _FEW_THREADS:
            us += _THREADS_US
        tokens = -(-problem.m // ctas)
        each = passes * _INSTRUCTIONS_OF_PAIR * problem.top_k
        if config.scoring is not Scoring.GIVEN:
            each += _INSTRUCTIONS[0] + _INSTRUCTIONS[1] * problem.top_k
        rounds = -(-tokens * LANES // tiling.threads)
        us += max(tokens / _ISSUED, rounds * _CYCLES) * each / device.clock_mhz
        return Cost(us, max(1, rounds))

    def is_fitted(self, problem: RouteProblem) -> bool:
        """Say whether the cost model was fitted to calls like `problem`, on an H200."""
        return problem.scoring in (Scoring.SIGMOID, Scoring.GIVEN)

    def check_sizes(self, problem: RouteProblem) -> None:
        """
        Raise a Refusal if a token has too many experts, or the lanes of a warp cannot hold the
        scores of all.
        """
        route_space.check_sizes(problem)
        refuse_unless(
            self.experts_for(problem) is not None,
            "E_SIZE",
            f"must be of at most {route_space.EXPERTS[-1]} experts on {self.arch}, of whose groups "
            f"each begins with a lane of its own (got {problem.experts} in "
            f"{problem.expert_groups} groups, {problem.sorted_experts} of them local)",
        )

    def experts_for(self, problem: RouteProblem) -> int | None:
        """
        Return the `RouteConfig.experts` of kernels for `problem`; None where there is none.

        Every group of experts begins with a lane of its own.
        """
        if problem.scores_dtype is None:
            return route_space.room_for(problem.sorted_experts)
        size, groups = problem.experts // problem.expert_groups, problem.expert_groups
        for most in route_space.EXPERTS:
            lanes = groups * -(-size // (most // LANES))
            if lanes <= LANES and problem.sorted_experts <= most:
                return most
        return None
