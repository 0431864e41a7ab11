# SPDX-License-Identifier: Apache-2.0
"""
The rule that ranks configs: an estimate of the time of a call, in microseconds.

On a GPU a call takes as long as the slowest of three things, and a little of the others that does
not overlap:

    multiply   waves x the tensor cores' time for one tile
    fetch      waves x the time to bring one tile's operands from L2 to shared memory
    stream     all bytes that cross DRAM, stretched by the CTAs that idle in the last wave

Padding shows in `multiply` and in the waves, because tiles are counted, not rows; waves are whole,
because a persistent kernel is done when its busiest CTA is. On a CPU only work counts. The
constants are measured; each says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitgen.model import Arch, KernelConfig, Layout, Problem

NUM_SMS = 132
"""SMs of an H100 SXM, H200 and GH200; what is assumed unless the caller names a number."""

CLOCK_MHZ = 1_400.0
"""SM clock of an H200 that multiplies FP8 for long: 1.30 to 1.41 GHz at its 700 W limit."""

FLOP_PER_CYCLE = 8_192
"""Dense FP8 multiply-adds of one sm_90 SM and cycle, times two."""

L2_BYTES_PER_CYCLE = 42.0
"""Bytes that one SM receives from L2 in a cycle when all do: about 5.5 KB for an H100's 132."""

DRAM_BYTES_PER_US = 4.2e6
"""Device-to-device copy rate of an H200, bytes read and written together."""

OVERLAP_LOSS = 0.05
"""Share of the two faster things that adds to the slowest one; also what decides between equals."""

_UTILISATION = {
    (256, 128, 2, 1): 0.88,
    (128, 192, 2, 1): 0.92,
    (128, 192, 1, 2): 0.86,
    (128, 128, 2, 1): 0.85,
    (128, 128, 1, 2): 0.80,
    (64, 128, 1, 2): 0.55,
    (64, 64, 1, 2): 0.40,
}
"""
Share of cycles that the tensor cores are busy in the steady state, by tile and cluster.

Performance counters of an H200 at 8 x 4096 rows, N=4096, K=7168; for (1, 2) and 64x128, which one
math warpgroup computes alone, scaled by the ratio of the times. 64x64 is an estimate: it is chosen
only where DRAM is the limit.
"""

_UTILISATION_ELSE = 0.7
"""An estimate for tiles that are in no menu."""

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
        cost: Predicted time of the call in microseconds, without the launch.
        waste: Rows computed over rows needed; 1.0 pads nothing. Columns beyond N count as well.
        waves: Tiles that the busiest CTA computes.
        traffic_bytes: Bytes that cross DRAM.
        bound: The slowest of ``multiply``, ``fetch`` and ``stream``.
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
        found = (_on_cpu(problem, config) for config in configs)
    else:
        usable = [config for config in configs if _may_stream(problem, config)]
        found = (_on_gpu(problem, config, num_sms) for config in usable)
    return tuple(sorted(found, key=lambda candidate: candidate.cost))


def _may_stream(problem: Problem, config: KernelConfig) -> bool:
    """Weights that several tiles of rows read must stay in L2: streaming cost up to 23 % there."""
    return not config.schedule.stream_b or _tiles_a_group(problem, config.tile.m) <= 1


def _rows(problem: Problem) -> Iterator[float]:
    """
    Yield rows that a group may have, all equally likely.

    Routing is never even, so a ragged or masked group has from half the mean to one and a half. The
    rows of a contiguous problem are counted with their padding: each group has whole tiles already.
    """
    mean = problem.rows_per_group
    if problem.layout is Layout.CONTIGUOUS:
        yield float(mean)
    else:
        yield from (mean * part for part in _SPREAD)


def _tiles_a_group(problem: Problem, height: int) -> float:
    """Return how many blocks of `height` rows a group has on average."""
    counts = [-(-rows // height) for rows in _rows(problem)]
    return sum(counts) / len(counts)


def _on_gpu(problem: Problem, config: KernelConfig, num_sms: int) -> Candidate:
    tile, cluster = config.tile, config.cluster
    # A cluster of two tiles of rows pads every group to both, except in the contiguous layout,
    # where the second one may belong to the next group.
    is_free = problem.layout is Layout.CONTIGUOUS
    height = tile.m if is_free else tile.m * cluster.m
    a_group = _tiles_a_group(problem, height)
    pairs = problem.groups * a_group / (cluster.m if is_free else 1)
    columns = -(-problem.n // (tile.n * cluster.n))
    clusters = pairs * columns
    slots = max(1, num_sms // cluster.size)
    waves = max(1, int(-(-clusters // slots)))

    shares_b = cluster.m if _tiles_a_group(problem, tile.m) > 1 else 1
    operand_bytes = tile.m / cluster.n + tile.n / shares_b
    out_bytes = tile.m * tile.n * 2
    fetched = operand_bytes * problem.k * problem.a_dtype.bits / 8 + out_bytes
    traffic = _traffic(problem)
    busy = _UTILISATION.get((tile.m, tile.n, cluster.m, cluster.n), _UTILISATION_ELSE)
    idle = waves * slots / clusters if clusters > slots else 1.0
    flop = 2 * tile.m * tile.n * problem.k
    times = {
        "multiply": waves * flop / FLOP_PER_CYCLE / busy / CLOCK_MHZ,
        "fetch": waves * fetched / L2_BYTES_PER_CYCLE / CLOCK_MHZ,
        "stream": traffic / DRAM_BYTES_PER_US * idle,
    }
    bound = max(times, key=lambda name: times[name])
    computed = pairs * cluster.m * tile.m * columns * cluster.n * tile.n
    return Candidate(
        config=config,
        cost=times[bound] + OVERLAP_LOSS * (sum(times.values()) - times[bound]),
        waste=computed / (max(1, problem.m) * problem.n),
        waves=waves,
        traffic_bytes=traffic,
        bound=bound,
    )


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
    tiles = problem.groups * _tiles_a_group(problem, tile.m)
    blocks = problem.groups * _tiles_a_group(problem, 4)
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
