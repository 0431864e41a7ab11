# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `activation_backward`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.activation_backward import (
    SUM_COLUMNS,
    ActivationBackwardConfig,
    ActivationBackwardProblem,
)
from jitgen.targets import activation_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules

_VALUE_US = 6e-3
"""Microseconds of one gradient of a gate and an up: twice what an activation takes, on paper."""


class ActivationBackward(CpuTiledRules[ActivationBackwardConfig, ActivationBackwardProblem]):
    """Rules of the `activation_backward` kernels, their candidates and their cost model."""

    sums = activation_space.SUMS
    entry = "cpu/activation_backward.py.jinja"
    usual = activation_space.USUAL
    check_kind = staticmethod(activation_space.check_kind)
    legal_kind = staticmethod(activation_space.legal_kind)

    def scratch_bytes(self, config: ActivationBackwardConfig) -> int:
        """Return the bytes of a block of dy and x, as bits, and of the sums of 16 lanes."""
        return SUM_COLUMNS * 2 * (1 + config.activation.inputs) + 16 * 4

    def cost_of(self, problem: ActivationBackwardProblem) -> Cost:
        """Estimate the time on one core."""
        return Cost(problem.m * problem.n * _VALUE_US, max(1, problem.m))
