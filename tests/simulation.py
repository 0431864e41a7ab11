# SPDX-License-Identifier: Apache-2.0
"""
What a grouped GEMM takes on sm_120a when every tile of every CTA is gone through in the order of
the kernel, with the rows that each group really has.

It shares no code with the cost model, which knows means alone, and stands for a GPU where there is
none: the choices of each rule are compared by it. It is no measurement. CTAs hold one tile each and
advance together: math warps at the pace of their instructions and of the tensor cores, loads at
what is theirs of L2's and of the memory's rate, which those share who still load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitgen.config import ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig

Array = NDArray[np.float64]


class Gpu(NamedTuple):
    """
    What a GPU does in a cycle of its SMs, and how many it has.

    Attributes:
        num_sms: Multiprocessors: each has one CTA.
        clock_mhz: Cycles in a microsecond.
        dram_bytes: Bytes that memory delivers to all SMs in a cycle.
        l2_capacity: Bytes that stay in L2.
    """

    num_sms: int
    clock_mhz: float
    dram_bytes: float
    l2_capacity: float

    @classmethod
    def of(cls, num_sms: int, clock_mhz: int, dram_gbps: float, l2_mib: int) -> Gpu:
        """Return the GPU of a data sheet; 0.87 of its memory's rate is reached (assumed)."""
        return cls(num_sms, clock_mhz, 0.87 * dram_gbps * 1e3 / clock_mhz, 0.8 * l2_mib * 2**20)


RTX_5090 = Gpu.of(170, 2407, 1792.0, 96)
RTX_5080 = Gpu.of(84, 2617, 960.0, 64)
RTX_5070_TI = Gpu.of(70, 2452, 896.0, 48)
RTX_PRO_6000 = Gpu.of(188, 2617, 1792.0, 128)
GB10 = Gpu.of(48, 2418, 273.0, 24)
GPUS = (RTX_5090, RTX_5080, RTX_5070_TI, RTX_PRO_6000, GB10)

INSTRUCTIONS = {
    "mixed": {
        (8, 64, 512): 254,
        (8, 128, 256): 141,
        (16, 128, 256): 173,
        (32, 128, 256): 236,
        (64, 128, 128): 198,
        (128, 128, 128): 306,
    },
    "mxfp4": {
        (8, 64, 512): 79,
        (8, 128, 256): 52,
        (16, 128, 256): 56,
        (32, 128, 256): 76,
        (64, 128, 256): 112,
        (128, 128, 128): 109,
    },
    "nvfp4": {
        (8, 64, 512): 101,
        (8, 128, 256): 63,
        (16, 128, 256): 70,
        (32, 128, 256): 88,
        (64, 128, 256): 121,
        (128, 128, 128): 113,
    },
    "mxfp8": {
        (8, 64, 256): 68,
        (8, 128, 128): 46,
        (16, 128, 128): 51,
        (32, 128, 128): 72,
        (64, 128, 128): 107,
        (128, 128, 128): 184,
    },
    "bf16": {
        (8, 64, 256): 495,
        (8, 128, 256): 495,
        (16, 128, 256): 516,
        (32, 128, 128): 302,
        (64, 128, 128): 561,
        (128, 128, 128): 706,
    },
    "fp8": {
        (8, 128, 128): 52,
        (16, 128, 128): 65,
        (32, 128, 128): 100,
        (64, 128, 128): 146,
        (128, 128, 128): 257,
    },
}
"""
What a warp that multiplies issues for a tile of K, by rows, columns and depth: counted in the SASS
of ragged kernels. A nightly test counts again.
"""

FLOP = {"mxfp4": (4096, 64), "nvfp4": (4096, 64), "bf16": (512, 16)}
"""
Operations of an SM's tensor cores in a cycle, GeForce's, and K of an instruction; FP8 has 2048, 32.
"""

SM_L2_BYTES = 64.0
"""What one SM takes from L2 in a cycle while others do not (CUDA's guides: 64 bytes a cycle)."""

