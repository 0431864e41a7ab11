# SPDX-License-Identifier: Apache-2.0
"""
The cost model of `grouped_gemm_wgrad`: whole waves of tiles, each summing over the rows of a group.

The time of a k-block is the longer of two, plus a small part of the other: its products at three
quarters of the peak rate, and its loads at the rate of L2 for all SMs together, which are fewer if
a cluster shares a tile. A tile ends with its store, of which a part does not overlap other work.
The time of a call combines its waves and its DRAM traffic in the same way; most of the traffic is
the gradient if groups are small.
"""

from __future__ import annotations

from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.targets.protocol import Candidate
from jitgen.targets.sm_90a.cost import FILL_BYTES_PER_US, _overlapped
from jitgen.targets.sm_90a.devices import Fit

_STORE_BYTES_PER_US = 2e5
"""Rate at which one SM writes a tile's results from registers to shared memory."""

_TILE_US = 0.3
"""Time to start a tile that does not overlap other work."""


def predict(
    problem: GroupedGemmWgradProblem, config: GroupedGemmWgradConfig, fit: Fit, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs."""
    tile, cluster = config.tile, config.cluster
    width = tile.m * cluster.m, tile.n * cluster.n
    clusters = problem.groups * -(-problem.n // width[0]) * -(-problem.k // width[1])
    slots = max(1, num_sms // cluster.size)
    waves = -(-clusters // slots)
    k_blocks = -(-problem.rows_per_group // tile.k) if problem.m else 0
    bytes_of_row = (tile.m / cluster.n + tile.n / cluster.m) * problem.a_dtype.bits / 8
    fill_us = bytes_of_row * tile.k * num_sms / FILL_BYTES_PER_US
    multiply_us = 2 * tile.m * tile.n * tile.k / (fit.flop_per_us / 2)  # bf16 has half FP8's rate
    out_bytes = tile.m * tile.n * problem.out_dtype.bits / 8
    k_block_us = _overlapped(fit.overlap, fill_us, multiply_us)
    tile_us = k_blocks * k_block_us + out_bytes / _STORE_BYTES_PER_US + _TILE_US
    stream_us = problem.traffic_bytes / fit.dram_bytes_per_us
    covered = clusters * width[0] * width[1]
    return Candidate(
        config=config,
        cost=fit.call_us + _overlapped(fit.overlap, waves * tile_us, stream_us),
        padding_ratio=covered / (problem.groups * problem.n * problem.k),
        waves=waves,
        traffic_bytes=problem.traffic_bytes,
        limiter="multiply" if waves * tile_us > stream_us else "stream",
    )
