# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `unpack_weights`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config import BLayout
from jitgen.config.prepacked import K_MULTIPLE
from jitgen.config.unpack_weights import Tiling, UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.support.frozen import frozen
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.streams import StreamRules, registers_of, share_of
from jitgen.targets.spaces import check_sides
from jitgen.targets.sums import SumOrder

LAYOUTS = (BLayout.EXACT1, BLayout.FOLDED1)
"""
Layouts that are unpacked to e4m3. wide1 is for bfloat16 activations, which do not use e4m3 weights.
"""

THREADS = 256
"""Threads of a CTA: 8 for each two of its 64 rows."""

_SIDES = {"columns": (4, 8, 16, 32, 64), "ctas_per_sm": (2, 3, 4, 5, 6, 7, 8)}
_NEEDED = 40
"""Registers of a thread below which the compiler spills; found by compiling, with 4.8.1."""

_TILINGS = (Tiling(), Tiling(columns=4), Tiling(columns=64))

_CALL_US = 5.0
_BYTES_PER_US = 3.7e6
"""
Rate at which a call's bytes cross DRAM. It and `_CALL_US`, the microseconds that a call takes
besides, are assumed to be those of `activation_quantize` on an H200.
"""

_SCANNED_BYTES_PER_US = 7.5e6
"""Rate at which rows' scales come from L2, where each CTA of the row looks for the largest."""

_ROW_BYTES = 256
"""Bytes of the scales of 64 rows in one block."""


@frozen
class Sm90UnpackDerived:
    """
    Numbers that follow from a legal sm_90a config.

    Attributes:
        registers: Registers of a thread if an SM has `ctas_per_sm` CTAs.
    """

    registers: int


class UnpackWeights(StreamRules[UnpackWeightsConfig, UnpackWeightsProblem]):
    """Rules of the `unpack_weights` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (256, 1024, 4096, 16384)
    sums = SumOrder(words="nothing: each value is decoded by itself", free=("b_layout", "tiling"))
    entry = "sm90/unpack_weights.py.jinja"
    usual = UnpackWeightsConfig(b_layout=BLayout.EXACT1)
    sides = span = _SIDES
    listed = _TILINGS
    multiple = K_MULTIPLE
    note = "rates are those of activation_quantize on an H200, not of unpack_weights"

    def derive(self, config: UnpackWeightsConfig) -> Sm90UnpackDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        tiling = config.tiling
        refuse_unless(
            config.b_layout in LAYOUTS,
            "E_B_LAYOUT",
            f"b_layout={config.b_layout} is not one of {', '.join(LAYOUTS)}, whose values are e4m3",
        )
        check_sides(tiling, _SIDES)
        registers = registers_of(THREADS * tiling.ctas_per_sm)
        refuse_unless(
            registers >= _NEEDED,
            "E_REGS",
            f"{tiling.ctas_per_sm} CTAs of {THREADS} threads leave each thread {registers} "
            f"registers, and it needs {_NEEDED}",
        )
        return Sm90UnpackDerived(registers=registers)

    def legal_kind(self, config: UnpackWeightsConfig) -> UnpackWeightsConfig:
        """Return `config` with a layout that is unpacked."""
        return config if config.b_layout in LAYOUTS else replace(config, b_layout=BLayout.EXACT1)

    def kinds(self) -> Iterator[UnpackWeightsConfig]:
        """Yield a config of each layout that is unpacked, with the default tiling."""
        return (UnpackWeightsConfig(b_layout=b_layout) for b_layout in LAYOUTS)

    def cost(
        self,
        problem: UnpackWeightsProblem,
        config: UnpackWeightsConfig,
        device: Device,
        num_sms: int,
    ) -> Cost:
        """
        Estimate the time of `config`: its launch, its traffic at the rate of memory, the scales
        that each CTA of a row looks at, and half of a CTA's time while the last ones end.
        """
        rows, columns = problem.blocks
        tiling, share = config.tiling, share_of(device, num_sms)
        ctas, slots = rows * -(-columns // tiling.columns), num_sms * tiling.ctas_per_sm
        rate = _BYTES_PER_US * share
        scanned = ctas * columns * _ROW_BYTES / (_SCANNED_BYTES_PER_US * share)
        moved_us = problem.traffic_bytes / rate
        last_us = slots * problem.traffic_bytes / ctas / rate / 2
        return Cost(
            _CALL_US + moved_us + scanned + last_us,
            -(-ctas // slots),
            ctas * tiling.columns / (rows * columns),
        )
