# SPDX-License-Identifier: Apache-2.0
"""
The cost model: an estimate of the time of a call, in microseconds, from the work of an SM's units
per cycle. It was never compared with such a GPU: none of its constants was measured on one.

A CTA takes as long for a k-block, 128 bytes of each row, as the slowest of these, which overlap:

    tensor    2 x 128 rows x columns x depth operations
    shared    what a matrix instruction reads of a (128 rows) and of its share of b
    fill      the bytes that L2 brings: rows of a that groups have, a CTA's share of b, and scales
              that tensor cores apply
    read      sums read from tensor memory
    multiply  their multiply-adds
    issue     the instructions of the warps that do both

The last three are there where scales change within K (block128). With one accumulator stage the
tensor core waits for them, and their time adds up with its own. A call takes whole waves of tiles,
and no less than its bytes take from memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jitgen.config import Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.targets.gemm import sizes
from jitgen.targets.protocol import Candidate, Device
from jitgen.targets.sm_100a.devices import Paper
from jitgen.targets.sm_100a.sizes import (
    ATOM_BYTES,
    CTA_ROWS,
    PART_M,
    ROW_BYTES,
    UPDATE_WARPS,
    atoms,
    has_atoms,
    num_ctas,
    scale_blocks,
)

UPDATE_INSTRUCTIONS = {32: 43, 64: 51, 128: 69, 192: 101, 256: 110}
"""
Instructions of an update warp for a k-block, by the columns of a tile: counted in the SASS of
ragged kernels, where multiply-adds are packed two to an instruction.
"""


_WRONG_HINT = 0.01
"""
Assumed: relative cost of streaming weights past L2 that several tiles read, or of keeping weights
in L2 that only one tile reads. It only decides between kernels that are otherwise equal.
"""


class Cycles(NamedTuple):
    """Cycles that each unit of an SM is busy with one k-block; see the module."""

    tensor: float
    shared: float
    fill: float
    read: float
    multiply: float
    issue: float

    @property
    def promotion(self) -> float:
        """Cycles of scaling and adding the sums of a k-block."""
        return max(self.read, self.multiply, self.issue)

    def bound(self, num_acc_stage: int) -> float:
        """
        Return the cycles that a k-block takes: the slowest unit's; with one accumulator stage the
        promotion does not overlap the tensor core.
        """
        if num_acc_stage == 1 and self.promotion:
            return max(self.tensor + self.promotion, self.shared, self.fill)
        return max(self)


def cycles(
    config: GroupedGemmConfig,
    paper: Paper,
    rows: float = CTA_ROWS,
    promotions: float | None = None,
) -> Cycles:
    """
    Return the cycles that a k-block of a CTA takes in each unit.

    Args:
        config: A legal config.
        paper: Rates of an SM per cycle.
        rows: Rows of a that the CTA loads of its 128; it multiplies all.
        promotions: How often sums are promoted for a k-block; None: as a grouped GEMM does, once
            where scales change within K, and never elsewhere.
    """
    n, ctas, types = config.tile.n, num_ctas(config), config.operands
    bits = max(types.a_dtype.bits, types.b_dtype.bits)  # mixed ones take a byte each
    flop = paper.fp4_flop if bits == 4 else paper.fp8_flop * 8 / bits
    shares_a, shares_b = config.cluster.n, config.cluster.m // ctas
    loaded = rows / shares_a + n / ctas / shares_b
    values = ROW_BYTES * 8 // bits
    scale_bytes = 0
    if has_atoms(config):
        scale_bytes = atoms(config) * (1 + scale_blocks(n)) * ATOM_BYTES
    if promotions is None:
        promotions = float(types.scale_granularity is ScaleGranularity.BLOCK128)
    sums = CTA_ROWS * n * promotions
    issued = UPDATE_WARPS * _update_instructions(config) * promotions
    return Cycles(
        tensor=2 * CTA_ROWS * n * values / flop,
        shared=(CTA_ROWS + n / ctas) * ROW_BYTES / paper.smem_bytes,
        fill=(loaded * ROW_BYTES + scale_bytes) / paper.l2_bytes,
        read=sums * 4 / paper.tmem_bytes,
        multiply=sums / paper.fma,
        issue=issued / paper.issue_slots,
    )


def predict(
    problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
) -> Candidate:
    """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
    tile, cluster, ctas = config.tile, config.cluster, num_ctas(config)
    paper: Paper = device.constants["grouped_gemm"]
    split_k = config.schedule.split_k
    height, width = tile.m * cluster.m // ctas, tile.n * cluster.n
    down, rows = _clusters_of_rows(problem, height)
    clusters = down * -(-problem.n // width)
    slots = max(1, num_sms // (cluster.size * split_k))
    waves = math.ceil(clusters / slots)

    loaded = min(CTA_ROWS, -(-rows // PART_M) * PART_M)
    depth = ROW_BYTES * 8 // problem.a_dtype.bits
    k_blocks = math.ceil(-(-problem.k // depth) / split_k)
    k_block = cycles(config, paper, loaded).bound(config.pipeline.num_acc_stage)
    ends = paper.tile_cycles + (paper.split_cycles if split_k > 1 else 0)
    multiply_us = waves * (k_blocks * k_block + ends) / device.clock_mhz
    crossing = problem.traffic_bytes
    stream_us = crossing / (device.dram_gbps * 1e3 * paper.dram_share)
    cost = paper.call_us + max(multiply_us, stream_us) + min(multiply_us, stream_us) / 8
    if config.schedule.stream_b == (problem.rows_per_group > height):
        cost *= 1 + _WRONG_HINT
    return Candidate(
        config=config,
        cost=cost,
        padding_ratio=clusters * height * width / (max(1, problem.m) * problem.n),
        waves=waves,
        traffic_bytes=crossing,
        limiter="multiply" if multiply_us > stream_us else "stream",
    )


def _clusters_of_rows(problem: GroupedGemmProblem, height: int) -> tuple[float, float]:
    """Return the number of blocks of `height` rows over all groups, and the mean rows in one."""
    each = sizes(problem)
    count = sum(math.ceil(rows / height) for rows in each)
    return count * problem.groups / len(each), sum(each) / count


def _update_instructions(config: GroupedGemmConfig) -> int:
    """
    Return the instructions of an update warp for a k-block; only ragged kernels have packed
    multiply-adds.
    """
    n = config.tile.n
    packed = UPDATE_INSTRUCTIONS[n]
    return packed if config.layout is Layout.RAGGED else packed + n // 4
