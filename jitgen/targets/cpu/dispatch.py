# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `dispatch`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.dispatch import DispatchConfig, DispatchProblem
from jitgen.config.format import Format
from jitgen.targets import dispatch_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.protocol import refuse_unless

VALUE_US = 1.5e-3
"""Microseconds of a word that is sent or taken, on one core of a cloud x86-64 server."""


class Dispatch(CpuTiledRules[DispatchConfig, DispatchProblem]):
    """Rules of the `dispatch` kernels, their candidates and their cost model."""

    sums = dispatch_space.SUMS
    entry = "cpu/dispatch.py.jinja"
    second = ("cpu/dispatch_records.py.jinja", dispatch_space.is_quantised)
    usual = DispatchConfig()
    alignment = 8
    limiter = "stream"

    check_kind = staticmethod(dispatch_space.refuse_gpu_kinds)

    def legal_kind(self, config: DispatchConfig) -> DispatchConfig:
        """Return `config` without flags and sorting."""
        return replace(config, by_flags=False, sorts=False, leaves=False)

    def scratch_bytes(self, config: DispatchConfig) -> int:
        """Return the bytes of a block of values that is quantised, as bits and as float32."""
        return 0 if config.format is Format.NONE else SCALE_BLOCK * (2 + 4)

    def check_sizes(self, problem: DispatchProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        require_vectors("K", problem.k)
        dispatch_space.require_records(problem)

    def cost_of(self, problem: DispatchProblem) -> Cost:
        """Estimate the time of the kernel for `problem` on one core."""
        words = 2 * problem.ranks * problem.m * 2 * problem.length
        return Cost(words * VALUE_US, max(1, problem.m))


def require_vectors(name: str, size: int) -> None:
    """Raise a Refusal unless a row is whole vectors of four columns."""
    refuse_unless(size % 4 == 0, "E_SIZE", f"must have {name} a multiple of 4 (got {size})")
