# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_90a: what they are, and what the cost model was fitted to on an H200.

No other number of an H200 stands anywhere else. Devices without a fit of their own do with the
H200's times, at their own number of SMs, clock and rate of memory.
"""

from __future__ import annotations

from dataclasses import fields, replace
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
        throttled: The more a call multiplies, the lower the clock that the power limit allows:
            multiplying takes this part longer at `Fit.doublings` times twice `Fit.cold_us`, and
            less the shorter it is. Larger tiles move fewer bytes for what they multiply.
        missed: Part of the operands that SMs load again, of what another tile has read before, for
            which L2 has to ask DRAM: tiles drift apart.
        overlap: Exponent of the mean of multiply and stream: at 1 they add up, without bound the
            slower of them is all. At 4.8 two equal ones take 16 % longer than each.
    """

    k_block_us: float
    tile_us: float
    skipped: float
    stream: float
    throttled: float
    missed: float
    overlap: float


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
        cold_us: What a call may multiply before the clock falls: see `Speed.throttled`.
        doublings: Of twice that until it has fallen.
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


def _speed(*constants: float) -> Speed:
    """Return the constants of one tile, given in the order of the attributes."""
    return Speed(**dict(zip((spec.name for spec in fields(Speed)), constants, strict=True)))


_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.171, 0.39, 0.40, 0.60, 0.077, 0.000, 4.88),
    (64, 64, 1, 1, True, 2): _speed(0.159, 0.86, 0.00, 2.14, 0.111, 0.529, 1.66),
    (64, 128, 1, 1, True, 1): _speed(0.144, 0.67, 0.00, 1.32, 0.354, 0.530, 1.20),
    (64, 128, 1, 2, True, 1): _speed(0.329, 0.51, 0.49, 2.24, 0.191, 0.064, 4.50),
    (128, 96, 1, 2, True, 1): _speed(0.335, 0.61, 0.47, 1.42, 0.207, 0.534, 2.02),
    (128, 128, 1, 1, True, 2): _speed(0.275, 1.32, 0.79, 1.24, 0.338, 0.801, 2.63),
    (128, 128, 1, 2, False, 1): _speed(0.326, 0.82, 0.23, 0.96, 0.223, 0.612, 3.36),
    (128, 128, 1, 2, True, 1): _speed(0.332, 1.56, 0.49, 1.15, 0.169, 0.829, 2.60),
    (128, 128, 2, 1, False, 1): _speed(0.233, 0.88, 0.48, 1.49, 0.524, 0.534, 1.08),
    (128, 128, 2, 1, True, 1): _speed(0.322, 0.78, 0.69, 1.13, 0.233, 0.461, 1.41),
    (128, 160, 2, 1, False, 1): _speed(0.412, 0.61, 0.72, 0.89, 0.394, 0.410, 2.22),
    (128, 192, 2, 1, False, 1): _speed(0.485, 0.93, 0.56, 0.85, 0.272, 0.401, 2.55),
    (256, 128, 1, 1, False, 1): _speed(0.719, 0.78, 0.65, 2.12, 0.213, 0.114, 1.00),
}
"""
Fitted to the FP8 part of the shipped table of an H200 and of two surveys by `jitgen bench choice`
(2026-11-23; 269 buckets and 230 random problems) by `tests/fit_sm_90a`, so that choices are good,
and predictions near for kernels near the best. Choices lose 1.3 % on average in the table and 1.5 %
in the surveys; UNSEEN on problems that a fit had not seen.
"""

_EARLIER_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.208, 0.14, 0.00, 1.09, 0.146, 0.0, 4.81),
    (64, 128, 1, 1, True, 1): _speed(0.373, 0.18, 0.00, 1.09, 0.146, 0.0, 4.81),
    (64, 128, 1, 2, True, 1): _speed(0.294, 0.33, 0.00, 1.36, 0.146, 0.0, 4.81),
    (128, 128, 1, 1, True, 2): _speed(0.343, 1.25, 0.02, 0.87, 0.146, 0.0, 4.81),
    (128, 128, 1, 2, True, 1): _speed(0.445, 0.40, 0.98, 1.13, 0.146, 0.0, 4.81),
    (128, 128, 2, 1, False, 1): _speed(0.414, 0.67, 0.01, 0.99, 0.146, 0.0, 4.81),
    (128, 192, 2, 1, False, 1): _speed(0.574, 0.88, 0.42, 0.86, 0.146, 0.0, 4.81),
}
"""
An earlier fit, to 3,480 times of an H200 (2026-11-21): what the models of `moe_fc2_dense` and
`grouped_gemm_wgrad`, which count what is loaded on their own, were compared with measured times by.
"""

