# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config import Layout
from jitgen.config.format import Format
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem, Rounding, Tiling
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.streams import WARP, StreamRules, share_of
from jitgen.targets.sums import SumOrder

COLUMNS = 16
"""K is a multiple of this: the GEMMs that read the results also take 16 bytes of e4m3."""

_SIDES = {"rows": (1, 2, 4, 8), "threads": (64, 128, 256), "vector": (8, 16)}
_SPAN = {**_SIDES, "ctas_per_sm": (2, 3, 4, 5, 6, 7, 8, 9, 16)}
"""Values of each number of a tiling, with the CTAs of an SM, which the SM alone bounds."""


_NEEDED = {
    (Format.MXFP8, 8): {1: 40, 2: 48, 4: 56, 8: 80},
    (Format.MXFP8, 16): {1: 56, 2: 64, 4: 80, 8: 168},
    (Format.MXFP4, 8): {1: 40, 2: 48, 4: 64, 8: 80},
    (Format.MXFP4, 16): {1: 56, 2: 64, 4: 80, 8: 128},
    (Format.NVFP4, 8): {1: 64, 2: 72, 4: 80, 8: 96},
    (Format.NVFP4, 16): {1: 80, 2: 96, 4: 128},
}
"""
Registers of a thread below which the compiler spills, by rows of a tile. Found by compiling every
layout with nvidia-cutlass-dsl 4.8.1.
"""

_SPEEDS = {8: (4.9, 3.0e6), 16: (5.3, 3.6e6), 32: (5.95, 4.0e6)}
"""
Microseconds of a call without rows, and bytes per microsecond, by the columns of a lane's loads.
They are assumed to be those of `activation_quantize` on an H200.
"""

_FLAT = Tiling(rows=1, threads=64, ctas_per_sm=16)
_TILINGS = (
    Tiling(is_persistent=False),
    Tiling(),
    Tiling(rows=2, ctas_per_sm=8),
    Tiling(rows=2, vector=16),
    _FLAT,
)
_TILINGS_OF_MXFP4 = (Tiling(ctas_per_sm=6, vector=16, is_persistent=False), *_TILINGS)
"""
The first tiling issues the fewest instructions for a value: 12.6 in SASS, where 4 rows of 8 columns
take 18. Rounding to e2m1 bounds these kernels, not memory.
"""

_TILINGS_OF_NVFP4 = (
    Tiling(ctas_per_sm=4, vector=16, is_persistent=False),
    Tiling(rows=2, ctas_per_sm=5, vector=16, is_persistent=False),
    Tiling(rows=2, ctas_per_sm=5, vector=16),
    Tiling(ctas_per_sm=6, is_persistent=False),
    Tiling(ctas_per_sm=6),
    Tiling(rows=2),
    _FLAT,
)
"""
NVFP4 needs more registers. The first tiling issues 19.9 instructions for a value, the second 22.5.
Before kernels were made shorter, the second issued 24.3 and took 62 us for 8192 x 7168 values on an
H200.
"""

_TILINGS_OF = {Format.MXFP4: _TILINGS_OF_MXFP4, Format.NVFP4: _TILINGS_OF_NVFP4}


class Quantize(StreamRules[QuantizeConfig, QuantizeProblem]):
    """Rules of the `quantize` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 8, 32, 128, 512, 2048, 8192, 32768)
    sums = SumOrder(
        words="nothing: scales are maxima", free=("layout", "format", "rounding", "tiling")
    )
    entry = "sm90/quantize.py.jinja"
    usual = QuantizeConfig(layout=Layout.RAGGED)
    sides, span = _SIDES, _SPAN
    multiple = COLUMNS
    note = "speeds are those of activation_quantize on an H200, not of quantize"

    def check_kind(self, config: QuantizeConfig) -> None:
        """Raise a Refusal if the rounding does not apply to the format."""
        refuse_unless(
            config.format is not Format.NVFP4 or config.rounding is Rounding.UP,
            "E_ROUNDING",
            f"rounding={config.rounding} is for scales that are powers of two: those of nvfp4 are "
            "e4m3, rounded to nearest",
        )

    def legal_kind(self, config: QuantizeConfig) -> QuantizeConfig:
        """Return `config` with the rounding that its format has."""
        is_fixed = config.format is Format.NVFP4
        return replace(config, rounding=Rounding.UP) if is_fixed else config

    def check_flags(self, config: QuantizeConfig) -> None:
        """Raise a Refusal where a lane would store scales of several rows."""
        rows, lanes = config.tiling.rows, 4 * config.format.values // config.tiling.vector
        refuse_unless(
            rows <= lanes,
            "E_ROWS",
            f"rows={rows}: {lanes} lanes share the columns of four scales, and each stores those "
            "of one row at most",
        )

    def needed(self, config: QuantizeConfig) -> int:
        """Return the registers that a thread needs."""
        return _NEEDED[config.format, config.tiling.vector][config.tiling.rows]

    def work_words(self, config: QuantizeConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        return f"{config.tiling.rows} rows of {config.tiling.vector} columns"

    def thread_bytes(self, config: QuantizeConfig) -> int:
        """Return the bytes of all loads that a thread has in flight at the same time."""
        return 2 * config.tiling.vector * config.tiling.rows

    def listed_for(self, problem: QuantizeProblem) -> tuple[Tiling, ...]:
        """Return the tilings that may be chosen, legal or not."""
        return _TILINGS_OF.get(problem.format, _TILINGS)

    def cost(
        self, problem: QuantizeProblem, config: QuantizeConfig, device: Device, num_sms: int
    ) -> Cost:
        """Estimate the time of `config`: its launch, and its traffic at the rate of memory."""
        tiling = config.tiling
        tiles = problem.groups * -(-problem.rows_per_group // tiling.rows)
        widths = -(-problem.k // (tiling.vector * WARP))
        warps = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        in_flight = tiling.rows * tiling.vector
        call_us, rate = _SPEEDS[max(size for size in _SPEEDS if size <= max(in_flight, 8))]
        return Cost(
            call_us + problem.traffic_bytes / (rate * share_of(device, num_sms)),
            -(-tiles * widths // warps),
            tiles * tiling.rows / max(1, problem.m),
        )
