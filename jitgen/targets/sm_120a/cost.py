# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds, from the work of an SM's units
per cycle. It was never compared with such a GPU: none of its constants was measured on one.

The time of a k-block in a CTA is the longest of three: that of its tensor cores, that of its
schedulers' instructions, and that until its sums can be added to again. The next k-block is loaded
at the same time: from L2, whose rate all SMs share, and from memory, from which the weights of each
group with rows are read once. A call takes waves of tiles, each as long as the slowest of these; in
the last wave the remaining tiles share the rates.

The number of tiles depends on the rows of each group, which are not known in advance. The model
assumes that some experts are more popular than others, and that the rows of a call are drawn with
these probabilities: of many experts with few rows each, some have none, and others twice the rows
of a tile. Also, a problem represents others with a few rows less, which may need one wave less: its
time is the mean of their times.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from jitgen.config import Layout, ScaleGranularity
from jitgen.config.config import MAX_SIZE
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.targets.protocol import Candidate, Device
from jitgen.targets.sm_120a.devices import Paper
from jitgen.targets.sm_120a.sizes import VALUES, is_block, is_unscaled, warps

_POPULARITY = (0.42, 0.58, 0.70, 0.83, 0.98, 1.15, 1.41, 1.94)
"""
Assumed: rows of experts in parts of their mean, equally likely; lognormal with a deviation of 0.5.
"""

_STANDS_FOR = (0.8, 0.9, 1.0)
"""
Rows of the problems that one problem represents, relative to its rows: this is the width of
buckets.
"""

_FEW = 64.0
"""
Mean rows up to which every number of rows is considered; above, `_QUANTILES` stand for all, since
the deviation is small.
"""

_QUANTILES = (-1.53, -0.89, -0.49, -0.16, 0.16, 0.49, 0.89, 1.53)
"""
Deviations from the mean in standard deviations, equally likely: the middles of eighths of a normal
distribution.
"""

_WRONG_HINT = 0.002
"""
Assumed: relative cost of keeping weights in L2 that only one tile reads, which displace others. It
only decides between kernels that are otherwise equal.
"""


class Work(NamedTuple):
    """
    Work of the rows of all groups.

    Attributes:
        active: Number of groups that have rows.
        down: Number of tiles along M, in all of these groups.
        readings: Number of times that the SMs together read a group's weights, over all groups.
    """

    active: float
    down: float
    readings: float


