# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds.

A persistent GPU kernel is done when its busiest CTA is, so a call takes whole waves of tiles. Each
takes as long as the slowest of three things, and a little of the others that does not overlap:

    multiply   k-blocks x the time of one, promotion included, and what starts and ends a tile; it
               shrinks where a group lacks rows
    fill       what its tiles read from L2 at once
    stream     the wave's share of the bytes that cross DRAM

Padding shows in the number of tiles, but where those without rows are not dealt; rows that are left
out in the time of a k-block, as do the last rows of groups where operands are swapped for them. A
last wave of few tiles fills and streams little and multiplies as long as any. How the rows are
dealt is not known when a kernel is chosen, and with few groups it decides whether there is one more
wave: a call takes the mean of two distributions. The constants are the device's, fitted to
measurements.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.targets.protocol import Candidate
from jitgen.targets.sm_90a.boxes import has_list
from jitgen.targets.sm_90a.devices import Fit, Speed
from jitgen.targets.sm_90a.tails import extra_m, tail_m

_K_BYTES = 128
"""Bytes of a row of an operand in one k-block."""

_LEAST_US, _CLOCKED = 0.12, 0.64
"""
A k-block of a tile that was not measured: what it takes at any size, and the part of the time at
`Fit.flop_per_us`, which is sustained, at the clock of a short call. Read off those that were.
"""

FILL_BYTES_PER_US = 7.5e6
"""Rate at which L2 fed all SMs of an H200 in the largest cases, by its counters."""

SKEW = 0.5
"""
Standard deviation of the logarithm of a group's rows where they are uneven: of 0, 0.3, 0.5, 0.8, 1
and 1.5 the one that choices lose least with over 80 distributions, from the same rows to one group
that has all.
"""

_MOST_PARTS = 16
"""Number of groups that represent all if there are more."""

HALF_EMPTY = 0.5
"""Part of contiguous groups whose last block has no more than 64 rows: a call cannot know it."""

LONG_ROWS, OTHER_STRIPS = 4096, 0.02
"""
Rows of a contiguous group from which tiles of 256x128 in pairs along N are faster in strips of
eight tiles along M than in strips of four, and by what part the others are slower: 0 to 10 % with
4,096 rows and more in five runs on H200s, while strips of eight are up to 6 % slower with 2,048.
"""


class RowDistribution(NamedTuple):
    """
    A way in which the rows of a call may be distributed over groups.

    Attributes:
        rows: Rows of some groups, padding of contiguous ones included; groups without rows are left
            out.
        times: Number of groups that each entry of `rows` represents.
        owned: Part of the rows that lie in blocks of 64 rows which are not padding alone.
    """

    rows: tuple[float, ...]
    times: float
    owned: float = 1.0


