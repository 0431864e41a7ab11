# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds.

A persistent GPU kernel is done when its busiest CTA is, so a call takes whole waves of tiles. Each
takes as long as the slower of two things, and a little of the other that does not overlap:

    multiply   k-blocks x the time of one, and what starts and ends a tile; it includes promotion
               and the way of the operands from L2, and shrinks where a group lacks rows
    stream     the wave's share of the bytes that cross DRAM

Padding shows in the number of tiles, but where those without rows are not dealt; rows that are left
out in the time of a k-block. A last wave of few tiles streams little and multiplies as long as any.
The constants are the device's, fitted to measurements.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from jitgen.config import DType, Layout
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.targets import gemm
from jitgen.targets.gemm import traffic, used_groups
from jitgen.targets.protocol import Candidate
from jitgen.targets.sm_90a.boxes import has_list
from jitgen.targets.sm_90a.devices import Fit, Speed

_K_BYTES = 128
"""Of a row of an operand in one k-block."""

FILL_BYTES_PER_US = 7.5e6
"""What L2 gave all SMs of an H200 in the largest cases, by its counters."""

SKEW = 0.5
"""
Standard deviation of the logarithm of a group's rows: of 0, 0.3, 0.5, 0.8, 1 and 1.5 the one that
choices lose least with over 80 distributions, from the same rows to one group that has all.
"""

_QUANTILES = tuple(NormalDist().inv_cdf((place + 0.5) / 16) for place in range(16))

HALF_EMPTY = 0.5
"""Part of contiguous groups whose last block has no more than 64 rows: a call cannot know it."""


def sizes(problem: Problem) -> tuple[float, ...]:
    """Return rows that a group may have, all equally likely; as `gemm.sizes`, but of `SKEW`."""
    if problem.layout is Layout.CONTIGUOUS or problem.groups == 1:
        return gemm.sizes(problem)
    width = SKEW * (1 - 1 / problem.groups)
    parts = [math.exp(width * each) for each in _QUANTILES]
    share = problem.rows_per_group * len(parts) / sum(parts)
    return tuple(max(1.0, part * share) for part in parts)