_BF16_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.119, 0.05, 1.00, 1.35, 0.168, 0.557, 2.48),
    (64, 128, 1, 1, True, 1): _speed(0.141, 0.09, 1.00, 1.08, 0.000, 0.412, 1.37),
    (128, 128, 2, 1, False, 1): _speed(0.316, 0.46, 0.40, 0.90, 0.362, 0.188, 2.53),
    (128, 256, 2, 1, False, 1): _speed(0.571, 1.71, 0.70, 0.70, 0.185, 0.258, 2.48),
}
"""
Fitted likewise to the 115 of the same surveys and of one more that are of bfloat16: choices lose
2.7 % on average, 3.8 % on problems that a fit had not seen.
"""

_H100_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.252, 0.61, 0.00, 1.08, 0.205, 0.0, 3.53),
    (64, 64, 1, 1, True, 2): _speed(0.267, 0.32, 0.00, 1.13, 0.205, 0.0, 3.53),
    (64, 128, 1, 1, True, 1): _speed(0.430, 1.28, 0.00, 0.99, 0.205, 0.0, 3.53),
    (64, 128, 1, 2, True, 1): _speed(0.334, 0.48, 0.00, 0.67, 0.205, 0.0, 3.53),
    (128, 96, 1, 2, True, 1): _speed(0.429, 1.16, 0.82, 0.97, 0.205, 0.0, 3.53),
    (128, 128, 1, 1, True, 2): _speed(0.666, 0.57, 0.02, 1.08, 0.205, 0.0, 3.53),
    (128, 128, 1, 2, False, 1): _speed(0.460, 0.08, 0.21, 0.89, 0.205, 0.0, 3.53),
    (128, 128, 1, 2, True, 1): _speed(0.495, 2.07, 0.98, 0.91, 0.205, 0.0, 3.53),
    (128, 128, 2, 1, False, 1): _speed(0.461, 0.40, 0.43, 0.93, 0.205, 0.0, 3.53),
    (128, 128, 2, 1, True, 1): _speed(0.463, 0.72, 0.62, 0.93, 0.205, 0.0, 3.53),
    (128, 160, 2, 1, False, 1): _speed(0.558, 0.33, 0.68, 0.90, 0.205, 0.0, 3.53),
    (128, 192, 2, 1, False, 1): _speed(0.614, 0.35, 0.55, 0.90, 0.205, 0.0, 3.53),
    (256, 128, 1, 1, False, 1): _speed(0.931, 0.58, 0.68, 0.99, 0.205, 0.0, 3.53),
}
"""
Fitted to the times in the shipped table of an H100 (2026-11-23; 185 problems, up to 512 rows a
group) by `tests/fit_sm_90a.py`. Choices lose 1.1 % on average, and 1.1 % on problems that a fit had
not seen; with the H200's constants, slower by the rate of memory, they lost 5.3 %.
"""

_EARLIER = Fit(
    call_us=3.58,
    dram_bytes_per_us=4.60e6,
    overlap=4.81,
    beyond_us=0.0023,
    unshared=0.045,
    cold_us=200.0,
    doublings=3,
    flop_per_us=8_192 * 1_400 * 0.75,
    speeds=_EARLIER_SPEEDS,
    bf16_speeds={},
)

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
            call_us=3.784,
            dram_bytes_per_us=5.879e6,
            overlap=4.81,
            beyond_us=4.605e-5,
            unshared=0.08899,
            cold_us=106.9,
            doublings=3,
            flop_per_us=8_192 * 1_400 * 0.75,
            speeds=_SPEEDS,
            bf16_speeds=_BF16_SPEEDS,
        ),
        "moe_fc2_dense": _EARLIER,
        "grouped_gemm_wgrad": _EARLIER,
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


def fit_of(device: Device, op: str = "grouped_gemm") -> Fit:
    """
    Return the constants of `device` for an operation that multiplies matrices: its own, if need be
    those of grouped GEMMs, else the H200's at its clock and memory rate.
    """
    if device.constants is not None:
        own: Fit = device.constants.get(op, device.constants["grouped_gemm"])
        return own
    fit: Fit = H200.constants[op]
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
