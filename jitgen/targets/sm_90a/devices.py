# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_90a: what they are, and what the cost model was fitted to on an H200.

No other number of an H200 stands anywhere else. Devices without a fit of their own do with the
H200's times, at their own number of SMs, clock and rate of memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jitgen.frozen import frozen
from jitgen.targets.protocol import Device


@frozen
class Speed:
    """
    How fast one tile and cluster is.

    Attributes:
        k_block_us: One k-block of a full tile while all SMs are at work, in microseconds.
        tile_us: What starts and ends a tile, as far as nothing hides it.
        skipped: Share of a k-block's time that is saved where all rows are left out.
        stream: Rate of reading as a part of dram_bytes_per_us.
    """

    k_block_us: float
    tile_us: float
    skipped: float
    stream: float


@frozen
class Fit:
    """
    Constants of the cost model, in the units of `jitgen.targets.sm_90a.cost`.

    Attributes:
        call_us: What a call takes besides its waves: its launch, the table of tiles, first loads.
        dram_bytes_per_us: Rate at which the waves of a long call read.
        overlap: Exponent of the mean of multiply and stream: at 1 they would add up, without bound
            the slower of them would be all. At 4.8 two equal ones take 16 % longer than each.
        beyond_us: What the TMA unit takes for a row beyond the end of the tensor, each k-block.
        unshared: Part that a pair of tiles takes longer that cannot share b, since its contiguous
            rows are of two groups.
        throttle: The more a call multiplies, the lower the clock that the power limit allows:
            multiplying takes this part longer at `doublings` times twice `cold_us`, and less the
            shorter it is.
        cold_us: See `throttle`.
        doublings: See `throttle`.
        flop_per_us: For tiles that were not measured: operations of an SM, three quarters of its
            peak.
        speeds: By tile, cluster, whether b is streamed, and split_k.
        bf16_speeds: Likewise of bf16 operands, whose sums need no promotion.
    """

    call_us: float
    dram_bytes_per_us: float
    overlap: float
    beyond_us: float
    unshared: float
    throttle: float
    cold_us: float
    doublings: int
    flop_per_us: float
    speeds: dict[tuple[int, int, int, int, bool, int], Speed]
    bf16_speeds: dict[tuple[int, int, int, int, bool, int], Speed]


