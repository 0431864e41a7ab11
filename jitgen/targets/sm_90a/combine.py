# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `combine`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from jitgen.config.combine import CombineConfig, CombineProblem, Tiling
from jitgen.targets import combine_space
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.streams import WARP, StreamRules, share_of
from jitgen.targets.sums import SumOrder

VECTOR = 8
"""Columns that a lane takes: 16 bytes."""

_SIDES = {
    "rows": (1, 2),
    "loads": (1, 2, 4, 8, 16),
    "threads": (64, 128, 256),
    "ctas_per_sm": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16),
}

_NEEDED = {
    1: {1: 64, 2: 48, 4: 64, 8: 80, 16: 128},
    2: {1: 64, 2: 80, 4: 96, 8: 136, 16: 255},
}
"""
Registers of a thread with which the compiler spills nothing, by rows of a tile and loads. Found by
compiling with nvidia-cutlass-dsl 4.8.1.
"""

_TILINGS = (
    Tiling(loads=8, ctas_per_sm=6),
    Tiling(),
    Tiling(loads=8, threads=64, ctas_per_sm=12),
    Tiling(loads=8, ctas_per_sm=6, is_persistent=True),
)

_CALL_US, _LATENCY_US, _WAVE_US, _BYTES_PER_US = 3.0, 0.7, 0.3, 4.0e6
"""
Microseconds of a launch, of a load from memory and of what a wave of CTAs loses at its ends, and
the rate of memory: those of `activation_quantize` on an H200, as nothing of this operation was
measured yet.
"""


class Combine(StreamRules[CombineConfig, CombineProblem]):
    """Rules of the `combine` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384)
    sums = SumOrder(
        words="expert by expert, as the token lists them; what is shared last",
        free=("has_shared", "is_weighted", "tiling"),
    )
    entry = "sm90/combine.py.jinja"
    usual = CombineConfig()
    check_kind = staticmethod(combine_space.check_kind)
    legal_kind = staticmethod(combine_space.legal_kind)
    sides = span = _SIDES
    listed = _TILINGS
    columns, multiple = "n", VECTOR
    note = "the model is on paper: nothing was measured"

    def needed(self, config: CombineConfig) -> int:
        """Return the registers that a thread needs."""
        return _NEEDED[config.tiling.rows][config.tiling.loads]

    def work_words(self, config: CombineConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        return f"{config.tiling.rows} rows of {config.tiling.loads} loads"

    def thread_bytes(self, config: CombineConfig) -> int:
        """Return the bytes of all loads that a thread has in flight at the same time."""
        return 2 * VECTOR * config.tiling.rows * config.tiling.loads

    def cost(
        self, problem: CombineProblem, config: CombineConfig, device: Device, num_sms: int
    ) -> Cost:
        """
        Estimate the time of `config`, on paper: its launch, loads that wait for each other, and
        bytes, at the rate of memory or of the loads in flight.
        """
        tiling = config.tiling
        tiles = -(-problem.m // tiling.rows) * -(-problem.n // (VECTOR * WARP))
        slots = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        waves = -(-tiles // slots)
        chain = 1 + -(-problem.top_k // tiling.loads)
        bytes_us = problem.traffic_bytes / (_BYTES_PER_US * share_of(device, num_sms))
        us = _CALL_US + max(bytes_us, chain * _LATENCY_US * tiles / slots) + chain * _LATENCY_US
        return Cost(us + (0 if tiling.is_persistent else _WAVE_US * (waves > 1)), waves)
