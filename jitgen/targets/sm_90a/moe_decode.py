# SPDX-License-Identifier: Apache-2.0
"""
Rules of sm_90a for `moe_decode`: see `jitgen.targets.protocol.Rules`.

All CTAs of a launch run at the same time, one on each SM, because each waits for what the others
have computed.
"""

from __future__ import annotations

from jitgen.config.moe_decode import MOST_EXPERTS, MoeDecodeConfig, MoeDecodeProblem, Tiling
from jitgen.support.frozen import frozen
from jitgen.targets import combine_space
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.streams import StreamRules, share_of
from jitgen.targets.spaces import check_sides
from jitgen.targets.sums import SumOrder

BLOCK = 128
"""Rows and columns that share a scale."""

CHUNK = 512
"""Columns of a stage: four blocks, which are multiplied together."""

MOST_TILES = 4
"""Pairs of 8 columns of the result that a CTA has sums for."""

_SHARED_BYTES = 232_448
_STAGE_BYTES = 16 * CHUNK
_TOKEN_BYTES = 8 * CHUNK  # a chunk of 8 tokens
_SUMS_BYTES = 2 * 256 * 4  # of a warpgroup; those at the end lie where tokens were
_LIST_BYTES = 64 * (2 + 8) * 4
_TABLE_BYTES = MOST_EXPERTS * 16
_SCALE_BYTES = 32 * 4  # of a chunk of tokens, or of a stage
_SPARE_BYTES = 1024  # barriers, numbers, alignment

_SIDES = {"warpgroups": (3, 4), "stages": (2, 3, 4, 5, 6), "room": (4, 8, 14)}

_CALL_US, _BYTES_PER_US = 8.0, 4.25e6
"""
Microseconds of a call of one token besides reading its bytes, and the rate at which these cross
DRAM. Both were measured on an H200 on 2026-11-28.
"""


@frozen
class MoeDecodeDerived:
    """
    Numbers that follow from a legal config.

    Attributes:
        threads: Threads of a CTA.
        tiles: Pairs of 8 columns of the result that a CTA has sums for.
        shared_bytes: Shared memory of a CTA.
    """

    threads: int
    tiles: int
    shared_bytes: int


class MoeDecode(StreamRules[MoeDecodeConfig, MoeDecodeProblem]):
    """Rules of the `moe_decode` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 2, 4)
    sums = SumOrder(
        words="by experts that any token chose, over warpgroups; what is shared last",
        free=("has_shared", "is_weighted"),
    )
    check_kind = staticmethod(combine_space.check_kind)
    legal_kind = staticmethod(combine_space.legal_kind)
    entry = "sm90/moe_decode.py.jinja"
    usual = MoeDecodeConfig()
    sides = span = _SIDES
    listed = (Tiling(), Tiling(stages=3))
    columns, multiple = "hidden", BLOCK
    note = "the model was fitted to calls of one token"

    def derive(self, config: MoeDecodeConfig) -> MoeDecodeDerived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        self.check_kind(config)
        tiling = config.tiling
        check_sides(tiling, _SIDES)
        threads = 160 * tiling.warpgroups
        each = tiling.stages * (_STAGE_BYTES + _SCALE_BYTES) + 2 * _TOKEN_BYTES + _SUMS_BYTES
        shared_bytes = (
            tiling.warpgroups * (each + 2 * _SCALE_BYTES)
            + tiling.room * (_TOKEN_BYTES + _SCALE_BYTES)
            + _LIST_BYTES
            + _TABLE_BYTES
            + _SPARE_BYTES
        )
        refuse_unless(
            shared_bytes <= _SHARED_BYTES,
            "E_SMEM",
            f"{tiling.short} need {shared_bytes} bytes of shared memory, and a CTA has "
            f"{_SHARED_BYTES}",
        )
        return MoeDecodeDerived(
            threads=threads,
            tiles=MOST_TILES,
            shared_bytes=shared_bytes,
        )

    def listed_for(self, problem: MoeDecodeProblem) -> tuple[Tiling, ...]:
        """Return the candidate tilings with room for the tokens."""
        return tuple(each for each in self.listed if problem.hidden <= CHUNK * each.room)

    def check_sizes(self, problem: MoeDecodeProblem) -> None:
        """Raise a Refusal for widths that no kernel takes."""
        super().check_sizes(problem)
        most = CHUNK * max(_SIDES["room"])
        refuse_unless(
            problem.hidden <= most,
            "E_SIZE",
            f"must have H at most {most} on {self.arch} (got {problem.hidden})",
        )
        refuse_unless(
            problem.intermediate % BLOCK == 0,
            "E_SIZE",
            f"must have I a multiple of {BLOCK} on {self.arch} (got {problem.intermediate})",
        )

    def cost(
        self, problem: MoeDecodeProblem, config: MoeDecodeConfig, device: Device, num_sms: int
    ) -> Cost:
        """Estimate the time of `config`: a call, and its bytes at the rate of memory."""
        moved_us = problem.traffic_bytes / (_BYTES_PER_US * share_of(device, num_sms))
        order = self.listed.index(config.tiling) if config.tiling in self.listed else 9
        return Cost(_CALL_US + moved_us + 0.01 * order, 1)