@frozen
class SiluFit:
    """
    Constants of the cost model of `silu_mul_quantize`: a call takes its launch and its bytes.

    Attributes:
        speeds: By rows, threads and CTAs of an SM of a tiling and whether it is persistent: the
            microseconds of a call without rows, and bytes per microsecond.
        other: The same of tilings that were not measured.
        search_us: What a masked call takes more, to find the rows of its groups.
    """

    speeds: dict[tuple[int, int, int, bool], tuple[float, float]]
    other: tuple[float, float]
    search_us: float


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
Fitted to 3,480 times of an H200 (2026-11-21; 300 random problems, three times the public suite and
single tokens; FP8 with block scales, L2 cold) so that choices are good, and predictions near for
kernels near the best. What choices lose to the best candidate is 1.2 % on average, 1.8 %
on problems that a fit had not seen.
"""

_BF16_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.210, 0.50, 0.00, 1.09),
    (64, 128, 1, 1, True, 1): _speed(0.400, 0.60, 0.00, 1.09),
    (128, 128, 2, 1, False, 1): _speed(0.389, 0.86, 0.42, 0.90),
    (128, 256, 2, 1, False, 1): _speed(0.741, 3.60, 0.42, 0.90),
}
"""
Two equations each: 32 groups of 256 rows on an H200, N4096 K2048 and N2048 K4096 (2026-11-23). What
is skipped and streamed is as of FP8.
"""

_H100_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.252, 0.61, 0.00, 1.08),
    (64, 64, 1, 1, True, 2): _speed(0.267, 0.32, 0.00, 1.13),
    (64, 128, 1, 1, True, 1): _speed(0.430, 1.28, 0.00, 0.99),
    (64, 128, 1, 2, True, 1): _speed(0.334, 0.48, 0.00, 0.67),
    (128, 96, 1, 2, True, 1): _speed(0.429, 1.16, 0.82, 0.97),
    (128, 128, 1, 1, True, 2): _speed(0.666, 0.57, 0.02, 1.08),
    (128, 128, 1, 2, False, 1): _speed(0.460, 0.08, 0.21, 0.89),
    (128, 128, 1, 2, True, 1): _speed(0.495, 2.07, 0.98, 0.91),
    (128, 128, 2, 1, False, 1): _speed(0.461, 0.40, 0.43, 0.93),
    (128, 128, 2, 1, True, 1): _speed(0.463, 0.72, 0.62, 0.93),
    (128, 160, 2, 1, False, 1): _speed(0.558, 0.33, 0.68, 0.90),
    (128, 192, 2, 1, False, 1): _speed(0.614, 0.35, 0.55, 0.90),
    (256, 128, 1, 1, False, 1): _speed(0.931, 0.58, 0.68, 0.99),
}
"""
Fitted to the times in the shipped table of an H100 (2026-11-23; 185 problems, up to 512 rows a
group) by `tests/fit_sm_90a.py`. Choices lose 1.1 % on average, and 1.1 % on problems that a fit had
not seen; with the H200's constants, slower by the rate of memory, they lost 5.3 %.
"""

H200 = Device(
    name="NVIDIA H200",
    num_sms=132,
    clock_mhz=1400,
    dram_gbps=4800.0,
    l2_bytes=50 * 2**20,
    is_proven=True,
    proof="tests and benchmarks ran on one: docs/gpu.md, docs/hopper.md",
    constants={
        "grouped_gemm": Fit(
            call_us=3.58,
            dram_bytes_per_us=4.60e6,
            overlap=4.81,
            beyond_us=0.0023,
            unshared=0.045,
            throttle=0.146,
            cold_us=200.0,
            doublings=3,
            flop_per_us=8_192 * 1_400 * 0.75,
            speeds=_SPEEDS,
            bf16_speeds=_BF16_SPEEDS,
        ),
        "silu_mul_quantize": SiluFit(
            # Read off 9 sizes from 8 to 32,768 rows (2026-11-22); within 6 % of each.
            speeds={
                (4, 128, 7, False): (5.95, 4.04e6),
                (2, 128, 9, True): (5.25, 3.65e6),
                (1, 64, 16, True): (4.90, 3.00e6),
                (4, 128, 6, True): (6.00, 3.70e6),
                (4, 128, 6, False): (5.95, 3.80e6),
                (2, 128, 8, True): (5.40, 3.50e6),
                (2, 256, 3, True): (5.10, 3.55e6),
                (1, 256, 4, True): (4.85, 3.23e6),
            },
            other=(6.0, 3.0e6),
            search_us=0.45,
        ),
    },
)
"""The clock is what 700 W leave it while tensor cores are busy."""


def _like_h200(name: str, num_sms: int, clock_mhz: int, dram_gbps: float) -> Device:
    return replace(
        H200,
        name=name,
        num_sms=num_sms,
        clock_mhz=clock_mhz,
        dram_gbps=dram_gbps,
        is_proven=False,
        proof="its kernels ran on an H200; on this device nothing was run or timed",
        constants=None,
    )


H100 = Device(
    name="NVIDIA H100 80GB HBM3",
    num_sms=132,
    clock_mhz=1400,
    dram_gbps=3350.0,
    l2_bytes=50 * 2**20,
    is_proven=True,
    proof="kernels were verified, timed and tuned on one: docs/mxfp4-hopper.md",
    constants={
        "grouped_gemm": Fit(
            call_us=2.89,
            dram_bytes_per_us=3.137e6,
            overlap=3.53,
            beyond_us=1e-6,
            unshared=0.066,
            throttle=0.205,
            cold_us=267.0,
            doublings=3,
            flop_per_us=8_192 * 1_400 * 0.75,
            speeds=_H100_SPEEDS,
            bf16_speeds=_BF16_SPEEDS,
        ),
    },
)

DEVICES = (
    H200,
    H100,
    _like_h200("NVIDIA H100 PCIe", num_sms=114, clock_mhz=1200, dram_gbps=2000.0),
    _like_h200("NVIDIA GH200 480GB", num_sms=132, clock_mhz=1400, dram_gbps=4000.0),
    _like_h200("NVIDIA H20", num_sms=78, clock_mhz=1800, dram_gbps=4000.0),
)
"""SMs and rates are those of the data sheets."""


def fit_of(device: Device) -> Fit:
    """Return the constants of `device`: its own, else the H200's at its clock and memory rate."""
    if device.constants is not None:
        return device.constants["grouped_gemm"]  # type: ignore[no-any-return]
    fit: Fit = H200.constants["grouped_gemm"]
    slower = H200.clock_mhz / device.clock_mhz
    return replace(
        fit,
        dram_bytes_per_us=fit.dram_bytes_per_us * device.dram_gbps / H200.dram_gbps,
        flop_per_us=fit.flop_per_us / slower,
        speeds=_slower(fit.speeds, slower),
        bf16_speeds=_slower(fit.bf16_speeds, slower),
    )


def _slower(speeds: dict[Any, Speed], times: float) -> dict[Any, Speed]:
    """Return what tiles take at a lower clock."""
    return {
        key: replace(each, k_block_us=each.k_block_us * times, tile_us=each.tile_us * times)
        for key, each in speeds.items()
    }


def silu_fit_of(device: Device) -> SiluFit:
    """Return the same for `silu_mul_quantize`: its own, else the H200's at its memory rate."""
    own = (device.constants or {}).get("silu_mul_quantize")
    if own is not None:
        return own  # type: ignore[no-any-return]
    fit: SiluFit = H200.constants["silu_mul_quantize"]
    part = device.dram_gbps / H200.dram_gbps
    return replace(
        fit,
        speeds={key: (call_us, rate * part) for key, (call_us, rate) in fit.speeds.items()},
        other=(fit.other[0], fit.other[1] * part),
    )
