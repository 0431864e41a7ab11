# SPDX-License-Identifier: Apache-2.0
"""
A map of experts that gives ranks about equally many tokens: the most loaded experts get replicas,
then places are packed onto ranks.

The two greedy steps are those of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), for one host: each
replica goes to the expert with the most tokens per place. Then places are assigned, those with the
most tokens first, to ranks with a free place: to one without the expert if there is one, and of
these to the one with the fewest tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from jitgen.errors import InputError
from jitgen.parallel.expert_map import ExpertMap
from jitgen.support.text import shown


def balance(counts: Sequence[float] | Tensor, ranks: int, replicas: int = 0) -> ExpertMap:
    """
    Return a map that balances ranks for these token counts; equal arguments give equal maps.

    Args:
        counts: (E,) tokens of each expert, summed over all ranks: the counts of
            ``jitgen.route(load=)``. If all are 0, experts count as equally loaded.
        ranks: Ranks that share the layer.
        replicas: Further places, in addition to one for each expert; at most ``E * (ranks - 1)``,
            because no rank needs an expert twice.

    Raises:
        InputError: A count is negative or not finite, or `ranks` or `replicas` is out of range.

    Example::

        expert_map = jitgen.parallel.balance([70, 10, 10, 10], ranks=2, replicas=2)
        expert_map.placed
        # (0, 1, 2, 0, 1, 3)
    """
    if isinstance(counts, Tensor) and counts.dim() != 1:
        raise InputError("counts", f"must have 1 dimension, (E,) (got {tuple(counts.shape)})")
    numbers = counts.tolist() if isinstance(counts, Tensor) else counts
    try:
        loads = [float(each) for each in numbers]
    except (TypeError, ValueError):
        raise InputError("counts", f"must be numbers of tokens (got {shown(numbers)})") from None
    if not loads:
        raise InputError("counts", "must have a number for each expert (got none)")
    if type(ranks) is not int or not 1 <= ranks <= len(loads):
        raise InputError("ranks", f"must be 1 to experts, {len(loads)} (got {ranks!r})")
    if wrong := [each for each in loads if not 0 <= each < math.inf]:
        raise InputError("counts", f"must be numbers of tokens, 0 or more (got {wrong[0]})")
    experts = len(loads)
    if type(replicas) is not int or not 0 <= replicas <= experts * (ranks - 1):
        raise InputError(
            "replicas",
            f"must be 0 to {experts * (ranks - 1)}, for {experts} experts of {ranks} ranks "
            f"(got {replicas!r})",
        )
    copies = _copies(loads, ranks, replicas)
    empty = ExpertMap.plain(experts + replicas, ranks)  # for the rooms of ranks
    room = [len(empty.part(rank)) for rank in range(ranks)]
    held: list[list[int]] = [[] for _ in range(ranks)]
    total = [0.0] * ranks
    parts = [(loads[e] / copies[e], e) for e in range(experts) for _ in range(copies[e])]
    for load, expert in sorted(parts, key=lambda part: (-part[0], part[1])):
        free = (rank for rank in range(ranks) if len(held[rank]) < room[rank])
        rank = min(free, key=lambda r: (held[r].count(expert), total[r], len(held[r]), r))
        held[rank].append(expert)
        total[rank] += load
    placed = tuple(expert for each in held for expert in sorted(each))
    return ExpertMap(experts=experts, ranks=ranks, placed=placed)


def _copies(loads: Sequence[float], ranks: int, replicas: int) -> list[int]:
    """
    Return how many places each expert has: one, and one more for each replica that it gets as the
    expert with the most tokens per place.
    """
    copies = [1] * len(loads)
    for _ in range(replicas):
        some = (expert for expert, count in enumerate(copies) if count < ranks)
        heaviest = max(some, key=lambda e: (loads[e] / copies[e], -copies[e], -e))
        copies[heaviest] += 1
    return copies
