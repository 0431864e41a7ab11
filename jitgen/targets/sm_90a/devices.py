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
    (64, 64, 1, 1, True, 1): _speed(0.204, 0.34, 0.34, 1.68, 0.238, 0.366, 3.33),
    (64, 64, 1, 1, True, 2): _speed(0.151, 0.51, 0.00, 1.90, 0.000, 0.382, 1.07),
    (64, 128, 1, 1, True, 1): _speed(0.151, 0.62, 0.00, 1.62, 0.292, 0.625, 1.02),
    (64, 128, 1, 2, True, 1): _speed(0.435, 0.40, 0.70, 1.34, 0.000, 0.013, 4.65),
    (128, 96, 1, 2, True, 1): _speed(0.369, 0.59, 0.62, 1.18, 0.171, 0.221, 1.95),
    (128, 128, 1, 1, True, 2): _speed(0.283, 1.18, 0.85, 1.30, 0.333, 0.698, 1.58),
    (128, 128, 1, 2, False, 1): _speed(0.370, 0.60, 0.43, 1.13, 0.314, 0.153, 1.65),
    (128, 128, 1, 2, True, 1): _speed(0.325, 1.01, 0.79, 1.36, 0.194, 0.699, 1.37),
    (128, 128, 2, 1, False, 1): _speed(0.253, 0.84, 0.58, 1.60, 0.494, 0.460, 1.00),
    (128, 128, 2, 1, True, 1): _speed(0.332, 0.77, 0.67, 1.12, 0.228, 0.474, 1.45),
    (128, 160, 2, 1, False, 1): _speed(0.433, 0.57, 0.78, 0.90, 0.332, 0.344, 2.01),
    (128, 192, 2, 1, False, 1): _speed(0.498, 0.86, 0.76, 0.86, 0.225, 0.289, 1.94),
    (256, 128, 1, 1, False, 1): _speed(0.729, 0.54, 0.69, 1.39, 0.242, 0.012, 1.02),
}
"""
Fitted to the FP8 part of the shipped table of an H200 and of surveys by `jitgen bench choice`
(2026-11-23; 262 buckets and 323 random problems) by `tests/fit_sm_90a`, so that choices are good,
and predictions near for kernels near the best. Choices lose 1.0 % on average in the table and 1.7 %
in the surveys, 1.3 and 2.2 % on problems that a fit had not seen.
"""

_EARLIER_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.208, 0.14, 0.00, 1.09, 0.146, 0.0, 4.81),
    (64, 64, 1, 1, True, 2): _speed(0.187, 0.72, 0.00, 1.15, 0.146, 0.0, 4.81),
    (64, 128, 1, 1, True, 1): _speed(0.373, 0.18, 0.00, 1.09, 0.146, 0.0, 4.81),
    (64, 128, 1, 2, True, 1): _speed(0.294, 0.33, 0.00, 1.36, 0.146, 0.0, 4.81),
    (128, 96, 1, 2, True, 1): _speed(0.350, 0.69, 0.52, 1.01, 0.146, 0.0, 4.81),
    (128, 128, 1, 1, True, 2): _speed(0.343, 1.25, 0.02, 0.87, 0.146, 0.0, 4.81),
    (128, 128, 1, 2, False, 1): _speed(0.350, 0.59, 0.21, 0.91, 0.146, 0.0, 4.81),
    (128, 128, 1, 2, True, 1): _speed(0.445, 0.40, 0.98, 1.13, 0.146, 0.0, 4.81),
    (128, 128, 2, 1, False, 1): _speed(0.414, 0.67, 0.01, 0.99, 0.146, 0.0, 4.81),
    (128, 128, 2, 1, True, 1): _speed(0.444, 0.86, 0.55, 0.94, 0.146, 0.0, 4.81),
    (128, 160, 2, 1, False, 1): _speed(0.526, 1.06, 0.51, 0.91, 0.146, 0.0, 4.81),
    (128, 192, 2, 1, False, 1): _speed(0.574, 0.88, 0.42, 0.86, 0.146, 0.0, 4.81),
    (256, 128, 1, 1, False, 1): _speed(0.813, 0.80, 0.61, 0.80, 0.146, 0.0, 4.81),
}
"""
An earlier fit, to 3,480 times of an H200 (2026-11-21): what the models of `moe_fc2_dense` and
`grouped_gemm_wgrad`, which count what is loaded on their own, were compared with measured times by,
and where fits begin.
"""

_BF16_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.103, 0.05, 1.00, 1.47, 0.025, 0.466, 1.39),
    (64, 128, 1, 1, True, 1): _speed(0.160, 0.06, 1.00, 1.25, 0.000, 0.202, 1.00),
    (128, 128, 2, 1, False, 1): _speed(0.326, 0.33, 0.16, 0.78, 0.430, 0.000, 2.65),
    (128, 256, 2, 1, False, 1): _speed(0.501, 1.43, 0.82, 0.63, 0.316, 0.331, 2.62),
}
"""
Fitted likewise to the 128 random problems of bfloat16: choices lose 1.9 % on average, 3.0 % on
problems that a fit had not seen.
"""

_H100_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.264, 0.41, 0.00, 1.27, 0.217, 0.000, 4.12),
    (64, 64, 1, 1, True, 2): _speed(0.268, 0.58, 0.00, 1.61, 0.119, 0.000, 4.44),
    (64, 128, 1, 1, True, 1): _speed(0.467, 1.26, 0.00, 0.99, 0.188, 0.086, 3.43),
    (64, 128, 1, 2, True, 1): _speed(0.323, 0.48, 0.00, 0.67, 0.246, 0.095, 3.55),
    (128, 96, 1, 2, True, 1): _speed(0.522, 1.08, 0.90, 1.00, 0.023, 0.000, 3.78),
    (128, 128, 1, 1, True, 2): _speed(0.686, 0.58, 0.06, 1.02, 0.152, 0.000, 3.37),
    (128, 128, 1, 2, False, 1): _speed(0.420, 0.08, 0.15, 0.87, 0.337, 0.000, 3.36),
    (128, 128, 1, 2, True, 1): _speed(0.625, 2.49, 1.00, 1.07, 0.000, 0.000, 3.60),
    (128, 128, 2, 1, False, 1): _speed(0.489, 0.39, 0.39, 0.87, 0.164, 0.019, 3.45),
    (128, 128, 2, 1, True, 1): _speed(0.497, 0.86, 0.34, 0.97, 0.101, 0.047, 3.58),
    (128, 160, 2, 1, False, 1): _speed(0.547, 0.34, 0.71, 0.84, 0.313, 0.000, 3.33),
    (128, 192, 2, 1, False, 1): _speed(0.585, 0.33, 0.59, 0.82, 0.246, 0.000, 4.44),
    (256, 128, 1, 1, False, 1): _speed(0.962, 0.61, 0.63, 0.95, 0.129, 0.039, 3.37),
}
"""
Fitted by `tests/fit_sm_90a` to the FP8 part of the shipped table of an H100 (2026-11-23; 283
buckets, up to 512 rows a group and some of prefill), where choices lose 0.8 % on average.
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
            call_us=3.966,
            dram_bytes_per_us=6.062e06,
            overlap=4.81,
            beyond_us=2e-05,
            unshared=0.1659,
            cold_us=116.4,
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
            call_us=3.169,
            dram_bytes_per_us=3.347e06,
            overlap=3.53,
            beyond_us=1e-06,
            unshared=0.04827,
            cold_us=277.1,
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
