# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_90a, and constants of cost models that were fitted on an H200 and on an H100.

A device without constants of its own uses the H200's, scaled to its number of SMs, its clock and
its rate of memory. Files of other kernels of this package have constants of their own, most of them
fitted on an H200.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Device


@frozen
class Speed:
    """
    Speed of one tile and cluster.

    Attributes:
        k_block_us: Time of one k-block of a full tile while all SMs are at work, in microseconds.
        tile_us: Time to start and end a tile, as far as nothing hides it.
        skipped: Share of a k-block's time that is saved where all rows are left out.
        stream: Rate of reading as a part of dram_bytes_per_us.
        throttled: Relative slowdown of multiplying at the power limit: none for a call that
            multiplies for `Fit.cold_us`, all of it at `2**Fit.doublings` times that, by the
            logarithm in between. Larger tiles move fewer bytes for the same multiplications.
        missed: Part of the operands that SMs load again although another tile has read them before,
            and that L2 has to ask DRAM for: tiles drift apart.
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
        call_us: Time of a call besides its waves: its launch, the table of tiles, first loads.
        dram_bytes_per_us: Rate at which the waves of a long call read.
        overlap: Exponent of the mean of multiply and stream: at 1 they would add up, without bound
            the slower of them would be all. At 4.8 two equal ones take 16 % longer than each.
        fill_bytes_per_us: Rate at which L2 feeds all SMs.
        unshared: Relative slowdown of a pair of tiles that cannot share b because its contiguous
            rows are of two groups.
        cold_us: Microseconds that a call may multiply before the clock falls: see
            `Speed.throttled`.
        doublings: Doublings of `cold_us` until the clock has fallen fully.
        flop_per_us: For tiles that were not measured: operations of an SM, three quarters of its
            peak.
        speeds: Constants of a tile, by its rows and columns, cluster, whether b is streamed, and
            split_k.
        bf16: All of this for bf16 operands, whose sums need no promotion.
        tail: Least time of a block whose rows are multiplied with swapped operands, as a part of
            that of a whole block.
        tail_row: Time that each of these rows adds, as a part of that of a row of a whole block.
    """

    call_us: float
    dram_bytes_per_us: float
    overlap: float
    fill_bytes_per_us: float
    unshared: float
    cold_us: float
    doublings: int
    flop_per_us: float
    speeds: dict[tuple[int, int, int, int, bool, int], Speed]
    bf16: Fit | None = None
    tail: float = 0.26
    tail_row: float = 1.02


@frozen
class ActivationFit:
    """
    Constants of the cost model of `activation_quantize`: a call takes its launch and its bytes.

    Attributes:
        speeds: Microseconds of a call without rows, and bytes per microsecond, of each tiling: by
            rows, threads, CTAs of an SM, and whether it is persistent.
        other: Both numbers of tilings that were not measured.
        search_us: Additional microseconds of a masked call, to find the rows of its groups.
    """

    speeds: dict[tuple[int, int, int, bool], tuple[float, float]]
    other: tuple[float, float]
    search_us: float


def _speed(*constants: float) -> Speed:
    """Return the constants of one tile, given in the order of the attributes."""
    return Speed(**dict(zip((spec.name for spec in fields(Speed)), constants, strict=True)))


_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.2284, 0.452, 0.500, 1.285, 0.2065, 0.0432, 4.370),
    (64, 64, 1, 1, True, 2): _speed(0.2324, 0.792, 0.500, 1.321, 0.1297, 0.0453, 4.812),
    (64, 112, 1, 1, True, 1): _speed(0.3119, 0.562, 0.500, 1.100, 0.0539, 0.0597, 2.970),
    (64, 128, 1, 1, True, 1): _speed(0.4213, 0.697, 0.500, 1.326, 0.0000, 0.0508, 3.483),
    (128, 112, 1, 2, True, 1): _speed(0.4257, 0.946, 0.474, 1.226, 0.1598, 0.0546, 3.039),
    (128, 128, 1, 1, True, 1): _speed(0.4541, 1.180, 0.415, 1.172, 0.1568, 0.0423, 4.575),
    (128, 128, 1, 1, True, 2): _speed(0.4733, 1.315, 0.637, 1.267, 0.0812, 0.0464, 3.480),
    (128, 128, 1, 2, False, 1): _speed(0.4169, 0.811, 0.365, 1.018, 0.2083, 0.0466, 2.934),
    (128, 160, 1, 1, False, 1): _speed(0.5637, 0.917, 0.361, 0.881, 0.1307, 0.0286, 5.475),
    (128, 160, 1, 2, False, 1): _speed(0.5316, 0.873, 0.437, 0.962, 0.1895, 0.0489, 3.347),
    (128, 192, 1, 1, False, 1): _speed(0.5722, 0.663, 0.430, 0.938, 0.2925, 0.0620, 3.228),
    (128, 192, 1, 2, False, 1): _speed(0.5618, 1.081, 0.473, 0.946, 0.2221, 0.0499, 2.853),
    (128, 192, 2, 1, False, 1): _speed(0.6684, 0.875, 0.618, 0.860, 0.1378, 0.0372, 4.502),
    (192, 128, 1, 1, True, 1): _speed(0.6112, 1.174, 0.589, 0.999, 0.1769, 0.0450, 3.395),
    (192, 128, 1, 2, False, 1): _speed(0.5912, 0.953, 0.600, 0.936, 0.2486, 0.0638, 3.252),
    (256, 128, 1, 1, False, 1): _speed(0.8781, 0.908, 0.632, 0.895, 0.1283, 0.0423, 3.880),
    (256, 128, 1, 2, False, 1): _speed(0.8986, 0.945, 0.628, 0.923, 0.0000, 0.0418, 3.407),
}
"""
Constants of each tile, fitted to the FP8 part of surveys of an H200 by `jitgen bench choice`
(2026-11-26; 344 problems) by `tests/fit_sm_90a`, so that choices are good, and candidates near the
best compare as they were measured: choices lose 2.5 % on average, and in surveys that no fit has
seen 2.2 % of random problems and 3.2 % of uneven rows.
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
`grouped_gemm_wgrad`, which count what is loaded on their own, were compared with measured times by.
"""