L2_BYTES = 17.7
"""
Bytes that each SM takes from L2 in a cycle while all do: 8.7 TB/s, measured on an RTX PRO 6000
(Chips and Cheese, 2025).
"""

REACHED = 0.8
"""Part of their rates at which schedulers issue and tensor cores multiply (assumed)."""

MMA_LATENCY = 33
"""Cycles until a sum can be added to again (assumed, as on earlier ones)."""

ENDS = 700
"""Cycles before and after a tile: finding it, and its results (assumed); 8 rows add 30."""

TOGETHER = 0.1
"""Part of a tile's time by which tiles that are done in one step may differ."""

LAUNCH_US = 4.0
"""Microseconds of a call besides its tiles (assumed)."""


def kind_of(config: GroupedGemmConfig) -> str:
    """Return which of `INSTRUCTIONS` a kernel is counted in."""
    types = config.operands
    if types.scale_granularity is ScaleGranularity.BLOCK128:
        return "fp8"
    if types.scale_granularity is ScaleGranularity.NV16:
        return "nvfp4"
    if types.a_dtype != types.b_dtype:
        return "bf16" if types.a_dtype.bits == 16 else "mixed"
    return "mxfp4" if types.a_dtype.bits == 4 else "mxfp8"


class Tiles(NamedTuple):
    """
    Every tile of a call in the order in which CTAs take them: tile i is CTA i % num_sms's.

    Attributes:
        cycles: Cycles that a tile's math warps take.
        loads: Bytes that it loads from L2.
        misses: Those loads that come from memory.
    """

    cycles: float
    loads: Array
    misses: Array


def simulate(config: GroupedGemmConfig, rows: Sequence[int], n: int, k: int, gpu: Gpu) -> float:
    """Return the microseconds of a call whose groups have these rows."""
    tiles = _tiles(config, rows, n, k, gpu)
    return LAUNCH_US + _run(tiles, gpu) / gpu.clock_mhz


