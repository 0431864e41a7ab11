# SPDX-License-Identifier: Apache-2.0
"""
The problems of the choice suite, drawn over all sizes or taken from known layers, and the number of
rows of each group: equal, nearly equal, by a power law, as routers distribute them, most in one
group, or as recorded.
"""

from __future__ import annotations

import enum
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, cast

from jitgen.bench.choice.recorded import Record, Recorded
from jitgen.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.selection.record import parse_problem, problem_json
from jitgen.support.frozen import frozen


class Kind(enum.StrEnum):
    """
    Kinds of distributions, with the meaning of `Routing.amount` in each.

    ``even`` has no amount. ``spread``: the rows of a group differ from their mean by at most this
    part, as in `jitgen tune`. ``zipf``: the exponent of the popularity of groups. ``hot``: the part
    of all rows that one group has. ``routed``: the standard deviation of the logarithm of groups'
    popularity; each row draws its group independently with these probabilities.
    """

    EVEN = "even"
    SPREAD = "spread"
    ZIPF = "zipf"
    HOT = "hot"
    ROUTED = "routed"


@frozen
class Routing:
    """
    A distribution of rows over groups.

    Attributes:
        kind: See `Kind`.
        amount: How uneven the distribution is; `Kind` gives the meaning for each kind.
        seed: Seed of random distributions: the same one gives the same rows.
    """

    kind: Kind
    amount: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        """Return the distribution as tables show it: ``zipf 1.2``."""
        return f"{self.kind} {self.amount:g}" if self.kind is not Kind.EVEN else str(self.kind)

    def deal(self, groups: int, rows: int) -> tuple[int, ...]:
        """Return the number of rows of each of `groups` groups; their sum is `rows`."""
        chance = random.Random(self.seed)  # sizes, not secrets
        weights = self._weights(groups, chance)
        if self.kind is Kind.ROUTED:
            drawn = Counter(chance.choices(range(groups), weights, k=rows))
            return tuple(drawn[group] for group in range(groups))
        return _dealt(weights, rows)

    def _weights(self, groups: int, chance: random.Random) -> list[float]:
        """Return the relative load of each group."""
        match self.kind:
            case Kind.EVEN:
                return [1.0] * groups
            case Kind.SPREAD:
                return [chance.uniform(1 - self.amount, 1 + self.amount) for _ in range(groups)]
            case Kind.ZIPF:
                weights = [(1 + rank) ** -self.amount for rank in range(groups)]
                chance.shuffle(weights)
                return weights
            case Kind.HOT:
                rest = (1 - self.amount) / max(1, groups - 1)
                weights = [rest] * groups
                weights[chance.randrange(groups)] = self.amount
                return weights
            case Kind.ROUTED:
                return [chance.lognormvariate(0, self.amount) for _ in range(groups)]

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as JSON values."""
        return {"kind": str(self.kind), "amount": self.amount, "seed": self.seed}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the object from the document that `to_json` returned."""
        return cls(
            kind=Kind(document["kind"]),
            amount=float(document["amount"]),
            seed=int(document["seed"]),
        )


