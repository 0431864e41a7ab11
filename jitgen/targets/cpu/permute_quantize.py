# SPDX-License-Identifier: Apache-2.0
"""Rules of the cpu target for `permute_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem, Walk
from jitgen.targets import permute_space
from jitgen.targets.base import Cost
from jitgen.targets.cpu.rules import CpuTiledRules
from jitgen.targets.protocol import refuse_unless

_VALUE_US = 2e-3
"""Microseconds of one value, read, quantised and stored on one core of a cloud x86-64 server."""


class PermuteQuantize(CpuTiledRules[PermuteQuantizeConfig, PermuteQuantizeProblem]):
    """Rules of the `permute_quantize` kernels, their candidates and their cost model."""

    sums = permute_space.SUMS
    entry = "cpu/permute_quantize.py.jinja"
    second = ("cpu/permute_copies.py.jinja", permute_space.is_copying)
    usual = permute_space.USUAL

    def check_kind(self, config: PermuteQuantizeConfig) -> None:
        """Raise a Refusal where format and walk do not go together, or not on a CPU."""
        permute_space.check_kind(config)
        refuse_unless(
            not config.format.has_atoms,
            "E_FORMAT",
            f"{config.format}: on a CPU jitgen.quantize makes scales in atoms, of rows that were "
            "gathered before",
        )
        refuse_unless(
            config.walk not in (Walk.SCATTER, Walk.TAKE),
            "E_WALK",
            f"{config.walk}: a cpu kernel is one thread, whose caches remember a token: gather",
        )

    def legal_kind(self, config: PermuteQuantizeConfig) -> PermuteQuantizeConfig:
        """Return `config` with a format and a walk that a CPU has."""
        plain = config
        if config.format.has_atoms:
            plain = replace(config, format=Format.BLOCK128)
        kind = permute_space.legal_kind(plain)
        return replace(kind, walk=Walk.GATHER) if kind.walk in (Walk.SCATTER, Walk.TAKE) else kind

    def scratch_bytes(self, config: PermuteQuantizeConfig) -> int:  # all are alike
        """Return the bytes of a block of values, as bits and as float32."""
        return SCALE_BLOCK * (2 + 4)

    def cost_of(self, problem: PermuteQuantizeProblem) -> Cost:
        """Estimate the time on one core; scales of rows take two passes."""
        passes = 2 if problem.format is Format.ROW else 1
        us = problem.m * problem.top_k * problem.k * _VALUE_US * passes
        return Cost(us, max(1, problem.m), float(passes))