def least(config: GroupedGemmConfig, rows: Sequence[int], n: int, k: int, gpu: Gpu) -> float:
    """Return microseconds that `simulate` cannot be below: sooner to say."""
    tiles = _tiles(config, rows, n, k, gpu)
    waves = -(-len(tiles.loads) // gpu.num_sms)
    cycles = max(
        waves * tiles.cycles,
        tiles.loads.sum() / (L2_BYTES * gpu.num_sms),
        tiles.misses.sum() / gpu.dram_bytes,
    )
    return LAUNCH_US + 0.98 * float(cycles) / gpu.clock_mhz


def _tiles(config: GroupedGemmConfig, rows: Sequence[int], n: int, k: int, gpu: Gpu) -> Tiles:
    tile, types = config.tile, config.operands
    scales = {"fp8": 0.0, "nvfp4": 8 / 16}.get(kind_of(config), 8 / 32)  # bits of a value
    of_a = 0.0 if kind_of(config) == "bf16" else scales
    row_bytes = k * (types.a_dtype.bits + of_a) / 8 + (k / 32 if kind_of(config) == "fp8" else 0)
    weight_bytes = k * (types.b_dtype.bits + scales) / 8
    columns = -(-n // tile.n)
    loads: list[Array] = []
    misses: list[Array] = []
    for count in rows:
        down = -(-count // tile.m)
        strips = -(-down // config.schedule.raster)
        # Weights come from memory once; again for each strip, or those that are worked on at a
        # time, where they do not stay in L2.
        strip_tiles = columns * min(config.schedule.raster, down)
        at_once = min(max(1, gpu.num_sms // max(1, strip_tiles)), max(1, strips))
        stays = columns * tile.n * weight_bytes < gpu.l2_capacity and not (
            config.schedule.stream_b and strips > 1
        )
        for strip in range(strips):
            height = min(config.schedule.raster, down - strip * config.schedule.raster)
            last = min(count, (strip + 1) * config.schedule.raster * tile.m)
            own = last - strip * config.schedule.raster * tile.m
            shape = (columns, height)  # columns advance last
            wide = np.full(shape, tile.n * weight_bytes)
            wide[-1] = (n - (columns - 1) * tile.n) * weight_bytes
            loads.append((wide + tile.m * row_bytes).ravel())
            again = (strip == 0) if stays else 1 / at_once
            first = again * wide / height
            results = own * wide / weight_bytes * (types.out_dtype.bits / 8) / height
            first_columns = min(columns, max(1, gpu.num_sms // height))  # load tokens together
            tokens = np.zeros(shape)
            tokens[:first_columns] = own * row_bytes / height / first_columns
            misses.append((first + results + tokens).ravel())
    return Tiles(
        cycles=-(-k // tile.k) * _k_tile_cycles(config) + ENDS + 30 * tile.m / 8,
        loads=np.concatenate([np.zeros(0), *loads]),
        misses=np.concatenate([np.zeros(0), *misses]),
    )


def _k_tile_cycles(config: GroupedGemmConfig) -> float:
    """Return what the math warps of a CTA take for a tile of K, from its instructions."""
    tile, kind = config.tile, kind_of(config)
    warps = min(8, tile.n // 16)
    flop, depth = FLOP.get(kind, (2048, 32))
    issue = INSTRUCTIONS[kind][tile.m, tile.n, tile.k] * warps / 4
    tensor = 2 * tile.m * tile.n * tile.k / flop
    chain = tile.k / depth * MMA_LATENCY
    return max(issue / REACHED, tensor / REACHED, chain)


def _run(tiles: Tiles, gpu: Gpu) -> float:
    """Return the cycles until the last CTA is done."""
    total = len(tiles.loads)
    ctas = min(gpu.num_sms, total)
    place = np.arange(ctas)  # of each CTA among the tiles
    left = np.ones(ctas)  # of its tile
    now = 0.0
    while ctas:
        loads, misses = tiles.loads[place], tiles.misses[place]
        pace = np.minimum(1 / tiles.cycles, SM_L2_BYTES / loads)
        pace = _shared(pace, loads, L2_BYTES * gpu.num_sms)
        pace = _shared(pace, misses, gpu.dram_bytes)
        times = left / pace
        # Those that are done at about the same time are done in one step, at the mean of their
        # times; what it was too early or too late for one, its next tile takes more or less.
        is_done = times <= float(times.min()) + TOGETHER / pace
        step = float(times[is_done].mean())
        now += step
        left = left - step * pace + is_done
        place = place + is_done * gpu.num_sms
        keeps = place < total
        place, left = place[keeps], np.maximum(left[keeps], 1e-6)
        ctas = len(place)
    return now


def _shared(pace: Array, needs: Array, rate: float) -> Array:
    """Return the pace of each where all together have at most `rate` of what they need."""
    wanted = pace * needs
    if wanted.sum() <= rate:
        return pace
    # Each gets the same, but none more than it can take.
    order = np.sort(wanted)
    before = np.concatenate([[0.0], np.cumsum(order)[:-1]])
    levels = (rate - before) / np.arange(len(order), 0, -1)
    level = levels[np.argmax(order >= levels)]
    return np.where(wanted > level, pace * level / np.maximum(wanted, 1e-30), pace)


def routed(tokens: int, experts: int, top_k: int, skew: float, seed: int) -> list[int]:
    """
    Return the rows of each expert where every token takes `top_k` of them: popular ones more often,
    by a factor that is lognormal with the deviation `skew`.
    """
    chance = np.random.default_rng(seed)
    weight = np.exp(skew * chance.standard_normal(experts))
    noise = chance.gumbel(size=(tokens, experts)) + np.log(weight)
    chosen = np.argpartition(noise, -top_k, axis=1)[:, -top_k:]
    return np.bincount(chosen.ravel(), minlength=experts).tolist()  # type: ignore[no-any-return]