_BF16_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.1489, 0.583, 0.500, 1.213, 0.4002, 0.0377, 5.609),
    (64, 128, 1, 1, True, 1): _speed(0.1704, 0.996, 0.500, 1.203, 0.0598, 0.0736, 2.832),
    (128, 128, 1, 1, True, 1): _speed(0.3589, 1.015, 0.571, 1.464, 0.2294, 0.0387, 3.928),
    (128, 128, 1, 2, False, 1): _speed(0.3286, 1.021, 0.615, 0.965, 0.1858, 0.0262, 4.225),
    (128, 128, 2, 1, False, 1): _speed(0.3259, 0.821, 0.466, 1.066, 0.1422, 0.0714, 3.121),
    (128, 192, 1, 1, False, 1): _speed(0.4875, 0.927, 0.465, 0.973, 0.0357, 0.0365, 3.887),
    (128, 192, 2, 1, False, 1): _speed(0.4962, 1.656, 0.463, 0.965, 0.2001, 0.0421, 4.397),
    (128, 256, 1, 1, False, 1): _speed(0.6971, 0.489, 0.367, 0.984, 0.0423, 0.0506, 3.427),
    (128, 256, 2, 1, False, 1): _speed(0.7222, 2.287, 0.478, 0.933, 0.0632, 0.0304, 3.688),
    (192, 128, 1, 1, False, 1): _speed(0.4213, 1.263, 0.491, 1.016, 0.0536, 0.0992, 3.466),
    (192, 192, 1, 2, False, 1): _speed(0.8153, 1.443, 0.515, 0.985, 0.1259, 0.0482, 3.489),
    (256, 128, 1, 1, False, 1): _speed(0.7198, 1.115, 0.657, 0.792, 0.2229, 0.0401, 4.366),
}
"""
Constants of each tile for bf16 operands, fitted likewise, with `_BF16`, to 115 random problems of
bfloat16: choices lose 1.7 % on average, 2.5 % on problems that a fit had not seen.
"""

_BF16 = Fit(
    call_us=3.441,
    dram_bytes_per_us=4.473e06,
    overlap=4.81,
    fill_bytes_per_us=1.012e07,
    unshared=0.04247,
    cold_us=163,
    doublings=3,
    flop_per_us=8_192 * 1_400 * 0.75,
    speeds=_BF16_SPEEDS,
)

_H100_SPEEDS = {
    (64, 64, 1, 1, True, 1): _speed(0.1892, 0.277, 0.500, 1.223, 0.0932, 0.0579, 3.216),
    (64, 64, 1, 1, True, 2): _speed(0.2426, 0.695, 0.500, 1.357, 0.0000, 0.0453, 4.025),
    (64, 112, 1, 1, True, 1): _speed(0.2788, 0.503, 0.500, 1.150, 0.0636, 0.1207, 2.366),
    (64, 128, 1, 1, True, 1): _speed(0.2444, 0.836, 0.500, 1.092, 0.0833, 0.1306, 2.330),
    (128, 112, 1, 2, True, 1): _speed(0.4452, 1.005, 0.439, 1.177, 0.0000, 0.0571, 3.294),
    (128, 128, 1, 1, True, 1): _speed(0.3611, 1.751, 0.530, 1.076, 0.1120, 0.0412, 3.396),
    (128, 128, 1, 1, True, 2): _speed(0.4290, 1.323, 0.547, 1.216, 0.0390, 0.0476, 3.283),
    (128, 128, 1, 2, False, 1): _speed(0.3923, 0.882, 0.468, 0.897, 0.1428, 0.0363, 3.866),
    (128, 160, 1, 1, False, 1): _speed(0.4502, 0.799, 0.434, 0.897, 0.2379, 0.0488, 3.949),
    (128, 160, 1, 2, False, 1): _speed(0.4574, 0.759, 0.474, 0.918, 0.1669, 0.0568, 3.297),
    (128, 192, 1, 1, False, 1): _speed(0.5433, 0.537, 0.469, 0.883, 0.3506, 0.0449, 3.993),
    (128, 192, 1, 2, False, 1): _speed(0.5256, 0.978, 0.515, 0.885, 0.2281, 0.0393, 3.480),
    (128, 192, 2, 1, False, 1): _speed(0.6065, 1.305, 0.557, 0.859, 0.0000, 0.0279, 5.879),
    (192, 128, 1, 1, True, 1): _speed(0.4728, 1.527, 0.661, 1.040, 0.1639, 0.0739, 2.839),
    (192, 128, 1, 2, False, 1): _speed(0.5375, 1.783, 0.589, 0.960, 0.1051, 0.0446, 4.374),
    (256, 128, 1, 1, False, 1): _speed(0.6671, 1.159, 0.545, 0.928, 0.0530, 0.0603, 2.927),
    (256, 128, 1, 2, False, 1): _speed(0.8609, 0.787, 0.564, 0.992, 0.0000, 0.0437, 3.370),
}
"""
Constants of each tile on an H100, fitted likewise to the table of an H100 (183 buckets) and 418
problems (2026-11-26): choices lose 1.3 and 1.5 % on average, 1.4 and 1.9 % where a fit had not seen
them.
"""


