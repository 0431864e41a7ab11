# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_120a and sm_121a, and what one of their SMs does in a cycle: on paper.

Nothing here was measured by jitgen. Where a number comes from stands beside it; *assumed* ones are
a guess until ``jitgen bench`` has run on such a GPU.
"""

from __future__ import annotations

from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Device


@frozen
class Paper:
    """
    Rates of an SM per cycle, and fixed costs of a call; units in the names.

    Attributes:
        fp8_flop: Operations of the tensor cores on 8-bit operands, block-scaled ones included.
        fp4_flop: The same where both operands have 4 bits.
        bf16_flop: The same on bf16.
        issue_slots: Instructions that the four schedulers issue.
        reached: Part of these rates that kernels reach.
        mma_latency: Cycles until a sum can be added to again.
        l2_bytes: Brought from L2 while all SMs load.
        sm_l2_bytes: The same while few do.
        l2_share: Part of L2 that weights of a group may take and stay.
        tile_cycles: What starts and ends a tile, as far as nothing hides it.
        uneven: Part of a tile's time by which the last CTA is later than the others.
        row_cycles: Cycles for each 8 rows of a tile, to store its results.
        call_us: What a call takes besides its waves.
        dram_share: Part of the published rate of memory that kernels reach.
    """

    fp8_flop: int = 2048  # whitepaper: 838 dense TFLOPS over 170 SMs are that at 2.41 GHz
    fp4_flop: int = 4096  # whitepaper: 1,676 dense TFLOPS
    bf16_flop: int = 512  # whitepaper: 209.5 dense TFLOPS with float32 sums
    issue_slots: int = 4  # CUDA C++ Programming Guide: an SM has four warp schedulers
    reached: float = 0.8  # public 8192^3 GEMMs reach 0.76 to 0.8 of both peaks (quack#153)
    mma_latency: int = 33  # assumed, as on the generation before
    l2_bytes: float = 17.7  # 8.7 TB/s measured on an RTX PRO 6000 (Chips and Cheese, June 2025)
    sm_l2_bytes: int = 64  # assumed, as on Hopper
    l2_share: float = 0.8  # assumed
    tile_cycles: int = 700  # assumed: 0.3 us
    uneven: float = 0.25  # assumed: CTAs drift apart
    row_cycles: int = 30  # assumed, from the instructions that store 8 rows
    call_us: float = 4.0  # assumed: an H200's kernels take 3.6
    dram_share: float = 0.87  # assumed: a public 0.86 of an RTX 5090's rate for copies


_NOT_RUN = "kernels ran in the emulator alone, never on such a GPU; times and choices are on paper"


_GEFORCE = Paper()
_PRO = Paper(bf16_flop=1024)
"""Assumed: float32 sums do not halve the rate of RTX PRO, as they do that of GeForce."""


def _device(  # the columns of a table
    name: str,
    num_sms: int,
    clock_mhz: int,
    dram_gbps: float,
    l2_mib: int,
    paper: Paper = _GEFORCE,
) -> Device:
    return Device(
        name=name,
        num_sms=num_sms,
        clock_mhz=clock_mhz,
        dram_gbps=dram_gbps,
        l2_bytes=l2_mib * 2**20,
        proof=_NOT_RUN,
        constants={"grouped_gemm": paper},
    )


# Names as the driver tells them (public logs). SMs, boost clock and L2 of GeForce are those of
# NVIDIA's RTX Blackwell architecture whitepaper; of RTX PRO, clocks follow from the float32 rate of
# the data sheets, 256 operations of an SM in a cycle: 125, 110, 120, 73.7 and 54.9 TFLOPS. Rates of
# memory are the data sheets', bits of the bus x Gbit/s of a pin / 8. Under load no clock is known.
RTX_5090 = _device("NVIDIA GeForce RTX 5090", 170, 2407, 1792.0, 96)  # 512 x 28
DEVICES = (
    RTX_5090,
    _device("NVIDIA GeForce RTX 5080", 84, 2617, 960.0, 64),  # 256 x 30
    _device("NVIDIA GeForce RTX 5070 Ti", 70, 2452, 896.0, 48),  # 256 x 28
    _device("NVIDIA GeForce RTX 5070", 48, 2512, 672.0, 48),  # 192 x 28
    _device("NVIDIA GeForce RTX 5060 Ti", 36, 2572, 448.0, 32),  # 128 x 28
    _device(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 2617, 1792.0, 128, _PRO
    ),  # 512 x 28
    _device(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188, 2280, 1792.0, 128, _PRO
    ),
    _device(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 2490, 1597.0, 128, _PRO
    ),  # 512 x 25
    _device("NVIDIA RTX PRO 5000 Blackwell", 110, 2617, 1344.0, 96, _PRO),  # 384 x 28
    _device("NVIDIA RTX PRO 4500 Blackwell", 82, 2617, 896.0, 64, _PRO),  # 256 x 28
)
"""Devices of sm_120a."""

GB10 = _device("NVIDIA GB10", 48, 2418, 273.0, 24)
"""
Device of sm_121a: DGX Spark and similar machines. SMs, clock and L2 as the driver tells them
(public logs), 256 bits of LPDDR5x at 8,533 Mbit/s (data sheet).
"""
