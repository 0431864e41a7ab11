# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_100a and sm_103a, and what one of their SMs does in a cycle: on paper.

Nothing here was measured by jitgen. Where a number comes from stands beside it; *assumed* ones are
a guess until it is measured with ``jitgen bench blackwell --peers --report FILE``.
"""

from __future__ import annotations

from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.devices import ActivationFit


@frozen
class Paper:
    """
    Rates of an SM per cycle, and fixed costs of a call; units in the names.

    Attributes:
        fp8_flop: Operations of the tensor core on FP8 operands.
        fp4_flop: Operations of the tensor core on FP4 operands.
        smem_bytes: Bytes read from shared memory by matrix instructions.
        l2_bytes: Bytes brought from L2.
        tmem_bytes: Bytes read from tensor memory.
        fma: Number of float32 multiply-adds.
        issue_slots: Instructions that the four schedulers issue.
        tile_cycles: Cycles to start and end a tile, as far as nothing hides them.
        split_cycles: Additional cycles of CTAs that share K, to exchange sums and add them.
        call_us: Time of a call besides its waves.
        dram_share: Part of the published rate of memory that kernels reach.
    """

    fp8_flop: int = 16_384  # data sheet: 4.5 dense PFLOPS over 148 SMs are that at 1.86 GHz
    fp4_flop: int = 32_768  # data sheet: 9 dense PFLOPS
    smem_bytes: int = 128  # public microbenchmarks of tcgen05.mma (2026): below N=128 it is bound
    l2_bytes: int = 64  # assumed, as on Hopper; that multicast halves it is assumed as well
    tmem_bytes: int = 512  # 128 lanes of 4 bytes (PTX ISA, tensor memory)
    fma: int = 128  # CUDA C++ Programming Guide, throughput of arithmetic instructions
    issue_slots: int = 4  # CUDA C++ Programming Guide: an SM has four warp schedulers
    tile_cycles: int = 1500  # assumed: 0.8 us, as on an H200
    split_cycles: int = 1000  # assumed: 0.6 us, as on an H200
    call_us: float = 3.6  # assumed, as on an H200
    dram_share: float = 0.9  # assumed: an H200's kernels reach 0.96 of a copy, which reaches 0.88


ULTRA = Paper(fp4_flop=49_152)
"""Blackwell Ultra has half as many FP4 operations again (NVIDIA's description of the B300)."""

_NOT_RUN = "kernels ran in the emulator alone, never on such a GPU; times and choices are on paper"


def _device(name: str, *, num_sms: int, clock_mhz: int, paper: Paper) -> Device:
    return Device(
        name=name,
        num_sms=num_sms,
        clock_mhz=clock_mhz,
        dram_gbps=8000.0,  # data sheets: 8 TB/s of HBM3e
        l2_bytes=126 * 2**20,  # as the driver reports it (public listings of deviceQuery)
        proof=_NOT_RUN,
        constants={
            "grouped_gemm": paper,
            # Assumed: launches as on an H200, and its share of the rate of memory.
            "activation_quantize": ActivationFit(speeds={}, other=(6.0, 6.4e6), search_us=0.45),
        },
    )


# Names and SMs as the driver tells them (public logs). The clock is that at which the tensor cores
# of these SMs do what the data sheet says, 4.5 and 5 dense FP8 PFLOPS; under load it is not known.
B200 = _device("NVIDIA B200", num_sms=148, clock_mhz=1850, paper=Paper())
GB200 = _device("NVIDIA GB200", num_sms=152, clock_mhz=2000, paper=Paper())
B300 = _device("NVIDIA B300 SXM6 AC", num_sms=148, clock_mhz=1850, paper=ULTRA)
GB300 = _device("NVIDIA GB300", num_sms=152, clock_mhz=2000, paper=ULTRA)
