# SPDX-License-Identifier: Apache-2.0
"""
The cost model of kernels for prepacked weights: an estimate of the time of a call, in microseconds.

As in `jitgen.targets.sm_90a.cost`, a call takes whole waves of tiles. The time of a tile is the
longer of two, plus a small part of the other: decoding and multiplying its k-blocks, and loading
them at its share of memory's rate. Decoding takes the same time for one token as for eight. The
table has the times by the rows of the WGMMAs; a tile uses the narrowest WGMMAs that hold its
tokens.

For contiguous rows, tiles that only contain padding are not counted, because no CTA computes them,
and the last tile of a group counts as narrow as its rows if padding follows these. The rows of a
group's last block are not known when a kernel is chosen: the time of a call is the mean over
several numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jitgen.config import Layout
from jitgen.config.config import BLayout, DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.config.prepacked import PrepackedFormat
from jitgen.targets.fp4_space import format_of
from jitgen.targets.gemm import sizes
from jitgen.targets.protocol import Candidate, Device
from jitgen.targets.sm_90a.cost import FILL_BYTES_PER_US
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.fp4 import DEPTH
from jitgen.targets.sm_90a.fp4_tiles import (
    TALL_ROWS,
    block_bytes,
    is_tall,
    narrowest_box,
    partials,
    width_for,
)

RowDistribution = tuple[tuple[float, float], ...]
"""Numbers of valid rows at the start of a tile, each with its frequency."""

CALL_US = 8.0
"""Time of a call in addition to its waves: launch, table of tiles, first loads, a last tile."""

TILE_US = 1.5
"""Time to start and end a tile that does not overlap other work."""

EXCHANGE_US = 0.6
"""Time that the exchange of sums adds to a tile with split K, in FP8 kernels with 64 rows."""

DRAM_BYTES_PER_US = 4.68e6
"""Rate at which the waves of a long call read."""

OVERLAP = 6.3
"""Exponent of the mean of the two that overlap; see `jitgen.targets.sm_90a.devices.Fit`."""

WARPGROUPS = 0.6
"""
Four warpgroups do twice the work of two in 2**0.6 times the time: 139 us instead of 185 for the
same work; three take 162.
"""

BLOCK128 = 1.05
"""
Factor of a k-block's time where scales of a change along K: 1 % more for a call of 8 tokens, 8 %
for one of 64.
"""

LAST_ROWS = {"alone": (8, 16, 32, 64), "behind others": (16, 48, 80, 112)}
"""
Assumed numbers of rows in a contiguous group's last block, all equally likely, because they are not
known when a kernel is chosen: few if it is the group's only block, as in decoding, and any number
if it follows other blocks. The mean over several numbers avoids choices that are best for one
number and bad for the others.
"""

K_BLOCK_US = {
    (BLayout.EXACT1, 8): (0.368, 4),
    (BLayout.EXACT1, 16): (0.418, 4),
    (BLayout.EXACT1, 32): (0.548, 4),
    (BLayout.EXACT1, 64): (0.473, 2),
    (BLayout.FOLDED1, 8): (0.387, 4),
    (BLayout.FOLDED1, 16): (0.414, 4),
    (BLayout.FOLDED1, 32): (0.495, 4),
    (BLayout.FOLDED1, 64): (0.735, 4),
    (BLayout.FOLDED1, 128): (0.877, 3),
    (BLayout.WIDE1, 8): (0.511, 4),
    (BLayout.WIDE1, 16): (0.629, 4),
    (BLayout.WIDE1, 32): (0.658, 4),
    (BLayout.WIDE1, 64): (0.903, 4),
    (BLayout.WIDE1, 128): (1.028, 3),
}
"""
Microseconds of a k-block of a tile with so many rows of a while all SMs are at work, and the math
warpgroups of it. With the constants above fitted to 61 times of an H200 (2026-11-22, a prototype of
these kernels; 32 groups of 1 to 128 rows, N x K from 2880 x 2880 to 4096 x 7168, L2 cold): 2.4 %
off on average (root mean square), 6.7 % at most. Two rows of a for each token were fitted alike.
"""

TALL_US, TALL_ROW_US, TALL_TILE_US = 0.22, 0.00287, 4.0
"""
Microseconds of a k-block of 128 columns in a tile of more than 128 tokens: those that it takes in
any case, and those of each row that WGMMAs take; and those of the tile, as `TILE_US`. Read off 72
times of two H200s (2026-11-29; 32 groups of 32 to 2,048 rows, N x K of 4096 x 7168, 5760 x 2880 and
7168 x 2048).
"""

UNEVEN = 1.15
"""
Factor of a call's time if groups have more than `TALL_ROWS` rows, and not the same, and k-blocks
have one partial sum: CTAs get tiles of different rows in turn, and end apart. 20 times of tall
tiles and of those of 128 tokens on two H200s (2026-11-29; 256, 512 and 768 rows +-40 %) were 1.03
to 1.38 of those predicted without it, and those of even groups 0.9 to 1.1. It decides from how many
rows on weights are unpacked first.
"""

LIKE = {
    (PrepackedFormat.INT4_32, BLayout.EXACT1): (BLayout.EXACT1, 1.1),
    (PrepackedFormat.INT4_32, BLayout.WIDE1): (BLayout.WIDE1, 0.8),
    (PrepackedFormat.INT4_128, BLayout.EXACT1): (BLayout.FOLDED1, 0.85),
    (PrepackedFormat.INT4_128, BLayout.WIDE1): (BLayout.WIDE1, 0.75),
    (PrepackedFormat.MXFP8, BLayout.EXACT1): (BLayout.EXACT1, 0.8),
    (PrepackedFormat.MXFP8, BLayout.WIDE1): (BLayout.WIDE1, 1.1),
    (PrepackedFormat.NVFP4, BLayout.EXACT1): (BLayout.EXACT1, 1.6),
    (PrepackedFormat.NVFP4, BLayout.WIDE1): (BLayout.WIDE1, 1.05),
}
"""
The layout of MXFP4 weights that k-blocks of other formats are like, and how much longer they take.
Estimated from the instructions of a k-block that the compiler makes (wide1: int4 151 and 137, nvfp4
199, mxfp8 209, mxfp4 192), and for nvfp4 to e4m3 from twice as many WGMMAs and sums: nothing was
measured.
"""


class _Call(NamedTuple):
    """
    Predicted time of a call with one distribution of rows.

    Attributes:
        us: Time of the call in microseconds.
        tiles: Number of tiles that have rows.
        waves: Number of waves of tiles.
        is_slow: Whether its waves wait for products, and not for memory.
    """

    us: float
    tiles: float
    waves: int
    is_slow: bool


def predict(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
    calls = [
        _call(problem, config, device, num_sms, distribution)
        for distribution in _row_distributions(problem)
    ]
    tiles = sum(call.tiles for call in calls) / len(calls)
    return Candidate(
        config=config,
        # The mean of the logarithms: the ratio of two times counts, not their difference.
        cost=math.prod(call.us for call in calls) ** (1 / len(calls)),
        padding_ratio=tiles * _outputs(config) / (max(1, problem.m) * problem.n),
        waves=max(call.waves for call in calls),
        traffic_bytes=_traffic(problem),
        limiter="multiply" if calls[-1].is_slow else "stream",
    )


def _call(
    problem: GroupedGemmProblem,
    config: GroupedGemmConfig,
    device: Device,
    num_sms: int,
    distribution: RowDistribution,
) -> _Call:
    split_k, sharing = config.schedule.split_k, config.cluster.size
    slots = max(1, num_sms // (split_k * sharing))
    tiles, k_block_us = _tiles(config, distribution)
    tiles *= -(-problem.n // (config.tile.n * sharing))
    tile_us = -(-problem.k // DEPTH) / split_k * k_block_us
    tile_us += TALL_TILE_US if is_tall(config) else TILE_US
    if split_k > 1:
        tile_us += EXCHANGE_US
    tile_us *= H200.clock_mhz / device.clock_mhz
    rate = DRAM_BYTES_PER_US * device.dram_gbps / H200.dram_gbps
    stream_us = _traffic(problem) / tiles / rate
    full, rest = divmod(tiles, slots)
    us = CALL_US + full * _overlapped(tile_us, slots * stream_us)
    if rest:
        us += _overlapped(tile_us, rest * stream_us)
    if problem.rows_per_group > TALL_ROWS and len(distribution) > 1 and partials(config) == 1:
        us *= UNEVEN
    waves = int(full) + (rest > 0)
    return _Call(us, tiles, waves, is_slow=waves * tile_us > tiles * stream_us)


def _outputs(config: GroupedGemmConfig) -> int:
    """Return the outputs of a tile, or of those that the CTAs of a cluster compute at once."""
    return config.tile.m * config.tile.n * config.cluster.size


def _row_distributions(problem: GroupedGemmProblem) -> tuple[RowDistribution, ...]:
    """Return equally likely distributions of rows."""
    if problem.layout is not Layout.CONTIGUOUS:
        each = sizes(problem)
        return (tuple((rows, problem.groups / len(each)) for rows in each),)
    blocks = max(1, problem.m // GROUP_ALIGNMENT)
    last = min(problem.groups, blocks)
    others = (float(GROUP_ALIGNMENT), blocks - last)
    kind = "alone" if blocks == last else "behind others"
    return tuple(((float(rows), last), others) for rows in LAST_ROWS[kind])


def _tiles(config: GroupedGemmConfig, distribution: RowDistribution) -> tuple[float, float]:
    """Return the number of tiles along M with rows, and the mean time of their k-blocks."""
    tokens, count, us = config.tile.m, 0.0, 0.0
    for rows, times in distribution:
        whole, rest = divmod(rows, tokens)
        count += times * (whole + (rest > 0))
        us += times * whole * _k_block_us(config, tokens)
        us += times * (rest > 0) * _k_block_us(config, rest)
    return count, us / count


def _k_block_us(config: GroupedGemmConfig, tokens: float) -> float:
    """Return the time of a k-block of a tile with `tokens` tokens of a group."""
    tile, types = config.tile, config.operands
    parts = 2 if types.a_dtype is DType.E4M3X2 else 1
    rows = width_for(config, tokens * parts)
    form = format_of(types)
    like, times = LIKE.get((form, types.b_layout), (types.b_layout, 1.0))
    if is_tall(config):
        us, warpgroups = TALL_US + TALL_ROW_US * rows, 2
    else:
        us, warpgroups = K_BLOCK_US[like, rows]
    us *= times
    if types.a_scale_granularity is ScaleGranularity.BLOCK128:
        us *= BLOCK128
    us *= math.pow(tile.n / 64 / warpgroups, WARPGROUPS)
    loaded = _loaded_bytes(config, max(rows, narrowest_box(config)) / parts)
    return max(us, loaded * H200.num_sms / FILL_BYTES_PER_US)


def _loaded_bytes(config: GroupedGemmConfig, tokens: float) -> float:
    """Return the bytes that a k-block of a tile loads from L2, with `tokens` rows of a."""
    of_a = tokens * DEPTH * config.operands.a_dtype.bits / 8 / config.cluster.size
    return of_a + config.tile.n / 64 * block_bytes(config)


def _traffic(problem: GroupedGemmProblem) -> int:
    """Return the bytes of a, used b and out, each once: the least traffic of DRAM."""
    types = problem.operands
    blocks = problem.used_groups * -(-problem.n // 64) * -(-problem.k // DEPTH)
    of_row = problem.k * types.a_dtype.bits + problem.n * types.out_dtype.bits
    return blocks * 4 * format_of(types).facts.block_words + problem.m * of_row // 8


def _overlapped(one: float, other: float) -> float:
    """Return the time of two activities that overlap: the longer one, and a part of the other."""
    return float((one**OVERLAP + other**OVERLAP) ** (1 / OVERLAP))
