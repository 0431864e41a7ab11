# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `silu_mul_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.format import Format
from jitgen.config.silu_mul_quantize import SiluMulQuantizeConfig, SiluMulQuantizeProblem
from jitgen.targets import silu_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules

_VALUE_US = 3e-3
"""One result: activated, quantised and stored, on one core of a cloud x86-64 server."""


class SiluMulQuantize(CpuTiledRules[SiluMulQuantizeConfig, SiluMulQuantizeProblem]):
    """Rules of the `silu_mul_quantize` kernels, their candidates and their cost model."""

    sums = silu_space.SUMS
    entry = "cpu/silu_mul_quantize.py.jinja"
    usual = silu_space.USUAL
    check_kind = staticmethod(silu_space.check_kind)
    legal_kind = staticmethod(silu_space.legal_kind)

    def scratch_bytes(self, config: SiluMulQuantizeConfig) -> int:  # all are alike
        """Return the bytes of a block of gates and ups, as bits, and of its results, as float32."""
        return SCALE_BLOCK * (2 * 2 + 4)

    def cost_of(self, problem: SiluMulQuantizeProblem) -> Cost:
        """Estimate the time on one core; scales of rows take two passes."""
        passes = 2 if problem.scale_granularity is Format.ROW else 1
        us = problem.m * problem.n * _VALUE_US * passes
        return Cost(us, max(1, problem.m), float(passes))
