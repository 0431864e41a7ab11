# SPDX-License-Identifier: Apache-2.0
"""Which expert each place of each rank holds; an expert may be in several places."""

from __future__ import annotations

from jitgen.errors import InputError
from jitgen.parallel.share import share
from jitgen.support.frozen import frozen
from jitgen.support.text import shown


@frozen
class ExpertMap:
    """
    The experts of a layer, assigned to places of ranks. Rank r has the places that
    ``share(len(placed), r, ranks)`` gives. If an expert has several places (replicas), each
    computes a part of its tokens.

    Attributes:
        experts: Experts of the layer, E.
        ranks: Ranks that share it.
        placed: The expert in each of the P places; every expert from 0 to E - 1 occurs.

    Raises:
        InputError: An expert has no place, or a number in `placed` is not that of an expert.

    Example::

        expert_map = ExpertMap(experts=3, ranks=2, placed=(0, 1, 0, 2))
        expert_map.of_rank(1)
        # (0, 2)
    """

    experts: int
    ranks: int
    placed: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.experts) is not int or self.experts < 1:
            raise InputError("experts", f"must be an integer of at least 1 (got {self.experts!r})")
        if isinstance(self.placed, list):  # as JSON has it
            object.__setattr__(self, "placed", tuple(self.placed))
        if not isinstance(self.placed, tuple) or not all(type(each) is int for each in self.placed):
            raise InputError("placed", f"must be a tuple of integers (got {shown(self.placed)})")
        share(len(self.placed), 0, self.ranks)
        if missing := sorted({*range(self.experts)} - {*self.placed}):
            raise InputError("placed", f"must have every expert (got no {missing[0]})")
        if strange := sorted({*self.placed} - {*range(self.experts)}):
            raise InputError(
                "placed", f"must be experts from 0 to {self.experts - 1} (got {strange[0]})"
            )

    @classmethod
    def plain(cls, experts: int, ranks: int) -> ExpertMap:
        """Return the map with the experts in their order, each in one place."""
        return cls(experts=experts, ranks=ranks, placed=tuple(range(experts)))

    def part(self, rank: int) -> range:
        """Return the places of a rank."""
        first, count = share(len(self.placed), rank, self.ranks)
        return range(first, first + count)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Return the experts in the places of a rank."""
        places = self.part(rank)
        return self.placed[places.start : places.stop]

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each expert, the places that have it."""
        found: list[list[int]] = [[] for _ in range(self.experts)]
        for place, expert in enumerate(self.placed):
            found[expert].append(place)
        return tuple(map(tuple, found))

    @property
    def owners(self) -> tuple[int, ...]:
        """For each place, the rank that has it."""
        return tuple(rank for rank in range(self.ranks) for _ in self.part(rank))