def _dealt(weights: Sequence[float], rows: int) -> tuple[int, ...]:
    """Return `rows` split into whole parts in proportion to `weights`: largest remainders first."""
    share = rows / sum(weights)
    parts = [weight * share for weight in weights]
    counts = [int(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda group: counts[group] - parts[group])
    for group in order[: rows - sum(counts)]:
        counts[group] += 1
    return tuple(counts)


GROUPS, ROWS, N, K = (1, 512), (1, 8192), (512, 32_768), (512, 18_432)
"""Ranges of random problems; sizes are drawn uniformly in their logarithm."""

STEP = 64
"""N and K are multiples of it."""

MOST_BYTES, MOST_FLOP = 60e9, 6e12
"""
Limits of a problem: bytes of operands and results that fit a GPU, and floating-point operations of
4 ms.
"""

_TYPES: tuple[tuple[int, dict[str, Any]], ...] = (
    (6, {}),
    (1, {"a_dtype": DType.BF16, "scale_granularity": ScaleGranularity.TENSOR}),
    (
        1,
        {
            "a_dtype": DType.BF16,
            "b_dtype": DType.E2M1,
            "scale_granularity": ScaleGranularity.MX32,
            "a_scale_granularity": ScaleGranularity.NONE,
            "b_layout": BLayout.WIDE1,
        },
    ),
)
"""
Weights of the kinds of problems: FP8 with block scales, bfloat16, and MXFP4 weights beside
bfloat16.
"""

_LAYERS = (
    (Layout.RAGGED, 8, 16_384, 6144, 4096),  # Mixtral 8x22B, a half of each expert
    (Layout.RAGGED, 32, 2048, 4096, 7168),  # DeepSeek-V3, a rank's share
    (Layout.MASKED, 32, 2048, 7168, 2048),
    (Layout.RAGGED, 128, 8192, 3072, 4096),  # Qwen3-235B
    (Layout.CONTIGUOUS, 32, 8192, 4096, 7168),
    (Layout.RAGGED, 256, 4096, 4096, 7168),
    (Layout.MASKED, 16, 512, 3072, 4096),
    (Layout.RAGGED, 64, 32_768, 2816, 2048),  # DeepSeek-V2-Lite
)
"""Layout, groups, total rows, N and K of the cases with uneven rows."""

_UNEVEN = (
    (Kind.EVEN, 0.0),
    (Kind.SPREAD, 0.5),
    (Kind.ROUTED, 0.5),
    (Kind.ROUTED, 1.0),
    (Kind.ROUTED, 1.5),
    (Kind.ZIPF, 0.6),
    (Kind.ZIPF, 1.2),
    (Kind.HOT, 0.3),
    (Kind.HOT, 0.7),
    (Kind.HOT, 1.0),
)


_MATRICES = (
    *((4096, 7168), (7168, 2048)),  # DeepSeek-V3, Kimi-K2
    *((6144, 4096), (4096, 8192)),  # Mixtral 8x22B, a half of each expert, and longer sums
    *((3072, 4096), (4096, 1536)),  # Qwen3-235B
    *((2816, 2048), (2048, 1408)),  # DeepSeek-V2-Lite
    *((1536, 2048), (2048, 768)),  # Qwen3-30B
    *((32_768, 6144), (6144, 16_384)),  # Mixtral 8x22B
    *((4096, 7168), (7168, 2048)),  # the first ones twice as often
    *((5760, 2880), (2880, 2880)),  # gpt-oss
)
"""N and K of experts that engines serve."""

_SHARES = (8, 8, 16, 32, 32, 64, 128, 256)
"""Experts of a rank."""

_USUAL_ROWS = (16, 32, 48, 64, 96, 128, 150, 192, 200, 256, 300, 400, 512, 700, 1024, 2048)

_USUAL = (
    (Kind.EVEN, 0.0),
    (Kind.SPREAD, 0.5),
    (Kind.SPREAD, 0.3),
    (Kind.ROUTED, 0.5),
    (Kind.ROUTED, 1.0),
)

LAYER_BYTES, LAYER_FLOP = 30e9, 4e12
"""
Limits of a layer's problem: bytes of operands and results, and floating-point operations. The bytes
are less than half of a GPU's memory.
"""


@frozen
class Case:
    """
    A problem and the rows of its groups.

    Attributes:
        problem: The sizes; m are the rows of all groups, without padding.
        routing: How the rows are distributed over the groups.
    """

    problem: GroupedGemmProblem
    routing: Routing | Recorded

    def __str__(self) -> str:
        """Return the case's name in reports."""
        return f"{self.problem.slug} {self.routing}"

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Number of rows of each group."""
        return self.routing.deal(self.problem.groups, self.problem.m)

    @property
    def asked(self) -> GroupedGemmProblem:
        """
        The problem that a call passes to the selector: m of contiguous rows includes their padding.
        """
        if self.problem.layout is not Layout.CONTIGUOUS:
            return self.problem
        blocks = sum(-(-rows // GROUP_ALIGNMENT) for rows in self.row_counts)
        return replace(self.problem, m=blocks * GROUP_ALIGNMENT)

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {"problem": problem_json(self.problem), "routing": self.routing.to_json()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the object from the document that `to_json` returned."""
        routing = document["routing"]
        kind = Recorded if routing["kind"] == Recorded.KIND else Routing
        return cls(
            problem=cast("GroupedGemmProblem", parse_problem(document["problem"])),
            routing=kind.from_json(routing),
        )


def random_cases(count: int, seed: int) -> list[Case]:
    """
    Return `count` problems: groups, rows, N and K over all of their ranges, types and layouts.

    A case of more than `MOST_BYTES` or `MOST_FLOP` is drawn again. The first cases do not depend on
    `count`.
    """
    chance = random.Random(seed)  # sizes, not secrets
    return [_drawn(chance) for _ in range(count)]


def _drawn(chance: random.Random) -> Case:
    shares = [share for share, _ in _TYPES]
    (types,) = chance.choices([types for _, types in _TYPES], shares)
    layout = chance.choice(tuple(Layout))
    spread = chance.choice((0.0, 0.5, 0.5, 0.9))
    routing = Routing(
        kind=Kind.SPREAD if spread else Kind.EVEN, amount=spread, seed=chance.randrange(2**16)
    )
    while True:
        groups, rows = (round(_between(chance, *ends)) for ends in (GROUPS, ROWS))
        n, k = (round(_between(chance, *ends) / STEP) * STEP for ends in (N, K))
        problem = GroupedGemmProblem(
            layout=layout, groups=groups, m=groups * rows, n=n, k=k, **types
        )
        case = Case(problem=problem, routing=routing)
        if _bytes(case) <= MOST_BYTES and 2 * problem.m * n * k <= MOST_FLOP:
            return case


def _between(chance: random.Random, least: int, most: int) -> float:
    """Return a random number from `least` to `most`, uniform in its logarithm."""
    return math.exp(chance.uniform(math.log(least), math.log(most)))


def _bytes(case: Case) -> float:
    """Return the size of a call's tensors; masked matrices have the rows of the largest group."""
    problem, counts = case.asked, case.row_counts
    rows = max(counts) * len(counts) if problem.layout is Layout.MASKED else problem.m
    of_a, of_b, of_out = (
        dtype.bits / 8 for dtype in (problem.a_dtype, problem.operands.b_dtype, problem.out_dtype)
    )
    weights = problem.groups * problem.n * problem.k * of_b
    return rows * (problem.k * of_a + problem.n * of_out) + weights


def skewed_cases(count: int, seed: int) -> list[Case]:
    """Return `count` FP8 layers whose rows range from equal in all groups to all in one group."""
    found = []
    for number in range(count):
        kind, amount = _UNEVEN[number % len(_UNEVEN)]
        turn = number // len(_UNEVEN)  # each kind meets other layers
        layout, groups, m, n, k = _LAYERS[(number + turn) % len(_LAYERS)]
        problem = GroupedGemmProblem(layout=layout, groups=groups, m=m, n=n, k=k)
        routing = Routing(kind=kind, amount=amount, seed=seed + number)
        found.append(Case(problem=problem, routing=routing))
    return found


def layer_cases(count: int, seed: int) -> list[Case]:
    """
    Return `count` layers of FP8: matrices of experts that are served, with usual rows and layouts.

    A case of more than `LAYER_BYTES` or `LAYER_FLOP` is drawn again.
    """
    chance, found = random.Random(seed), list[Case]()  # sizes, not secrets
    while len(found) < count:
        n, k = chance.choice(_MATRICES)
        groups, layout = chance.choice(_SHARES), chance.choice(tuple(Layout))
        problem = GroupedGemmProblem(
            layout=layout, groups=groups, m=groups * chance.choice(_USUAL_ROWS), n=n, k=k
        )
        kind, amount = chance.choice(_USUAL)
        routing = Routing(kind=kind, amount=amount, seed=chance.randrange(2**16))
        case = Case(problem=problem, routing=routing)
        if _bytes(case) < LAYER_BYTES and 2 * problem.m * n * k < LAYER_FLOP:
            found.append(case)
    return found


def recorded_cases(records: Sequence[Record]) -> list[Case]:
    """Return a case of FP8 operands for each of `records`, each of its matrices and each layout."""
    return [
        Case(
            problem=GroupedGemmProblem(
                layout=layout, groups=each.experts, m=each.tokens * each.top_k, n=n, k=k
            ),
            routing=Recorded(number=number, record=each),
        )
        for number, each in enumerate(records, start=1)
        for n, k in each.sizes
        for layout in Layout
    ]


DRAWN = {
    "random": (random_cases, 150),
    "skewed": (skewed_cases, 40),
    "layers": (layer_cases, 150),
}
"""Families whose cases are drawn, and how many without ``--count``."""

FAMILIES = (*DRAWN, Recorded.KIND)
"""Allowed values of `--of`."""


def kernels_of(cases: Sequence[Case], arch: Any) -> list[Any]:
    """Return every config that may be chosen for one of `cases`, each once."""
    from jitgen.targets.legality import rules

    every = (rules(arch, each.problem.op).candidates(each.asked) for each in cases)
    return list(dict.fromkeys(config for configs in every for config in configs))
