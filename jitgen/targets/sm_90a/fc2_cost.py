# SPDX-License-Identifier: Apache-2.0
"""
The cost model of `moe_fc2_dense`: that of the grouped GEMM, with its times of a k-block.

A tile takes the k-blocks of the experts that its tokens have, or, of a cluster that shares b, of
those that the tokens of all its tiles have. Three things bound a wave of tiles:

    multiply  k-blocks x the time of one, and what starts and ends a tile
    stream    the wave's share of the bytes that cross DRAM: every live weight once, for there is
              little of everything else
    fill      what all CTAs read from L2 at once: a for every tile of columns, b for every tile of
              tokens; less where a cluster shares it
"""

from __future__ import annotations

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.targets.protocol import Candidate
from jitgen.targets.sm_90a.cost import FILL_BYTES_PER_US, _overlapped, speed_of
from jitgen.targets.sm_90a.devices import Fit


def predict(
    problem: MoEFc2DenseProblem, config: MoEFc2DenseConfig, fit: Fit, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs."""
    tile, cluster, split_k = config.tile, config.cluster, config.schedule.split_k
    speed = speed_of(config.gemm, fit)
    tokens = max(1, problem.m)
    height, width = tile.m * cluster.m, tile.n * cluster.n
    tiles = -(-tokens // height) * -(-problem.n // width)
    live = problem.live_experts(min(tokens, height))
    k_blocks = live * -(-problem.k // tile.k) / split_k
    slots = max(1, num_sms // (cluster.size * split_k))
    tile_us = speed.tile_us + k_blocks * speed.k_block_us
    crossing = problem.traffic_bytes
    stream_us = crossing / tiles / fit.dram_bytes_per_us / speed.stream
    rows = min(tokens, height) / cluster.m / cluster.n + tile.n / cluster.m
    fill_us = k_blocks * rows * tile.k * cluster.size * split_k / FILL_BYTES_PER_US
    full, rest = divmod(tiles, slots)
    cost = fit.call_us
    for count, at_once in ((full, slots), (1, rest)):
        if count and at_once:  # whole waves leave no rest
            loads_us = _overlapped(fit.overlap, at_once * stream_us, at_once * fill_us)
            cost += count * _overlapped(fit.overlap, tile_us, loads_us)
    needed = tokens * min(problem.top_k, problem.groups)
    loads_us = max(stream_us, fill_us)
    return Candidate(
        config=config,
        cost=cost,
        padding_ratio=-(-tokens // height) * height * live / needed,
        waves=full + (rest > 0),
        traffic_bytes=crossing,
        limiter="multiply" if tile_us > min(tiles, slots) * loads_us else "stream",
    )