def row_distributions(problem: GroupedGemmProblem) -> tuple[RowDistribution, ...]:
    """
    Return equally likely distributions of rows: even over all groups, and uneven with `SKEW`.

    Of up to 16 groups each has rows of its own, so that there are whole tiles. One group has all
    rows, and contiguous rows have as many blocks however groups share them.
    """
    groups = problem.groups
    if problem.layout is Layout.CONTIGUOUS:
        blocks = max(1, problem.m // GROUP_ALIGNMENT)
        used = min(groups, blocks)
        owned = 1 - HALF_EMPTY / 2 * used / blocks
        return (RowDistribution((blocks / used * GROUP_ALIGNMENT,), used, owned),)
    return _of_mean(groups, problem.rows_per_group)


@lru_cache(maxsize=4096)  # all candidates of a call have the same
def _of_mean(groups: int, mean: int) -> tuple[RowDistribution, ...]:
    even = RowDistribution((float(mean),), groups)
    if groups == 1:
        return (even,)
    normal, count = NormalDist(), min(groups, _MOST_PARTS)
    parts = [math.exp(SKEW * normal.inv_cdf((place + 0.5) / count)) for place in range(count)]
    share = mean * count / sum(parts)
    return even, RowDistribution(tuple(max(1.0, part * share) for part in parts), groups / count)


class _Tiles(NamedTuple):
    """
    The tiles of a distribution along M.

    Attributes:
        number: Number of tiles.
        filled: Part of the tiles' rows that is in blocks of 64 with rows of a group; above 1 with
            extra rows.
        passes: How often a tile goes over K: twice where it meets two groups.
        apart: Part of the pairs along M whose tiles are of different groups.
        tails: Part of the tiles' rows that is in blocks whose rows are multiplied with swapped
            operands.
        tail_rows: The part of these rows, rounded up to 8 in each block.
    """

    number: float
    filled: float
    passes: float = 1.0
    apart: float = 0.0
    tails: float = 0.0
    tail_rows: float = 0.0


def _tiles(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, distribution: RowDistribution
) -> _Tiles:
    height = config.tile.m
    if problem.layout is Layout.CONTIGUOUS:
        blocks = sum(distribution.rows) * distribution.times / GROUP_ALIGNMENT
        used = len(distribution.rows) * distribution.times
        apart = (used - 1) / (blocks - 1) if blocks > 1 else 0.0
        if height <= GROUP_ALIGNMENT:
            count = blocks * GROUP_ALIGNMENT / height
            if has_list(config):  # the others are not dealt
                return _Tiles(count * distribution.owned, 1.0, apart=apart)
            return _Tiles(count, distribution.owned, apart=apart)
        # Such a tile begins at any block and not where a group does.
        count, passes = float(math.ceil(blocks * GROUP_ALIGNMENT / height)), 1 + apart
        filled = blocks * GROUP_ALIGNMENT * distribution.owned / (count * passes * height)
        return _Tiles(count, min(1.0, filled), passes, apart)
    return _of_rows(distribution, height, tail_m(config), extra_m(config))


@lru_cache(maxsize=4096)
def _of_rows(distribution: RowDistribution, height: int, most: int, extra: int) -> _Tiles:
    """
    Return the tiles of `height` rows, a group's last one with up to `extra` rows more, whose tails
    of up to `most` rows are swapped. Tails of groups without a whole block were not measured, and
    count as blocks. Extra rows count as a tail, in a tile that is more than full.
    """
    count = sum(-(-max(1.0, rows - extra) // height) for rows in distribution.rows)
    parts = sum(-(-rows // 64) for rows in distribution.rows)
    tails = [rows % 64 for rows in distribution.rows if rows > 64 and 0 < rows % 64 <= most]
    all_rows = count * height
    return _Tiles(
        count * distribution.times,
        parts * 64 / all_rows,
        tails=len(tails) * 64 / all_rows,
        tail_rows=sum(-(-rows // 8) * 8 for rows in tails) / all_rows,
    )


class Work(NamedTuple):
    """
    Work of a kernel for a problem, independent of the device.

    Attributes:
        k_blocks: K-blocks of a tile.
        filled: Part of the tiles that has rows, in blocks of 64; above 1 with extra rows.
        clusters: Tiles, counted by clusters.
        slots: Clusters at work at a time.
        crossing: Bytes that cross DRAM at least.
        loaded: Bytes of operands that all clusters load.
        apart: Part of the pairs along M whose tiles are of different groups.
        tails: Part of the tiles that are blocks whose rows are multiplied with swapped operands.
        tail_rows: The part of these rows, rounded up to 8 in each block.
    """

    k_blocks: float
    filled: float
    clusters: float
    slots: int
    crossing: float
    loaded: float
    apart: float
    tails: float = 0.0
    tail_rows: float = 0.0


class Cost(NamedTuple):
    """
    Predicted times of a call, in microseconds.

    Attributes:
        all_us: Time of the call.
        multiply_us: Time that its waves would take if they only multiplied.
        stream_us: Time that its waves would take if they only read.
    """

    all_us: float
    multiply_us: float
    stream_us: float


def work(
    problem: GroupedGemmProblem,
    config: GroupedGemmConfig,
    num_sms: int,
    distribution: RowDistribution,
) -> Work:
    """Return the work of `config` for `problem` on `num_sms` SMs, rows as in `distribution`."""
    tile, cluster, types = config.tile, config.cluster, problem.operands
    tiles = _tiles(problem, config, distribution)
    columns = -(-problem.n // tile.n)
    is_whole = problem.layout is Layout.CONTIGUOUS
    if is_whole:
        clusters = math.ceil(tiles.number / cluster.m) * float(-(-columns // cluster.n))
    else:
        clusters = tiles.number * -(-columns // cluster.size)  # whichever side of a pair is along M
    apart = tiles.apart if cluster.m > 1 else 0.0
    # Blocks of a that a ragged or masked group does not have are not loaded.
    of_a = tile.m * cluster.m * types.a_dtype.bits * (1.0 if is_whole else tiles.filled)
    of_b = tile.n * cluster.n * types.b_dtype.bits * (1 + apart)
    ctas = cluster.size * config.schedule.split_k
    return Work(
        k_blocks=-(-problem.k // tile.k) / config.schedule.split_k * tiles.passes,
        filled=tiles.filled,
        clusters=clusters,
        slots=max(1, num_sms // ctas),
        crossing=_crossing(problem, len(distribution.rows) * distribution.times),
        loaded=clusters * problem.k * (of_a + of_b) / 8,
        apart=apart,
        tails=tiles.tails,
        tail_rows=tiles.tail_rows,
    )


def _crossing(problem: GroupedGemmProblem, used: float) -> float:
    """Return the bytes of a, the b of `used` groups and out, each once: L2 cannot spare DRAM."""
    types, columns = problem.operands, used * problem.n
    bits = problem.k * (problem.m * types.a_dtype.bits + columns * types.b_dtype.bits)
    return (bits + problem.m * problem.n * types.out_dtype.bits) / 8


def cost(asked: Work, speed: Speed, fit: Fit) -> Cost:
    """Return the predicted times of the work `asked` with a tile of this `speed`."""
    filled = asked.filled - (1 - fit.tail) * asked.tails + fit.tail_row * asked.tail_rows
    k_block_us = speed.k_block_us * (1 - speed.skipped * (1 - filled))
    tile_us = speed.tile_us + asked.k_blocks * k_block_us * (1 + fit.unshared * asked.apart)
    doublings = math.log2(max(1.0, asked.clusters / asked.slots * tile_us / fit.cold_us))
    tile_us *= 1 + speed.throttled * min(1.0, doublings / fit.doublings)
    fill_us = asked.loaded / asked.clusters / fit.fill_bytes_per_us
    crossing = asked.crossing + speed.missed * max(0.0, asked.loaded - asked.crossing)
    stream_us = crossing / asked.clusters / fit.dram_bytes_per_us / speed.stream
    full, rest = divmod(asked.clusters, asked.slots)
    all_us = fit.call_us
    for waves, count in ((full, asked.slots), (1 if rest else 0, rest)):
        if waves:
            each = (tile_us, count * fill_us, count * stream_us)
            all_us += waves * _overlapped(speed.overlap, *each)
    waves = full + (rest > 0)
    return Cost(all_us=all_us, multiply_us=waves * tile_us, stream_us=asked.clusters * stream_us)


def predict(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, fit: Fit, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs."""
    if fit.bf16 and config.operands.a_dtype in {DType.BF16, DType.F16}:
        fit = fit.bf16
    speed = speed_of(config, fit)
    asked = [
        work(problem, config, num_sms, distribution) for distribution in row_distributions(problem)
    ]
    found = [cost(each, speed, fit) for each in asked]
    clusters = sum(each.clusters for each in asked) / len(asked)
    computed = clusters * config.cluster.size * config.tile.m * config.tile.n
    strips = _strips(problem, config)
    return Candidate(
        config=config,
        # The mean of the logarithms: the ratio of two times counts, not their difference.
        cost=math.prod(each.all_us for each in found) ** (1 / len(found)) * strips,
        padding_ratio=computed / (max(1, problem.m) * problem.n),
        waves=math.ceil(clusters / asked[0].slots),
        traffic_bytes=int(asked[0].crossing),
        limiter="multiply" if found[0].multiply_us > found[0].stream_us else "stream",
    )


def _strips(problem: GroupedGemmProblem, config: GroupedGemmConfig) -> float:
    """
    Return the factor of the time for the height of strips along M, by which two candidates of the
    same tile differ.
    """
    if problem.layout is not Layout.CONTIGUOUS or (config.tile.m, config.cluster.n) != (256, 2):
        return 1.0
    is_high = config.schedule.raster > 4
    return 1.0 if is_high == (problem.rows_per_group >= LONG_ROWS) else 1 + OTHER_STRIPS


def speed_of(config: GroupedGemmConfig, fit: Fit) -> Speed:
    """
    Return the measured speed of a config's tile; a tile that was not measured gets an estimate by
    its size.
    """
    tile, cluster = config.tile, config.cluster
    schedule = config.schedule
    key = (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)
    if key in fit.speeds:
        return fit.speeds[key]
    flop = 2 * tile.m * tile.n * _K_BYTES  # bf16 has half as many k in them, at half the rate
    return Speed(
        k_block_us=_LEAST_US + _CLOCKED * flop / fit.flop_per_us,
        tile_us=0.9,
        skipped=0.5,
        stream=1.0,
        throttled=0.1,
        missed=0.05,
        overlap=3.7,
    )


def _overlapped(exponent: float, *times: float) -> float:
    """
    Return the time of activities that overlap: with `exponent` 1 the sum of `times`, and the larger
    it is, the closer to the longest of them.
    """
    longest = max(times)
    return float(longest * sum((each / longest) ** exponent for each in times) ** (1 / exponent))
