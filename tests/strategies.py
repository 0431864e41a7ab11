# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for configs, and the broad sweep that several tests walk over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from jitgen.model import (
    Arch,
    Cluster,
    DType,
    KernelConfig,
    Layout,
    Operands,
    Pipeline,
    ScaleGranularity,
    Schedule,
    Tile,
    check,
)
from jitgen.model.legality import target

positive = st.integers(min_value=1, max_value=4096)

configs = st.builds(
    KernelConfig,
    layout=st.sampled_from(Layout),
    operands=st.builds(
        Operands,
        a_dtype=st.sampled_from(DType),
        b_dtype=st.sampled_from(DType),
        out_dtype=st.sampled_from(DType),
        scale_granularity=st.sampled_from(ScaleGranularity),
    ),
    tile=st.builds(Tile, m=positive, n=positive, k=positive),
    cluster=st.builds(Cluster, m=positive, n=positive),
    pipeline=st.builds(
        Pipeline, num_acc_stage=positive, num_ab_stage=st.one_of(st.none(), positive)
    ),
    schedule=st.builds(
        Schedule,
        raster=positive,
        use_pdl=st.booleans(),
        stream_b=st.booleans(),
        split_k=st.one_of(st.integers(min_value=1, max_value=4), positive),
    ),
)


def legal_sweep(arch: Arch) -> Iterator[KernelConfig]:
    """Yield every legal config of a broad sweep over a target's space."""
    space = target(arch).space
    schedules = [Schedule()]
    stages: list[int | None] = [None]
    if arch.is_gpu:
        schedules += [Schedule(raster=1, stream_b=True), Schedule(use_pdl=False)]
        schedules += [Schedule(split_k=split_k) for split_k in space.split_k if split_k > 1]
        stages += [3, 4, 6]
    for layout, (operand, out), scale, m, n, cluster, stage, schedule in itertools.product(
        Layout,
        space.operands,
        space.scale_granularity,
        space.tile_m,
        space.tile_n,
        space.cluster,
        stages,
        schedules,
    ):
        config = KernelConfig(
            layout=layout,
            operands=Operands(
                a_dtype=operand, b_dtype=operand, out_dtype=out, scale_granularity=scale
            ),
            tile=Tile(m=m, n=n, k=128),
            cluster=Cluster(m=cluster[0], n=cluster[1]),
            pipeline=Pipeline(num_ab_stage=stage),
            schedule=schedule,
        )
        if check(config, arch):
            yield config
