# SPDX-License-Identifier: Apache-2.0
"""
The cost model of `moe_fc2_dense`, on paper: that of the grouped GEMM, with its cycles of a k-block.

A tile takes the k-blocks of the experts that its tokens have, or, of a cluster that shares b, of
those that the tokens of all its tiles have. The sum of each k-block is promoted, or, where the
tensor core applies the scales, that of each expert. A call takes whole waves of tiles, and no less
than its bytes take from memory: the weights of the experts that are needed, and a.
"""

from __future__ import annotations

import math

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.targets.protocol import Candidate, Device
from jitgen.targets.sm_100a.cost import cycles
from jitgen.targets.sm_100a.devices import Paper
from jitgen.targets.sm_100a.sizes import CTA_ROWS, PART_M, has_atoms, num_ctas


def predict(
    problem: MoEFc2DenseProblem, config: MoEFc2DenseConfig, device: Device, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
    tile, cluster, split_k = config.tile, config.cluster, config.schedule.split_k
    paper: Paper = device.constants["grouped_gemm"]
    tokens = max(1, problem.m)
    height, width = tile.m * cluster.m // num_ctas(config.gemm), tile.n * cluster.n
    tiles = -(-tokens // height) * -(-problem.n // width)
    slots = max(1, num_sms // (cluster.size * split_k))
    waves = math.ceil(tiles / slots)

    live = problem.live_experts(min(tokens, height))
    depth = -(-problem.k // tile.k)
    k_blocks = live * depth / split_k
    promotions = 1 / depth if has_atoms(config.gemm) else 1.0
    loaded = min(CTA_ROWS, -(-tokens // PART_M) * PART_M)
    of_block = cycles(config.gemm, paper, loaded, promotions)
    k_block = of_block.bound(config.pipeline.num_acc_stage)
    multiply_us = waves * (k_blocks * k_block + paper.tile_cycles) / device.clock_mhz
    crossing = problem.traffic_bytes
    stream_us = crossing / (device.dram_gbps * 1e3 * paper.dram_share)
    needed = tokens * min(problem.top_k, problem.groups)
    return Candidate(
        config=config,
        cost=paper.call_us + max(multiply_us, stream_us) + min(multiply_us, stream_us) / 8,
        padding_ratio=-(-tokens // height) * height * live / needed,
        waves=waves,
        traffic_bytes=crossing,
        limiter="multiply" if multiply_us > stream_us else "stream",
    )