def predict(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
    each = [_call(problem, part, config, device, num_sms) for part in _STANDS_FOR]
    paper, whole = paper_of(device), each[-1]
    cost = paper.call_us + sum(call.cycles for call in each) / len(each) / device.clock_mhz
    if not config.schedule.stream_b:
        cost *= 1 + _WRONG_HINT
    computed = whole.tiles * config.tile.m * config.tile.n
    return Candidate(
        config=config,
        cost=cost,
        padding_ratio=max(1.0, computed / (max(1, problem.m) * problem.n)),
        waves=math.ceil(whole.tiles / num_sms),
        traffic_bytes=round(whole.crossing),
        limiter=whole.limiter,
    )


class Call(NamedTuple):
    """
    Predicted time and traffic of a call.

    Attributes:
        tiles: Number of tiles of all CTAs.
        cycles: Time of the call in cycles, without its fixed cost.
        crossing: Bytes between memory and L2.
        limiter: What bounds the call: ``multiply`` or ``stream``.
    """

    tiles: float
    cycles: float
    crossing: float
    limiter: str


def _call(
    problem: GroupedGemmProblem,
    part: float,
    config: GroupedGemmConfig,
    device: Device,
    num_sms: int,
) -> Call:
    """Return the predicted time and traffic of `problem` with `part` of its rows."""
    tile, paper = config.tile, paper_of(device)
    work = work_of(problem, part, config, num_sms)
    tiles = max(1.0, work.down * -(-problem.n // tile.n))
    k_tiles = -(-problem.k // tile.k)
    cycles = k_tiles * k_tile_cycles(config, paper)
    cycles += paper.tile_cycles + tile.m / 8 * paper.row_cycles
    a_row, b_row = row_bytes(config.operands, problem.k)
    loads = tile.n * b_row + tile.m * a_row
    crossing = problem.n * b_row * _readings(problem, config, device, work)
    crossing += part * problem.m * (a_row + problem.n * problem.out_dtype.bits / 8)
    l2 = paper.l2_bytes * device.num_sms
    dram = device.dram_gbps * 1e3 * paper.dram_share / device.clock_mhz

    def wave(ctas: float) -> float:
        """Return the cycles of a wave of `ctas` tiles."""
        shared = max(ctas * loads / l2, ctas * crossing / tiles / dram)
        return max(cycles, loads / paper.sm_l2_bytes, shared)

    full, rest = divmod(tiles, num_sms)
    total = full * wave(num_sms) + (wave(rest) if rest else 0.0) + paper.uneven * cycles
    is_busy = math.ceil(tiles / num_sms) * cycles > crossing / dram
    return Call(tiles, total, crossing, "multiply" if is_busy else "stream")


def k_tile_cycles(config: GroupedGemmConfig, paper: Paper) -> float:
    """Return the cycles of the multiplying warps for a tile of K."""
    tile, types = config.tile, config.operands
    flop, depth = {
        4: (paper.fp4_flop, 64),
        8: (paper.fp8_flop, 32),
        16: (paper.bf16_flop, 16),
    }[types.a_dtype.bits]
    tensor = 2 * tile.m * tile.n * tile.k / flop
    warps_m, warps_n = warps(config)
    issue = instructions(config) * warps_m * warps_n / paper.issue_slots
    return max(tensor / paper.reached, issue / paper.reached, tile.k / depth * paper.mma_latency)


def instructions(config: GroupedGemmConfig) -> float:
    """
    Return the instructions of a warp for a tile of K, within a sixth of the count in SASS.

    For each step along K: matrix instructions, one for 8 rows x 16 columns, and what is loaded and
    unpacked for its rows and columns. Besides, scales, the pipeline, and the loop.
    """
    tile, types = config.tile, config.operands
    warps_m, warps_n = warps(config)
    parts_m, parts_n = tile.m / 8 / warps_m, tile.n / 16 / warps_n
    products = parts_m * parts_n
    if is_block(config):  # sums of 128 of K are multiplied by their scales and added
        return 25 + tile.k / 32 * (products + 1.5 * parts_n + 1.5 * parts_m) + 6 * products
    if types.a_dtype is types.b_dtype:
        steps = tile.k * types.a_dtype.bits / 256  # 32 bytes of each row
        scales = 3.6 if types.scale_granularity is ScaleGranularity.NV16 else 0.0  # twice as many
        return 25 + steps * (1.75 * products + 3.4 * parts_n + 0.4 * parts_m + scales)
    if is_unscaled(config):  # two instructions for 32 of K, whose weights are looked up and scaled
        return 33 + tile.k / 32 * (2.2 * products + 2 * parts_m + 55 * parts_n)
    return 33 + tile.k / 32 * (1.9 * products + 9.4 * parts_n + 3.3 * parts_m)


def row_bytes(types: Operands, k: int) -> tuple[float, float]:
    """Return the bytes of a row of a and of b, each with its scales."""
    if types.scale_granularity is ScaleGranularity.BLOCK128:
        return k * (1 + 4 / 128), float(k)  # scales of b: a few for 128 rows
    scales = 1 / VALUES[types.scale_granularity]
    of_a = 0.0 if types.a_scale_granularity is ScaleGranularity.NONE else scales
    return k * (types.a_dtype.bits / 8 + of_a), k * (types.b_dtype.bits / 8 + scales)


def paper_of(device: Device) -> Paper:
    """Return the rates of an SM of `device`, and its fixed costs of a call."""
    paper: Paper = device.constants["grouped_gemm"]
    return paper


def _readings(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, work: Work
) -> float:
    """
    Return the number of times that groups' weights are read from memory: once for each strip of
    tiles in flight, unless L2 keeps them.
    """
    group = problem.n * row_bytes(config.operands, problem.k)[1]
    stays = group < device.l2_bytes * paper_of(device).l2_share
    return work.active if stays and not config.schedule.stream_b else work.readings


def work_of(
    problem: GroupedGemmProblem, part: float, config: GroupedGemmConfig, num_sms: int
) -> Work:
    """Return the expected work of the groups of `problem`, with `part` of its rows."""
    mean = part * problem.m / problem.groups
    height, raster = config.tile.m, config.schedule.raster
    strip = height * raster * max(1, num_sms // (-(-problem.n // config.tile.n) * raster))
    if problem.layout is Layout.CONTIGUOUS or problem.groups == 1:
        unit = GROUP_ALIGNMENT if problem.layout is Layout.CONTIGUOUS else 1
        rows, groups = max(unit, math.ceil(mean)), float(problem.groups)
        return Work(groups, groups * -(-rows // height), groups * -(-rows // strip))

    def expected(height: int) -> float:
        blocks = sum(_blocks(mean * popular, height) for popular in _POPULARITY)
        return problem.groups * blocks / len(_POPULARITY)

    return Work(expected(MAX_SIZE), expected(height), expected(strip))


@lru_cache(maxsize=16384)
def _blocks(mean: float, height: int) -> float:
    """Return the expected blocks of `height` rows of a group whose rows are Poisson."""
    if mean > _FEW:
        likely = (max(1.0, mean + z * math.sqrt(mean)) for z in _QUANTILES)
        return sum(math.ceil(rows / height) for rows in likely) / len(_QUANTILES)
    chance, expected = math.exp(-mean), 0.0
    for rows in range(1, round(mean + 8 * math.sqrt(mean) + 8)):
        chance *= mean / rows
        expected += chance * math.ceil(rows / height)
    return expected
