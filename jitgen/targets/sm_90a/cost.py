# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds.

A persistent GPU kernel is done when its busiest CTA is, so a call takes whole waves of tiles. Each
takes as long as the slower of two things, and a little of the other that does not overlap:

    multiply   k-blocks x the time of one, and what starts and ends a tile; it includes promotion
               and the way of the operands from L2, and shrinks where a group lacks rows
    stream     the wave's share of the bytes that cross DRAM

Padding shows in the number of tiles, rows that are left out in the time of a k-block. A last wave
of few tiles streams little and multiplies as long as any. The constants are the
device's, fitted to measurements.
"""

from __future__ import annotations

import math

from jitgen.config import DType, Layout
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.targets.gemm import sizes, traffic, used_groups
from jitgen.targets.protocol import Candidate
from jitgen.targets.sm_90a.devices import Fit, Speed

_K_BYTES = 128
"""Of a row of an operand in one k-block."""

FILL_BYTES_PER_US = 7.5e6
"""What L2 gave all SMs of an H200 in the largest cases, by its counters."""


def _tiles(problem: Problem, height: int) -> tuple[float, float]:
    """Return how many tiles of `height` rows all groups have, and the part of them with rows."""
    if problem.layout is Layout.CONTIGUOUS and height > GROUP_ALIGNMENT:
        # Such a tile begins at any block and not where a group does: of two groups it is two.
        rows = max(problem.m, GROUP_ALIGNMENT)
        count = (rows / GROUP_ALIGNMENT + used_groups(problem)) / 2
        return count, rows / (count * height)
    each = sizes(problem)
    count = sum(-(-rows // height) for rows in each)
    blocks = sum(-(-rows // 64) for rows in each)
    return count * problem.groups / len(each), min(1.0, blocks * 64 / (count * height))


def predict(problem: Problem, config: KernelConfig, fit: Fit, num_sms: int) -> Candidate:
    """Return what `config` would take for `problem` on `num_sms` SMs."""
    tile, cluster = config.tile, config.cluster
    speed = _speed_of(config, fit)
    tiles, filled = _tiles(problem, tile.m)
    columns = -(-problem.n // tile.n)
    if problem.layout is Layout.CONTIGUOUS:
        clusters = -(-tiles // cluster.m) * -(-columns // cluster.n)
    else:
        clusters = tiles * -(-columns // cluster.size)  # whichever side of a pair is along M
    ctas = cluster.size * config.schedule.split_k
    slots = max(1, num_sms // ctas)
    k_blocks = -(-problem.k // tile.k) / config.schedule.split_k
    apart = _apart(problem, cluster.m, fit)
    tile_us = k_blocks * (
        speed.k_block_us * (1 - speed.skipped * (1 - filled)) * apart
        + fit.beyond_us * _beyond(problem, tile.m)
    )
    tile_us += speed.tile_us
    doublings = math.log2(max(1.0, clusters / slots * tile_us / fit.cold_us))
    tile_us *= 1 + fit.throttle * min(1.0, doublings / fit.doublings)

    crossing = traffic(problem)
    stream_us = crossing / clusters / fit.dram_bytes_per_us / speed.stream * apart
    full, rest = divmod(clusters, slots)
    cost = fit.call_us + full * _overlapped(tile_us, slots * stream_us, fit.overlap)
    if rest:
        cost += _overlapped(tile_us, rest * stream_us, fit.overlap)
    waves = int(full) + (rest > 0)
    computed = clusters * cluster.size * tile.m * tile.n
    return Candidate(
        config=config,
        cost=cost,
        padding_ratio=computed / (max(1, problem.m) * problem.n),
        waves=waves,
        traffic_bytes=crossing,
        limiter="multiply" if waves * tile_us > clusters * stream_us else "stream",
    )


def _apart(problem: Problem, pair: int, fit: Fit) -> float:
    """Return how many times as long pairs along M take whose tiles are of different groups."""
    if problem.layout is not Layout.CONTIGUOUS or pair == 1:
        return 1.0
    blocks = max(1.0, problem.m / GROUP_ALIGNMENT)
    return 1 + fit.unshared * min(1.0, used_groups(problem) / blocks)


def _speed_of(config: KernelConfig, fit: Fit) -> Speed:
    tile, cluster = config.tile, config.cluster
    schedule = config.schedule
    key = (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)
    is_wide = config.operands.a_dtype is DType.BF16
    speeds = fit.bf16_speeds if is_wide else fit.speeds
    if key in speeds:
        return speeds[key]
    flop = 2 * tile.m * tile.n * _K_BYTES  # bf16 has half as many k in them, at half the rate
    return Speed(k_block_us=flop / fit.flop_per_us, tile_us=0.6, skipped=0.5, stream=1.0)


def _overlapped(one: float, other: float, exponent: float) -> float:
    """Return the time of two things that overlap."""
    return float((one**exponent + other**exponent) ** (1 / exponent))


def _beyond(problem: Problem, height: int) -> float:
    """
    Return how many rows beyond the end of a the loads of a ragged tile cover, on average.

    Tiles that a group does not fill are loaded in parts of 64 rows, short ones of 16.
    """
    if problem.layout is not Layout.RAGGED:
        return 0.0
    part, rows = 16 if height == 64 else 64, max(1, problem.m)
    return part - rows / 2 if part > rows else part * part / (2 * rows)
