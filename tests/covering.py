# SPDX-License-Identifier: Apache-2.0
"""The few configs, or mistakes, that every push has; those that are left out are for the night."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from jitgen.config.grouped_gemm import GroupedGemmConfig

Item = TypeVar("Item", bound=Hashable)


def covering(
    items: Sequence[Item], features: Callable[[Item], Iterable[object]] | None = None
) -> list[Item]:
    """
    Return a few of `items` that have between them all `features` that any has; by default those
    of `pairs_and_numbers`, which are of configs.

    Each is the first of those that add most to what was chosen before.
    """
    of = {item: set((features or pairs_and_numbers)(item)) for item in items}
    missing = set().union(*of.values())
    found: list[Item] = []
    while missing:
        best = max(of, key=lambda item: len(of[item] & missing))
        found.append(best)
        missing -= of.pop(best)
    return found


def pairs_and_numbers(config: GroupedGemmConfig) -> Iterator[object]:
    """
    Yield what kernels differ in: each two of layout, scales, types, cluster, CTAs of a tile and
    split K, for these change a kernel's structure together; and, one by one, numbers and switches.
    """
    yield from combinations(_structure(config).items(), 2)
    yield "operands", config.operands
    yield "m", config.tile.m
    yield "n", config.tile.n
    yield "stages", config.pipeline.num_ab_stage
    yield "places for sums", config.pipeline.num_acc_stage
    yield from _switches(config).items()


def structure_and_switches(config: GroupedGemmConfig) -> Iterator[object]:
    """
    Yield the values that change a kernel's structure, one by one, and the switches; of split_k only
    whether K is split.
    """
    yield from (_structure(config) | {"split_k": config.schedule.split_k > 1}).items()
    yield "out_dtype", config.operands.out_dtype
    yield from _switches(config).items()


def _structure(config: GroupedGemmConfig) -> dict[str, object]:
    operands = config.operands
    return {
        "layout": config.layout,
        "scales": operands.scale_granularity,
        "types": (operands.a_dtype, operands.b_dtype),
        "cluster": config.cluster,
        "pair": config.schedule.two_cta,
        "split_k": config.schedule.split_k,
    }


def _switches(config: GroupedGemmConfig) -> dict[str, object]:
    return {"use_pdl": config.schedule.use_pdl, "stream_b": config.schedule.stream_b}
