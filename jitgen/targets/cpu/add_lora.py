# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `add_lora`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.add_lora import MOST_PARTS, RANKS, AddLoraConfig, AddLoraProblem
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.sums import SumOrder

_VALUE_US = 3e-3
"""Microseconds of one product that is added, on one core of a cloud x86-64 server, on paper."""


class AddLora(CpuTiledRules[AddLoraConfig, AddLoraProblem]):
    """Rules of the `add_lora` kernels, their candidates and their cost model."""

    sums = SumOrder(
        words="16 lanes, each its columns in their order, then lane after lane",
        free=("by_row", "tiling"),
    )
    entry = "cpu/add_lora.py.jinja"
    usual = AddLoraConfig()

    def scratch_bytes(self, config: AddLoraConfig) -> int:  # all are alike
        """
        Return the bytes of two blocks, as bits and as float32, of sums, and of the values between a
        and b.
        """
        return 2 * 128 * (2 + 4) + 4 * (16 + MOST_PARTS * RANKS[-1] + 128)

    def cost_of(self, problem: AddLoraProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        values = problem.rows * problem.matrix_bytes // 2
        return Cost(values * _VALUE_US, max(1, problem.rows))