def _tiles(problem: Problem, config: KernelConfig) -> tuple[float, float]:
    """Return how many tiles all groups have, and the part of them with rows."""
    height = config.tile.m
    if problem.layout is Layout.CONTIGUOUS and height > GROUP_ALIGNMENT:
        # Such a tile begins at any block and not where a group does: of two groups it is two.
        rows = max(problem.m, GROUP_ALIGNMENT)
        count = (rows / GROUP_ALIGNMENT + used_groups(problem)) / 2
        return count, rows * _owned(problem) / (count * height)
    each = sizes(problem)
    count = sum(-(-rows // height) for rows in each)
    blocks = sum(-(-rows // 64) for rows in each) * _owned(problem)
    if has_list(config):
        count = blocks  # others are not dealt
    return count * problem.groups / len(each), min(1.0, blocks * 64 / (count * height))


def _owned(problem: Problem) -> float:
    """Return what part of the rows lies in parts of 64 of which a group has some."""
    if problem.layout is not Layout.CONTIGUOUS:
        return 1.0
    blocks = max(1.0, problem.m / GROUP_ALIGNMENT / used_groups(problem))
    return 1 - HALF_EMPTY / 2 / blocks


class Work(NamedTuple):
    """
    What a kernel has to do for a problem, whatever its device.

    Attributes:
        k_blocks: Of a tile.
        filled: Part of the tiles that has rows.
        clusters: Tiles, counted by clusters.
        slots: Clusters at work at a time.
        crossing: Bytes that cross DRAM at least.
        loaded: Bytes of operands that all clusters load.
        apart: Part of the pairs along M whose tiles are of different groups.
        beyond: Rows beyond the end of a that the loads of a tile cover.
    """

    k_blocks: float
    filled: float
    clusters: float
    slots: int
    crossing: int
    loaded: float
    apart: float
    beyond: float


class Cost(NamedTuple):
    """
    How long it takes, in microseconds.

    Attributes:
        all_us: The call.
        multiply_us: What its waves would take if they only multiplied.
        stream_us: What they would take if they only read.
    """

    all_us: float
    multiply_us: float
    stream_us: float


def work(problem: Problem, config: KernelConfig, num_sms: int) -> Work:
    """Return what `config` has to do for `problem` on `num_sms` SMs."""
    tile, cluster = config.tile, config.cluster
    tiles, filled = _tiles(problem, config)
    columns = -(-problem.n // tile.n)
    if problem.layout is Layout.CONTIGUOUS:
        clusters = -(-tiles // cluster.m) * -(-columns // cluster.n)
    else:
        clusters = tiles * -(-columns // cluster.size)  # whichever side of a pair is along M
    ctas = cluster.size * config.schedule.split_k
    return Work(
        k_blocks=-(-problem.k // tile.k) / config.schedule.split_k,
        filled=filled,
        clusters=clusters,
        slots=max(1, num_sms // ctas),
        crossing=traffic(problem),
        loaded=clusters * problem.k * _bytes_of_k(problem, config),
        apart=_apart(problem, cluster.m),
        beyond=_beyond(problem, tile.m),
    )


def cost(asked: Work, speed: Speed, fit: Fit) -> Cost:
    """Return how long that takes with a tile that is so fast."""
    apart = 1 + fit.unshared * asked.apart
    tile_us = speed.tile_us + asked.k_blocks * (
        speed.k_block_us * (1 - speed.skipped * (1 - asked.filled)) * apart
        + fit.beyond_us * asked.beyond
    )
    doublings = math.log2(max(1.0, asked.clusters / asked.slots * tile_us / fit.cold_us))
    tile_us *= 1 + speed.throttled * min(1.0, doublings / fit.doublings)
    crossing = asked.crossing + speed.missed * max(0.0, asked.loaded - asked.crossing)
    stream_us = crossing / asked.clusters / fit.dram_bytes_per_us / speed.stream * apart
    full, rest = divmod(asked.clusters, asked.slots)
    all_us = fit.call_us + full * _overlapped(tile_us, asked.slots * stream_us, speed.overlap)
    if rest:
        all_us += _overlapped(tile_us, rest * stream_us, speed.overlap)
    waves = full + (rest > 0)
    return Cost(all_us=all_us, multiply_us=waves * tile_us, stream_us=asked.clusters * stream_us)


def predict(problem: Problem, config: KernelConfig, fit: Fit, num_sms: int) -> Candidate:
    """Return what `config` would take for `problem` on `num_sms` SMs."""
    asked = work(problem, config, num_sms)
    found = cost(asked, speed_of(config, fit), fit)
    computed = asked.clusters * config.cluster.size * config.tile.m * config.tile.n
    return Candidate(
        config=config,
        cost=found.all_us,
        padding_ratio=computed / (max(1, problem.m) * problem.n),
        waves=math.ceil(asked.clusters / asked.slots),
        traffic_bytes=asked.crossing,
        limiter="multiply" if found.multiply_us > found.stream_us else "stream",
    )


def _apart(problem: Problem, pair: int) -> float:
    """Return what part of the pairs along M have tiles of different groups."""
    if problem.layout is not Layout.CONTIGUOUS or pair == 1:
        return 0.0
    blocks = max(1.0, problem.m / GROUP_ALIGNMENT)
    return min(1.0, used_groups(problem) / blocks)


def speed_of(config: KernelConfig, fit: Fit) -> Speed:
    """Return how fast its tile is; of one that was not measured by what it multiplies."""
    tile, cluster = config.tile, config.cluster
    schedule = config.schedule
    key = (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)
    is_wide = config.operands.a_dtype is DType.BF16
    speeds = fit.bf16_speeds if is_wide else fit.speeds
    if key in speeds:
        return speeds[key]
    return unmeasured(tile.m, tile.n, fit)


def unmeasured(rows: int, columns: int, fit: Fit) -> Speed:
    """Return how fast a tile of so many rows and columns may be that nobody measured."""
    flop = 2 * rows * columns * _K_BYTES  # bf16 has half as many k in them, at half the rate
    return Speed(
        k_block_us=flop / fit.flop_per_us,
        tile_us=0.6,
        skipped=0.5,
        stream=1.0,
        throttled=0.15,
        missed=0.0,
        overlap=fit.overlap,
    )


def _bytes_of_k(problem: Problem, config: KernelConfig) -> float:
    """Return the bytes that a cluster loads for each step along K: a and b, shared where it is."""
    tile, cluster, types = config.tile, config.cluster, problem.operands
    of_a, of_b = tile.m * cluster.m * types.a_dtype.bits, tile.n * cluster.n * types.b_dtype.bits
    return (of_a + of_b) / 8


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