def _at_rate(fit: Fit, part: float) -> Fit:
    """Return the constants for a memory that is faster by the factor `part`."""
    return replace(fit, dram_bytes_per_us=fit.dram_bytes_per_us * part)


_EARLIER = Fit(
    call_us=3.58,
    dram_bytes_per_us=4.60e6,
    overlap=4.81,
    fill_bytes_per_us=7.5e6,
    unshared=0.045,
    cold_us=200.0,
    doublings=3,
    flop_per_us=8_192 * 1_400 * 0.75,
    speeds=_EARLIER_SPEEDS,
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
            call_us=3.95,
            dram_bytes_per_us=4.766e06,
            overlap=4.81,
            fill_bytes_per_us=1.086e07,
            unshared=0.03536,
            cold_us=168.8,
            doublings=3,
            flop_per_us=8_192 * 1_400 * 0.75,
            speeds=_SPEEDS,
            bf16=_BF16,
        ),
        "moe_fc2_dense": _EARLIER,
        "grouped_gemm_wgrad": _EARLIER,
        "activation_quantize": ActivationFit(
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
            call_us=3.758,
            dram_bytes_per_us=3.233e06,
            overlap=3.53,
            fill_bytes_per_us=7.969e06,
            unshared=0.04368,
            cold_us=170.5,
            doublings=3,
            flop_per_us=8_192 * 1_400 * 0.75,
            speeds=_H100_SPEEDS,
            bf16=_at_rate(_BF16, 3350.0 / H200.dram_gbps),
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
    Return the constants of `device` for an operation that multiplies matrices: its own, else those
    of grouped GEMMs, else the H200's scaled to its clock and memory rate.
    """
    if device.constants is not None:
        own: Fit = device.constants.get(op, device.constants["grouped_gemm"])
        return own
    return _derived(device, op)


@lru_cache(maxsize=64)  # asked for every candidate of every problem
def _derived(device: Device, op: str) -> Fit:
    """
    Return the constants of an operation on `device`, on which it was not measured: an H200's,
    scaled.
    """
    return _elsewhere(H200.constants[op], device)


def _elsewhere(fit: Fit, device: Device) -> Fit:
    """Return an H200's constants scaled to the clock and the rates of `device`."""
    slower = H200.clock_mhz / device.clock_mhz
    return replace(
        _at_rate(fit, device.dram_gbps / H200.dram_gbps),
        fill_bytes_per_us=fit.fill_bytes_per_us / slower * device.num_sms / H200.num_sms,
        flop_per_us=fit.flop_per_us / slower,
        speeds={
            key: replace(each, k_block_us=each.k_block_us * slower, tile_us=each.tile_us * slower)
            for key, each in fit.speeds.items()
        },
        bf16=_elsewhere(fit.bf16, device) if fit.bf16 else None,
    )


def activation_fit_of(device: Device) -> ActivationFit:
    """
    Return the constants of `device` for `activation_quantize`: its own, else the H200's scaled to
    its memory rate.
    """
    own: ActivationFit | None = (device.constants or {}).get("activation_quantize")
    if own is not None:
        return own
    return _derived_activation(device)


@lru_cache(maxsize=64)  # likewise
def _derived_activation(device: Device) -> ActivationFit:
    """
    Return the constants of `activation_quantize` on `device`, on which it was not measured: an
    H200's, scaled.
    """
    fit: ActivationFit = H200.constants["activation_quantize"]
    part = device.dram_gbps / H200.dram_gbps
    return replace(
        fit,
        speeds={key: (call_us, rate * part) for key, (call_us, rate) in fit.speeds.items()},
        other=(fit.other[0], fit.other[1] * part),
    )
