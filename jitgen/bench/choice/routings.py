# SPDX-License-Identifier: Apache-2.0
"""How many rows each group gets: evenly, nearly so, by a power law, as routers do, or all one."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from jitgen.support.frozen import frozen


class Kind(enum.StrEnum):
    """
    Kinds of distributions; what `amount` is to each.

    ``even`` knows none. ``spread``: rows lie between this part less and more than their mean, as
    `jitgen tune` has them. ``zipf``: the exponent of the popularity of groups. ``hot``: the part of
    all rows that one group has. ``routed``: the standard deviation of the logarithm of groups'
    popularity, of which every row draws its group by itself.
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
        amount: How uneven it is, as its kind has it.
        seed: The same one gives the same rows.
    """

    kind: Kind
    amount: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        """Return the distribution as tables show it: ``zipf 1.2``."""
        return f"{self.kind} {self.amount:g}" if self.kind is not Kind.EVEN else str(self.kind)

    def deal(self, groups: int, rows: int) -> tuple[int, ...]:
        """Return the rows of each of `groups` groups, `rows` together."""
        chance = random.Random(self.seed)  # noqa: S311  # sizes, not secrets
        weights = self._weights(groups, chance)
        if self.kind is Kind.ROUTED:
            drawn = Counter(chance.choices(range(groups), weights, k=rows))
            return tuple(drawn[group] for group in range(groups))
        return _dealt(weights, rows)

    def _weights(self, groups: int, chance: random.Random) -> list[float]:
        """Return how much each group is asked for."""
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
        """Return it as JSON values."""
        return {"kind": str(self.kind), "amount": self.amount, "seed": self.seed}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        return cls(
            kind=Kind(document["kind"]),
            amount=float(document["amount"]),
            seed=int(document["seed"]),
        )


def _dealt(weights: Sequence[float], rows: int) -> tuple[int, ...]:
    """Return `rows` in whole parts as near to `weights` as they go: largest remainders first."""
    share = rows / sum(weights)
    parts = [weight * share for weight in weights]
    counts = [int(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda group: counts[group] - parts[group])
    for group in order[: rows - sum(counts)]:
        counts[group] += 1
    return tuple(counts)
