# SPDX-License-Identifier: Apache-2.0
"""
Common rules of kernels that send to other GPUs of the host and wait for what they send.

All CTAs of a launch run at the same time: a CTA may wait for data from the peer's last CTA, which
would never start if it had to wait for the end of CTAs that wait for ours. So there are at most as
many as SMs, and each has room on an SM of its own.
"""

from __future__ import annotations

from jitgen.config.dispatch import Tiling
from jitgen.support.frozen import frozen
from jitgen.targets.base import Cost, ProblemT, TiledT
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.streams import StreamRules, registers_of
from jitgen.targets.spaces import check_sides

VECTOR = 4
"""Columns of a vector: 8 bytes, which the wire carries as 16."""

_SIDES = {"threads": (128, 256, 512), "ctas": (8, 16, 32, 64, 128)}

LISTED = (Tiling(), Tiling(threads=512))

_CALL_US, _PASS_US, _LARGE_US = 2.6, {128: 0.5, 256: 0.6, 512: 0.7}, 0.9
"""
Microseconds of a call with the way between two GPUs, those that each vector of a thread adds, and
those that CTAs of 512 threads add: fitted to times of `dispatch` and `combine_ranks` on two H200s,
measured on 2026-11-28, so far as to choose between 256 threads, which win up to 16 tokens of 7168
columns a rank, and 512.
"""


@frozen
class WireDerived:
    """
    Numbers that follow from a legal config.

    Attributes:
        registers: Registers of a thread if an SM has one CTA.
    """

    registers: int


class WireRules(StreamRules[TiledT, ProblemT]):
    """
    Rules of kernels that send to other GPUs. A subclass sets the class attributes of `StreamRules`
    that have no value here, and implements `vectors`.
    """

    row_edges: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    alignment = 8
    sides = span = _SIDES
    multiple = VECTOR
    note = "the model was fitted to calls of two ranks"
    listed = LISTED

    def derive(self, config: TiledT) -> WireDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        self.check_kind(config)
        tiling = config.tiling
        check_sides(tiling, _SIDES)
        return WireDerived(registers=registers_of(tiling.threads))

    def vectors(self, problem: ProblemT) -> int:
        """Return how many vectors, of 8 bytes each, a rank sends in a call."""
        raise NotImplementedError

    def cost(self, problem: ProblemT, config: TiledT, device: Device, num_sms: int) -> Cost:
        """Estimate the time of `config`: a call, and what the vectors of each thread add."""
        tiling = config.tiling
        passes = -(-self.vectors(problem) // (tiling.threads * min(tiling.ctas, num_sms)))
        large_us = _LARGE_US if tiling.threads > 256 else 0.0
        return Cost(_CALL_US + large_us + _PASS_US[tiling.threads] * passes, passes)
