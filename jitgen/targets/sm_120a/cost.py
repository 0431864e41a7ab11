# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds. On paper: no constant was
measured on such a GPU.

A call takes whole waves of tiles, which the tensor cores bound, and no less than its bytes take
from memory.
"""

from __future__ import annotations

import math

from jitgen.config import Layout
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.targets.gemm import sizes, traffic
from jitgen.targets.protocol import Candidate, Device

_FLOP = {4: 4096, 8: 2048}
"""Operations of an SM's tensor cores in a cycle, by the bits of a (data sheet of the RTX 5090)."""

_MMA_SHARE, _DRAM_SHARE = 0.8, 0.87
"""Assumed: parts of the published rates that kernels reach."""

_CALL_US = 4.0
"""Assumed: what a call takes besides its waves."""

_TILE_CYCLES = 1000
"""Assumed: what starts and ends a tile."""


def predict(problem: Problem, config: KernelConfig, device: Device, num_sms: int) -> Candidate:
    """Return what `config` would take for `problem` on `num_sms` SMs of `device`."""
    tile, bits = config.tile, config.operands.a_dtype.bits
    unit = GROUP_ALIGNMENT if problem.layout is Layout.CONTIGUOUS else 1
    each = [max(rows, unit) for rows in sizes(problem)]
    down = sum(math.ceil(rows / tile.m) for rows in each) * problem.groups / len(each)
    tiles = down * -(-problem.n // tile.n)
    waves = math.ceil(tiles / num_sms)
    multiply = 2 * tile.m * tile.n * problem.k / (_FLOP[bits] * _MMA_SHARE)
    multiply_us = waves * (multiply + _TILE_CYCLES) / device.clock_mhz
    crossing = traffic(problem)
    stream_us = crossing / (device.dram_gbps * 1e3 * _DRAM_SHARE)
    return Candidate(
        config=config,
        cost=_CALL_US + max(multiply_us, stream_us) + min(multiply_us, stream_us) / 8,
        padding_ratio=tiles * tile.m * tile.n / (max(1, problem.m) * problem.n),
        waves=waves,
        traffic_bytes=crossing,
        limiter="multiply" if multiply_us > stream_us else "stream",
    )
