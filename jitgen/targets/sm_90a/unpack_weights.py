# SPDX-License-Identifier: Apache-2.0
"""What sm_90a says of `unpack_weights`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitgen.config import BLayout
from jitgen.config.unpack_weights import Tiling, UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.streams import registers_of
from jitgen.targets.spaces import check_sides, nearest_tiling, tilings
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

LAYOUTS = (BLayout.EXACT1, BLayout.FOLDED1)
"""What is unpacked to e4m3: wide1 is for bfloat16 activations, beside which that is of no use."""

K_MULTIPLE = 32
"""Values that share a scale: K ends with a whole one."""

THREADS = 256
"""Of a CTA: 8 for each two of its 64 rows."""

_SIDES = {"columns": (4, 8, 16, 32, 64), "ctas_per_sm": (2, 3, 4, 5, 6, 7, 8)}
_NEEDED = 40
"""Registers of a thread below which the compiler spills; found by compiling, with 4.8.1."""

_TILINGS = (Tiling(), Tiling(columns=4), Tiling(columns=64))

_CALL_US = 5.0
_BYTES_PER_US = 3.7e6
"""
What a call takes besides its bytes, and the rate at which they cross DRAM. Assumed to be what
`silu_mul_quantize` has on an H200.
"""

_SCANNED_BYTES_PER_US = 7.5e6
"""Rate at which rows' scales come from L2, where each CTA of the row looks for the largest."""

_ROW_BYTES = 256
"""Of the scales of 64 rows in one block."""

_PARAMETERS = frozenset(("name", "config_json", "b_layout", "columns", "ctas_per_sm", "use_pdl"))


@frozen
class Sm90UnpackDerived:
    """
    What follows from a legal sm_90a config.

    Attributes:
        registers: Of a thread, as many as `ctas_per_sm` CTAs leave it.
    """

    registers: int


class UnpackWeights:
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    generation = 1
    alignment = 16
    row_edges: tuple[int, ...] = (256, 1024, 4096, 16384)
    sums = SumOrder(
        words="nothing: each value is decoded by itself",
        free=(
            "b_layout",
            "tiling",
        ),
    )

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

    def nearest(self, config: UnpackWeightsConfig) -> UnpackWeightsConfig | None:
        """Return the legal config that is nearest to a refused one: sides by their ratios."""
        is_known = config.b_layout in LAYOUTS
        start = config if is_known else replace(config, b_layout=BLayout.EXACT1)

        every = (replace(start, tiling=tiling) for tiling in tilings(start.tiling, _SIDES))
        return nearest_tiling(start, every, self, _SIDES)

    def configs(self) -> Iterator[UnpackWeightsConfig]:
        """Yield configs of every size, legal or not, with the default launch."""
        for b_layout, tiling in itertools.product(LAYOUTS, tilings(Tiling(), _SIDES)):
            yield UnpackWeightsConfig(b_layout=b_layout, tiling=tiling)

    def candidates(self, problem: UnpackWeightsProblem) -> tuple[UnpackWeightsConfig, ...]:
        """Return the few configs that may be chosen for `problem`; none where it has no kernel."""
        listed = (
            UnpackWeightsConfig(b_layout=problem.b_layout, tiling=tiling) for tiling in _TILINGS
        )
        return legal_of(listed, self)

    def predict(
        self,
        problem: UnpackWeightsProblem,
        config: UnpackWeightsConfig,
        device: Device,
        num_sms: int,
    ) -> Candidate:
        """
        Return what `config` would take: its launch, what crosses memory at its rate, the scales
        that each CTA of a row looks at, and half of a CTA's time while the last ones end.
        """
        rows, columns = problem.blocks
        tiling = config.tiling
        ctas, slots = rows * -(-columns // tiling.columns), num_sms * tiling.ctas_per_sm
        share = min(1.0, num_sms / device.num_sms) * device.dram_gbps / H200.dram_gbps
        rate = _BYTES_PER_US * share
        scanned = ctas * columns * _ROW_BYTES / (_SCANNED_BYTES_PER_US * share)
        moved_us = problem.traffic_bytes / rate
        last_us = slots * problem.traffic_bytes / ctas / rate / 2
        return Candidate(
            config=config,
            cost=_CALL_US + moved_us + scanned + last_us,
            padding_ratio=ctas * tiling.columns / (rows * columns),
            waves=-(-ctas // slots),
            traffic_bytes=problem.traffic_bytes,
            limiter="stream",
        )

    def doubt(self, problem: UnpackWeightsProblem, device: Device) -> str:  # noqa: ARG002
        """Return what the model was not fitted to."""
        return "rates are those of silu_mul_quantize on an H200, not of unpack_weights"

    def check_sizes(self, problem: UnpackWeightsProblem) -> None:
        """Raise a Refusal where a row does not end with whole values of one scale."""
        refuse_unless(
            problem.k % K_MULTIPLE == 0,
            "E_SIZE",
            f"must have K a multiple of {K_MULTIPLE} on sm_90a (got {problem.k})",
        )

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="sm90/unpack_weights.py.jinja", parameters=_PARAMETERS),)
