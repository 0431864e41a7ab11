# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `activation_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.activation_quantize import ActivationQuantizeConfig, ActivationQuantizeProblem
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.format import Format
from jitgen.targets import activation_quantize_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules

_VALUE_US = 3e-3
"""One result: activated, quantised and stored, on one core of a cloud x86-64 server."""


class ActivationQuantize(CpuTiledRules[ActivationQuantizeConfig, ActivationQuantizeProblem]):
    """Rules of the `activation_quantize` kernels, their candidates and their cost model."""

    sums = activation_quantize_space.SUMS
    entry = "cpu/activation_quantize.py.jinja"
    usual = activation_quantize_space.USUAL
    check_kind = staticmethod(activation_quantize_space.check_kind)
    legal_kind = staticmethod(activation_quantize_space.legal_kind)

    def scratch_bytes(self, config: ActivationQuantizeConfig) -> int:  # all are alike
        """Return the bytes of a block of gates and ups, as bits, and of its results, as float32."""
        return SCALE_BLOCK * (2 * 2 + 4)

    def cost_of(self, problem: ActivationQuantizeProblem) -> Cost:
        """Estimate the time on one core; scales of rows take two passes."""
        passes = 2 if problem.scale_granularity is Format.ROW else 1
        us = problem.m * problem.n * _VALUE_US * passes
        return Cost(us, max(1, problem.m), float(passes))
