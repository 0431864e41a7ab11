# SPDX-License-Identifier: Apache-2.0
"""The few configs that every push compiles and runs; those that are left out are for the night."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from jitgen.ops.grouped_gemm.config import KernelConfig


def covering(configs: Sequence[KernelConfig]) -> list[KernelConfig]:
    """
    Return a few of `configs` that have between them all that any has; see `features`.

    Each is the first of those that add most to what was chosen before.
    """
    of = {config: set(features(config)) for config in configs}
    missing = set().union(*of.values())
    found: list[KernelConfig] = []
    while missing:
        best = max(of, key=lambda config: len(of[config] & missing))
        found.append(best)
        missing -= of.pop(best)
    return found


def features(config: KernelConfig) -> Iterator[object]:
    """
    Yield what kernels differ in: each pair of layout, scales, types, cluster and split K, for these
    change a kernel's structure together; and, one by one, the numbers and switches.
    """
    operands = config.operands
    structure = {
        "layout": config.layout,
        "scales": operands.scale_granularity,
        "types": (operands.a_dtype, operands.b_dtype),
        "cluster": config.cluster,
        "split_k": config.schedule.split_k,
    }
    yield from combinations(structure.items(), 2)
    yield "operands", operands
    yield "m", config.tile.m
    yield "n", config.tile.n
    yield "stages", config.pipeline.num_ab_stage
    yield "use_pdl", config.schedule.use_pdl
    yield "stream_b", config.schedule.stream_b
