# SPDX-License-Identifier: Apache-2.0
"""The rule of kernels that load weights before the previous kernel has ended."""

from __future__ import annotations

from jitgen.config.config import BLayout, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.protocol import refuse_unless


def check_early(config: GroupedGemmConfig) -> None:
    """Check the conditions of `early_b`; other configs pass."""
    cluster, split_k, b_layout = config.cluster, config.schedule.split_k, config.operands.b_layout
    if not config.schedule.early_b:
        return
    refuse_unless(
        config.schedule.use_pdl,
        "E_EARLY_B",
        "early_b without use_pdl: such a kernel starts when the one before has ended, so that "
        "nothing is early; it needs use_pdl",
    )
    refuse_unless(
        config.layout is not Layout.CONTIGUOUS,
        "E_EARLY_B",
        "early_b with the contiguous layout: a tile may be padding, for which no stage is filled; "
        "allowed: ragged, masked",
    )
    refuse_unless(
        b_layout is BLayout.PLAIN,
        "E_EARLY_B",
        f"early_b with b_layout={b_layout}: it is for weights as they were quantised, plain",
    )
    refuse_unless(
        cluster.size == 1 and split_k == 1,
        "E_EARLY_B",
        "early_b: CTAs of a cluster fill stages for each other, and may start at different times; "
        f"it needs cluster 1x1 and split_k 1 (got {cluster.m}x{cluster.n} and {split_k})",
    )
