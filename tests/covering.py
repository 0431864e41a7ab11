# SPDX-License-Identifier: Apache-2.0
"""The few configs that every push compiles and runs; those that are left out are for the night."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from jitgen.ops.grouped_gemm.config import KernelConfig


def covering(
    configs: Sequence[KernelConfig],
    features: Callable[[KernelConfig], Iterable[object]] | None = None,
) -> list[KernelConfig]:
    """
    Return a few of `configs` that have between them all `features` that any has; by default those
    of `pairs_and_numbers`.

    Each is the first of those that add most to what was chosen before.
    """
    features = features or pairs_and_numbers
    of = {config: set(features(config)) for config in configs}
    missing = set().union(*of.values())
    found: list[KernelConfig] = []
    while missing:
        best = max(of, key=lambda config: len(of[config] & missing))
        found.append(best)
        missing -= of.pop(best)
    return found


def pairs_and_numbers(config: KernelConfig) -> Iterator[object]:
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


def structure_and_switches(config: KernelConfig) -> Iterator[object]:
    """Yield what changes a kernel's structure, one by one, and the switches."""
    yield from _structure(config).items()
    yield "out_dtype", config.operands.out_dtype
    yield from _switches(config).items()


def _structure(config: KernelConfig) -> dict[str, object]:
    operands = config.operands
    return {
        "layout": config.layout,
        "scales": operands.scale_granularity,
        "types": (operands.a_dtype, operands.b_dtype),
        "cluster": config.cluster,
        "pair": config.schedule.two_cta,
        "split_k": config.schedule.split_k,
    }


def _switches(config: KernelConfig) -> dict[str, object]:
    return {"use_pdl": config.schedule.use_pdl, "stream_b": config.schedule.stream_b}
