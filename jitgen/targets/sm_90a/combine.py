# SPDX-License-Identifier: Apache-2.0
"""What sm_90a says of `combine`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.combine import CombineConfig, CombineProblem, Tiling
from jitgen.targets.protocol import Candidate, Device, Template, legal_of, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.streams import WARP, StreamDerived, registers_of, threads_of
from jitgen.targets.spaces import check_sides, nearest_tiling, tilings
from jitgen.targets.sums import SumOrder
from jitgen.templates import ROOT

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

_PARAMETERS = frozenset(
    (
        *("name", "config_json", "has_shared", "rows", "loads", "threads", "ctas_per_sm"),
        *("is_persistent", "use_pdl"),
    )
)

_TILINGS = (
    Tiling(loads=8, ctas_per_sm=6),
    Tiling(),
    Tiling(loads=8, threads=64, ctas_per_sm=12),
    Tiling(loads=8, ctas_per_sm=6, is_persistent=True),
)

_CALL_US, _LATENCY_US, _WAVE_US, _BYTES_PER_US = 3.0, 0.7, 0.3, 4.0e6
"""
A launch, a load from memory, what a wave of CTAs loses at its ends, and the rate of memory: those
of `silu_mul_quantize` on an H200, as nothing of this operation was measured yet.
"""


class Combine:
    """The rules of its kernels, the few that may be chosen, and what they cost."""

    arch = "sm_90a"
    generation = 1
    alignment = 16
    row_edges: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384)
    sums = SumOrder(
        words="expert by expert, as the token lists them; what is shared last",
        free=(
            "has_shared",
            "tiling",
        ),
    )

    def derive(self, config: CombineConfig) -> StreamDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        tiling = config.tiling
        check_sides(tiling, _SIDES)
        threads = threads_of(tiling.threads, tiling.ctas_per_sm)
        registers = registers_of(threads)
        needed = _NEEDED[tiling.rows][tiling.loads]
        refuse_unless(
            needed <= registers,
            "E_REGS",
            f"{tiling.rows} rows of {tiling.loads} loads need {needed} registers a thread, and "
            f"{threads} threads leave each {registers}",
        )
        return StreamDerived(
            registers=registers, bytes_ahead=2 * VECTOR * tiling.rows * tiling.loads * threads
        )

    def nearest(self, config: CombineConfig) -> CombineConfig | None:
        """Return the legal config that is nearest to a refused one: sides by their ratios."""
        every = (replace(config, tiling=tiling) for tiling in tilings(config.tiling, _SIDES))
        return nearest_tiling(config, every, self, _SIDES)

    def configs(self) -> Iterator[CombineConfig]:
        """Yield configs of every size, legal or not, with the default launch."""
        for has_shared in (False, True):
            for tiling in tilings(Tiling(), _SIDES):
                yield CombineConfig(has_shared=has_shared, tiling=tiling)

    def candidates(self, problem: CombineProblem) -> tuple[CombineConfig, ...]:
        """Return the few configs that may be chosen for `problem`."""
        kind = CombineConfig(has_shared=problem.has_shared)
        return legal_of((replace(kind, tiling=each) for each in _TILINGS), self)

    def predict(
        self, problem: CombineProblem, config: CombineConfig, device: Device, num_sms: int
    ) -> Candidate:
        """
        Return what `config` would take, on paper: its launch, loads that wait for each other, and
        bytes at memory's rate or as many as are under way.
        """
        tiling = config.tiling
        tiles = -(-problem.m // tiling.rows) * -(-problem.n // (VECTOR * WARP))
        slots = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        waves = -(-tiles // slots)
        chain = 1 + -(-problem.top_k // tiling.loads)
        share = min(1.0, num_sms / device.num_sms) * device.dram_gbps / H200.dram_gbps
        bytes_us = problem.traffic_bytes / (_BYTES_PER_US * share)
        cost = _CALL_US + max(bytes_us, chain * _LATENCY_US * tiles / slots) + chain * _LATENCY_US
        return Candidate(
            config=config,
            cost=cost + (0 if tiling.is_persistent else _WAVE_US * (waves > 1)),
            padding_ratio=1.0,
            waves=waves,
            traffic_bytes=problem.traffic_bytes,
            limiter="stream",
        )

    def doubt(self, problem: CombineProblem, device: Device) -> str:  # noqa: ARG002
        """Return what the model was not fitted to."""
        return "the model is on paper: nothing was measured"

    def check_sizes(self, problem: CombineProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        refuse_unless(
            problem.n % VECTOR == 0,
            "E_SIZE",
            f"must have N a multiple of {VECTOR} on {self.arch} (got {problem.n})",
        )

    def templates(self) -> tuple[Template, ...]:
        """Return the template of its kernels."""
        return (Template(root=ROOT, entry="sm90/combine.py.jinja", parameters=_PARAMETERS),)
