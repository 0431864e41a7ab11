# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `activation_backward`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.activation_backward import (
    ActivationBackwardConfig,
    ActivationBackwardProblem,
    Tiling,
)
from jitgen.config.activation_quantize import Activation
from jitgen.config.config import Layout
from jitgen.targets import activation_space
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.streams import WARP, StreamRules, share_of

VECTOR = 8
"""Columns that a thread takes at once: 16 bytes of each tensor."""

_SIDES = {
    "rows": (1, 2),
    "threads": (64, 128, 256),
    "ctas_per_sm": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
}

_NEEDED = {1: 96, 2: 128}
_NEEDED_BY_FEW = {1: 128, 2: 168}
"""
Registers of a thread with which the compiler spills nothing, by rows of a tile; more for SITU,
which has two polynomials, for contiguous rows with gates, and for ragged rows with GEGLU. Found by
compiling every activation with nvidia-cutlass-dsl 4.8.1.
"""

_TILINGS = (Tiling(), Tiling(rows=1, threads=64, ctas_per_sm=10), Tiling(is_persistent=False))
_OF_FEW = (Tiling(ctas_per_sm=3), Tiling(rows=1, threads=64, ctas_per_sm=8))

_CALL_US, _LATENCY_US, _BYTES_PER_US = 3.0, 1.5, 3.6e6
"""
Microseconds of a launch, and of loads and arithmetic of a tile, and the rate of memory, on an H200:
on paper, after those of `activation_quantize`.
"""


class ActivationBackward(StreamRules[ActivationBackwardConfig, ActivationBackwardProblem]):
    """Rules of the `activation_backward` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 16384)
    sums = activation_space.SUMS
    entry = "sm90/activation_backward.py.jinja"
    usual = activation_space.USUAL
    check_kind = staticmethod(activation_space.check_kind)
    legal_kind = staticmethod(activation_space.legal_kind)
    sides = span = _SIDES
    note = "the model is on paper: nothing was measured"

    def needed(self, config: ActivationBackwardConfig) -> int:
        """Return the registers that a thread needs."""
        return (_NEEDED_BY_FEW if _is_greedy(config) else _NEEDED)[config.tiling.rows]

    def listed_for(self, problem: ActivationBackwardProblem) -> tuple[Tiling, ...]:
        """Return the tilings that may be chosen, legal or not."""
        return _OF_FEW if _is_greedy(problem) else _TILINGS

    def work_words(self, config: ActivationBackwardConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        return f"{config.tiling.rows} rows"

    def thread_bytes(self, config: ActivationBackwardConfig) -> int:
        """
        Return the bytes of all loads that a thread has in flight at the same time: of dy, gates and
        ups.
        """
        return 2 * VECTOR * (1 + config.activation.inputs) * config.tiling.rows

    def cost(
        self,
        problem: ActivationBackwardProblem,
        config: ActivationBackwardConfig,
        device: Device,
        num_sms: int,
    ) -> Cost:
        """Estimate the time of `config`: its launch, and bytes or waves of tiles."""
        tiling = config.tiling
        tiles = problem.groups * -(-problem.rows_per_group // tiling.rows)
        tiles *= -(-problem.n // (VECTOR * WARP))
        slots = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        waves = -(-tiles // slots)
        bytes_us = problem.traffic_bytes / (_BYTES_PER_US * share_of(device, num_sms))
        lost = 0.0 if tiling.is_persistent else 0.5
        us = _CALL_US + max(bytes_us, waves * _LATENCY_US) + _LATENCY_US + lost
        return Cost(us, waves)

    def check_sizes(self, problem: ActivationBackwardProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        refuse_unless(
            problem.n % VECTOR == 0,
            "E_SIZE",
            f"must have I columns, a multiple of {VECTOR} on {self.arch}, 16 bytes of bf16 (got "
            f"{problem.n})",
        )


def _is_greedy(of: ActivationBackwardConfig | ActivationBackwardProblem) -> bool:
    """Say whether kernels need more registers than those of other activations and layouts."""
    if of.activation is Activation.SITU:
        return True
    if of.layout is Layout.RAGGED:
        return of.activation in {Activation.GEGLU, Activation.GEGLU_TANH}
    return of.layout is Layout.CONTIGUOUS and of.activation.is_gated
