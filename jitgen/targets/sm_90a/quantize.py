# SPDX-License-Identifier: Apache-2.0
"""What sm_90a says of `quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.config import Layout
from jitgen.config.quantize import Format, QuantizeConfig, QuantizeProblem, Rounding, Tiling
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.streams import WARP, StreamDerived, registers_of, threads_of
from jitgen.targets.spaces import check_sides, nearest_tiling, tilings
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

COLUMNS = 16
"""What K is a multiple of: the GEMMs that read the results take 16 bytes of e4m3, too."""

_SIDES = {"rows": (1, 2, 4, 8), "threads": (64, 128, 256), "vector": (8, 16)}
_SPAN = {**_SIDES, "ctas_per_sm": (2, 3, 4, 5, 6, 7, 8, 9, 16)}
"""With the CTAs of an SM, which nothing but the SM bounds."""


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
By the columns of a lane's loads: microseconds of a call without rows, and bytes per microsecond.
Assumed to be what `silu_mul_quantize` has on an H200.
"""

_PARAMETERS = frozenset(
    (
        *("name", "config_json", "layout", "format", "rounding"),
        *("rows", "threads", "ctas_per_sm", "vector", "is_persistent", "use_pdl"),
    )
)

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
Before the others what issues fewest instructions for a value: 12.6 in SASS, where 4 rows of 8
columns take 18. Rounding to e2m1, not memory, is what bounds them.
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
Its registers are more. The first issues 19.9 instructions for a value, the second 22.5; before
kernels were made shorter the second, with 24.3, took 62 us for 8192 x 7168 values on an H200.
"""

_TILINGS_OF = {Format.MXFP4: _TILINGS_OF_MXFP4, Format.NVFP4: _TILINGS_OF_NVFP4}


class Quantize:
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    arch = "sm_90a"
    generation = 1
    alignment = 16
    row_edges: tuple[int, ...] = (1, 8, 32, 128, 512, 2048, 8192, 32768)
    sums = SumOrder(
        words="nothing: scales are maxima",
        free=(
            "layout",
            "format",
            "rounding",
            "tiling",
        ),
    )

    def derive(self, config: QuantizeConfig) -> StreamDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        tiling, form = config.tiling, config.format
        refuse_unless(
            form is not Format.NVFP4 or config.rounding is Rounding.UP,
            "E_ROUNDING",
            f"rounding={config.rounding} is for scales that are powers of two: those of nvfp4 are "
            "e4m3, rounded to nearest",
        )
        check_sides(tiling, _SIDES)
        lanes = 4 * form.values // tiling.vector
        refuse_unless(
            tiling.rows <= lanes,
            "E_ROWS",
            f"rows={tiling.rows}: {lanes} lanes share the columns of four scales, and each stores "
            "those of one row at most",
        )
        threads = threads_of(tiling.threads, tiling.ctas_per_sm)
        registers, needed = registers_of(threads), _NEEDED[form, tiling.vector][tiling.rows]
        refuse_unless(
            needed <= registers,
            "E_REGS",
            f"{tiling.rows} rows of {tiling.vector} columns need {needed} registers a thread, and "
            f"{threads} threads leave each {registers}",
        )
        ahead = 2 * tiling.vector * tiling.rows * threads
        return StreamDerived(registers=registers, bytes_ahead=ahead)

    def nearest(self, config: QuantizeConfig) -> QuantizeConfig | None:
        """Return the legal config that is nearest to a refused one: sides by their ratios."""
        start = config
        if config.format is Format.NVFP4:
            start = replace(config, rounding=Rounding.UP)

        every = (replace(start, tiling=tiling) for tiling in tilings(start.tiling, _SPAN))
        return nearest_tiling(start, every, self, _SPAN)

    def configs(self) -> Iterator[QuantizeConfig]:
        """Yield configs of every size, legal or not, with the default launch."""
        for layout, form, rounding in itertools.product(Layout, Format, Rounding):
            for tiling in tilings(Tiling(), _SPAN):
                yield QuantizeConfig(layout=layout, format=form, rounding=rounding, tiling=tiling)

    def candidates(self, problem: QuantizeProblem) -> tuple[QuantizeConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        kind = QuantizeConfig(
            layout=problem.layout, format=problem.format, rounding=problem.rounding
        )
        listed = _TILINGS_OF.get(problem.format, _TILINGS)
        return legal_of((replace(kind, tiling=each) for each in listed), self)

    def predict(
        self, problem: QuantizeProblem, config: QuantizeConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Return what `config` would take: its launch, and what crosses memory at its rate."""
        tiling = config.tiling
        tiles = problem.groups * -(-problem.rows_per_group // tiling.rows)
        widths = -(-problem.k // (tiling.vector * WARP))
        warps = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        in_flight = tiling.rows * tiling.vector
        call_us, rate = _SPEEDS[max(size for size in _SPEEDS if size <= max(in_flight, 8))]
        share = min(1.0, num_sms / device.num_sms) * device.dram_gbps / H200.dram_gbps
        return Candidate(
            config=config,
            cost=call_us + problem.traffic_bytes / (rate * share),
            padding_ratio=tiles * tiling.rows / max(1, problem.m),
            waves=-(-tiles * widths // warps),
            traffic_bytes=problem.traffic_bytes,
            limiter="stream",
        )

    def doubt(self, problem: QuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return what the model was not fitted to."""
        return "speeds are those of silu_mul_quantize on an H200, not of quantize"

    def check_sizes(self, problem: QuantizeProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        refuse_unless(
            problem.k % COLUMNS == 0,
            "E_SIZE",
            f"must have K a multiple of {COLUMNS} on {self.arch} (got {problem.k})",
        )

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="sm90/quantize.py.jinja", parameters=_PARAMETERS),)
