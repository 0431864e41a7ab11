# SPDX-License-Identifier: Apache-2.0
"""
The rule that ranks configs: an estimate of the time of a call, in microseconds.

A persistent GPU kernel is done when its busiest CTA is, so a call takes whole waves of tiles. Each
takes as long as the slower of two things, and a little of the other that does not overlap:

    multiply   k-blocks x the time of one, and what starts and ends a tile; it includes promotion
               and the way of the operands from L2, and shrinks where a group lacks rows
    stream     the wave's share of the bytes that cross DRAM

Padding shows in the number of tiles, rows that are left out in the time of a k-block. A last wave
of few tiles streams little and multiplies as long as any. On a CPU only work counts. The constants
are fitted to measurements; each says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitgen.model import Arch, KernelConfig, Layout, Problem
from jitgen.model.dtypes import SCALE_BLOCK

NUM_SMS = 132
"""SMs of an H100 SXM, H200 and GH200; what is assumed unless the caller names a number."""

CALL_US = 3.58
"""What a call takes besides its waves: its launch, the table of tiles, the first loads."""

DRAM_BYTES_PER_US = 4.60e6
"""Rate at which the waves of a long call read."""

OVERLAP = 4.81
"""
Exponent of the mean of multiply and stream: at 1 they would add up, without bound the slower of
them would be all. At 4.8 two equal ones take 16 % longer than each.
"""

BEYOND_US = 0.0023
"""What the TMA unit takes for a row beyond the end of the tensor, each k-block."""


_THROTTLE, _COLD_US, _DOUBLINGS = 0.146, 200.0, 3
"""
The more a call multiplies, the lower the clock that 700 W allow: multiplying takes this part longer
from eight times 200 us on, and less the shorter it is.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """
    How fast one tile and cluster is.

    Attributes:
        k_block_us: One k-block of a full tile while all SMs are at work, in microseconds.
        tile_us: What starts and ends a tile, as far as nothing hides it.
        skipped: Share of a k-block's time that is saved where all rows are left out.
        stream: Rate of reading as a part of DRAM_BYTES_PER_US.
    """

    k_block_us: float
    tile_us: float
    skipped: float
    stream: float


def _speed(k_block_us: float, tile_us: float, skipped: float, stream: float) -> Speed:
    return Speed(k_block_us=k_block_us, tile_us=tile_us, skipped=skipped, stream=stream)


_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.208, 0.14, 0.00, 1.09),
    (64, 64, 1, 1, True, 2): _speed(0.187, 0.72, 0.00, 1.15),
    (64, 128, 1, 1, True, 1): _speed(0.373, 0.18, 0.00, 1.09),
    (64, 128, 1, 2, True, 1): _speed(0.294, 0.33, 0.00, 1.36),
    (128, 96, 1, 2, True, 1): _speed(0.350, 0.69, 0.52, 1.01),
    (128, 128, 1, 1, True, 2): _speed(0.343, 1.25, 0.02, 0.87),
    (128, 128, 1, 2, False, 1): _speed(0.350, 0.59, 0.21, 0.91),
    (128, 128, 1, 2, True, 1): _speed(0.445, 0.40, 0.98, 1.13),
    (128, 128, 2, 1, False, 1): _speed(0.414, 0.67, 0.01, 0.99),
    (128, 128, 2, 1, True, 1): _speed(0.444, 0.86, 0.55, 0.94),
    (128, 160, 2, 1, False, 1): _speed(0.526, 1.06, 0.51, 0.91),
    (128, 192, 2, 1, False, 1): _speed(0.574, 0.88, 0.42, 0.86),
    (256, 128, 1, 1, False, 1): _speed(0.813, 0.80, 0.61, 0.80),
}
"""
By tile, cluster, whether b is streamed, and split_k.

Fitted to 3,480 times of an H200 (2026-11-21; 300 random problems, three times the public suite and
single tokens; FP8 with block scales, L2 cold) so that choices are good, and predictions near for
kernels near the best. What choices lose to the best kernel of the menu is 1.2 % on average, 1.8 %
on problems that a fit had not seen.
"""

_FLOP_PER_US = 8_192 * 1_400 * 0.75
"""For tiles that no menu has: operations of an SM at 1.4 GHz, three quarters of its peak."""

_CPU_MULTIPLY_US = 2.2e-3
"""One k of a block of 4 x 16 partial sums, on one core of a cloud x86-64 server with AVX-512."""

_CPU_DECODE_US = 5e-4
"""One FP8 operand to float32 and into its panel, on the same core."""

_SPREAD = tuple((2 * i + 9) / 16 for i in range(8))
"""Where the rows of a group may lie, in parts of their mean: from one half to three halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """
    One config and what the rule expects of it.

    Attributes:
        config: The config.
        cost: Predicted time of the call in microseconds.
        waste: Rows computed over rows needed; 1.0 pads nothing. Columns beyond N count as well.
        waves: Tiles that the busiest CTA computes.
        traffic_bytes: Bytes that cross DRAM.
        bound: The slower of ``multiply`` and ``stream``.
    """

    config: KernelConfig
    cost: float
    waste: float
    waves: int
    traffic_bytes: int
    bound: str


def rank(
    problem: Problem, configs: tuple[KernelConfig, ...], arch: Arch, num_sms: int = NUM_SMS
) -> tuple[Candidate, ...]:
    """Return the candidates for `problem`, best first; equals stay in the order of `configs`."""
    if arch is Arch.CPU:
        found = [_on_cpu(problem, config) for config in configs]
    else:
        found = [_on_gpu(problem, config, num_sms) for config in configs]
    return tuple(sorted(found, key=lambda candidate: candidate.cost))


def _sizes(problem: Problem) -> tuple[float, ...]:
    """
    Return rows that a group may have, all equally likely.

    Routing is never even, so each of many ragged or masked groups has from half the mean to one and
    a half; a single one has all rows. The rows of a contiguous problem are counted with their
    padding: each group has whole blocks already.
    """
    mean = problem.rows_per_group
    if problem.layout is Layout.CONTIGUOUS or problem.groups == 1:
        return (float(mean),)
    width = 1 - 1 / problem.groups
    return tuple(mean * (1 + width * (part - 1)) for part in _SPREAD)


def _tiles(problem: Problem, height: int) -> tuple[float, float]:
    """Return how many tiles of `height` rows all groups have, and the part of them with rows."""
    # A contiguous group begins at any block of 128 rows and its tiles at any, too.
    unit = SCALE_BLOCK if problem.layout is Layout.CONTIGUOUS else 1
    count = blocks = 0.0
    sizes = _sizes(problem)
    for rows in sizes:
        count += max(1, -(-max(rows, unit) // height))
        blocks += -(-max(rows, unit) // 64)
    groups = problem.groups / len(sizes)
    return count * groups, min(1.0, blocks * 64 / (count * height))


def _on_gpu(problem: Problem, config: KernelConfig, num_sms: int) -> Candidate:
    tile, cluster = config.tile, config.cluster
    speed = _speed_of(config)
    tiles, filled = _tiles(problem, tile.m)
    columns = -(-problem.n // tile.n)
    if problem.layout is Layout.CONTIGUOUS:
        clusters = -(-tiles // cluster.m) * -(-columns // cluster.n)
    else:
        clusters = tiles * -(-columns // cluster.size)  # whichever side of a pair is along M
    ctas = cluster.size * config.schedule.split_k
    slots = max(1, num_sms // ctas)
    k_blocks = -(-problem.k // tile.k) / config.schedule.split_k
    tile_us = k_blocks * (
        speed.k_block_us * (1 - speed.skipped * (1 - filled)) + BEYOND_US * _beyond(problem, tile.m)
    )
    tile_us += speed.tile_us
    doublings = math.log2(max(1.0, clusters / slots * tile_us / _COLD_US))
    tile_us *= 1 + _THROTTLE * min(1.0, doublings / _DOUBLINGS)

    traffic = _traffic(problem)
    stream_us = traffic / clusters / DRAM_BYTES_PER_US / speed.stream
    full, rest = divmod(clusters, slots)
    cost = CALL_US + full * _overlapped(tile_us, slots * stream_us)
    if rest:
        cost += _overlapped(tile_us, rest * stream_us)
    waves = int(full) + (rest > 0)
    computed = clusters * cluster.size * tile.m * tile.n
    return Candidate(
        config=config,
        cost=cost,
        waste=computed / (max(1, problem.m) * problem.n),
        waves=waves,
        traffic_bytes=traffic,
        bound="multiply" if waves * tile_us > clusters * stream_us else "stream",
    )


def _speed_of(config: KernelConfig) -> Speed:
    tile, cluster = config.tile, config.cluster
    schedule = config.schedule
    key = (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)
    if key in _SPEEDS:
        return _SPEEDS[key]
    flop = 2 * tile.m * tile.n * SCALE_BLOCK
    return Speed(k_block_us=flop / _FLOP_PER_US, tile_us=0.6, skipped=0.5, stream=1.0)


def _overlapped(one: float, other: float) -> float:
    """Return the time of two things that overlap."""
    return float((one**OVERLAP + other**OVERLAP) ** (1 / OVERLAP))


def _beyond(problem: Problem, height: int) -> float:
    """
    Return how many rows beyond the end of a the loads of a ragged tile cover, on average.

    Tiles that a group does not fill are loaded in parts of 64 rows, short ones of 16.
    """
    if problem.layout is not Layout.RAGGED:
        return 0.0
    part, rows = 16 if height == 64 else 64, max(1, problem.m)
    return part - rows / 2 if part > rows else part * part / (2 * rows)


def _traffic(problem: Problem) -> int:
    """Return the bytes of a, b and out, each once: what L2 cannot spare DRAM."""
    operands = problem.m * problem.k + problem.groups * problem.n * problem.k
    return (
        operands * problem.a_dtype.bits // 8 + problem.m * problem.n * problem.out_dtype.bits // 8
    )


def _on_cpu(problem: Problem, config: KernelConfig) -> Candidate:
    """
    Count what one thread does: b is decoded for every tile of rows, a for every tile of columns.

    Rows are computed in blocks of four, so a tall tile wastes nothing.
    """
    tile = config.tile
    tiles, blocks = (_whole(problem, height) for height in (tile.m, 4))
    columns = -(-problem.n // tile.n)
    decoded = tiles * problem.n * problem.k + problem.m * problem.k * columns
    multiplied = blocks * -(-problem.n // 16) * problem.k
    return Candidate(
        config=config,
        cost=decoded * _CPU_DECODE_US + multiplied * _CPU_MULTIPLY_US,
        waste=4 * blocks / max(1, problem.m),
        waves=max(1, int(tiles * columns)),
        traffic_bytes=_traffic(problem),
        bound="multiply",
    )


def _whole(problem: Problem, height: int) -> float:
    """Return how many blocks of `height` rows all groups have."""
    sizes = _sizes(problem)
    return problem.groups / len(sizes) * sum(-(-rows // height) for rows in sizes)
