# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `permute_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.format import Format
from jitgen.config.permute_quantize import (
    PermuteQuantizeConfig,
    PermuteQuantizeProblem,
    Tiling,
    Walk,
)
from jitgen.targets import permute_space
from jitgen.targets.base import Cost
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.devices import H200
from jitgen.targets.sm_90a.streams import WARP, StreamRules, share_of

COLUMNS = 16
"""K is a multiple of this: the GEMMs that read the results also take 16 bytes of e4m3."""

_SIDES = {
    "rows": (1, 2, 4),
    "threads": (64, 128, 256, 512),
    "ctas_per_sm": (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16),
    "vector": (8, 16),
    "held": (1, 2, 4),
}

_NEEDED: dict[tuple[Format, Walk, int, int], tuple[int, ...]] = {
    (Format.BLOCK128, Walk.GATHER, 8, 1): (48, 56, 72),
    (Format.BLOCK128, Walk.GATHER, 16, 1): (72, 80, 104),
    (Format.BLOCK128, Walk.SCATTER, 8, 1): (48, 56, 64),
    (Format.BLOCK128, Walk.SCATTER, 16, 1): (64, 72, 96),
    (Format.ROW, Walk.GATHER, 8, 1): (56, 72, 96),
    (Format.ROW, Walk.GATHER, 8, 2): (56, 72, 96),
    (Format.ROW, Walk.GATHER, 8, 4): (64, 96, 128),
    (Format.ROW, Walk.GATHER, 16, 1): (72, 96, 128),
    (Format.ROW, Walk.GATHER, 16, 2): (72, 96, 136),
    (Format.ROW, Walk.GATHER, 16, 4): (96, 128),
    (Format.ROW, Walk.SCATTER, 8, 1): (48, 56, 80),
    (Format.ROW, Walk.SCATTER, 8, 2): (48, 64, 80),
    (Format.ROW, Walk.SCATTER, 8, 4): (64, 80, 128),
    (Format.ROW, Walk.SCATTER, 16, 1): (56, 72, 112),
    (Format.ROW, Walk.SCATTER, 16, 2): (64, 96, 128),
    (Format.ROW, Walk.SCATTER, 16, 4): (96, 128),
    (Format.TENSOR, Walk.GATHER, 8, 1): (40, 48, 64),
    (Format.TENSOR, Walk.GATHER, 16, 1): (48, 64, 80),
    (Format.TENSOR, Walk.SCATTER, 8, 1): (48, 48, 64),
    (Format.TENSOR, Walk.SCATTER, 16, 1): (48, 64, 80),
    (Format.NONE, Walk.GATHER, 8, 1): (32, 40, 64),
    (Format.NONE, Walk.GATHER, 16, 1): (32, 48, 80),
    (Format.NONE, Walk.SCATTER, 8, 1): (48, 48, 64),
    (Format.NONE, Walk.SCATTER, 16, 1): (48, 56, 80),
    (Format.BLOCK128, Walk.SORT, 8, 1): (48,),
    (Format.BLOCK128, Walk.SORT, 16, 1): (64,),
    (Format.ROW, Walk.SORT, 8, 1): (48,),
    (Format.ROW, Walk.SORT, 8, 2): (56,),
    (Format.ROW, Walk.SORT, 8, 4): (64,),
    (Format.ROW, Walk.SORT, 16, 1): (56,),
    (Format.ROW, Walk.SORT, 16, 2): (56,),
    (Format.ROW, Walk.SORT, 16, 4): (72,),
    (Format.TENSOR, Walk.SORT, 8, 1): (48,),
    (Format.TENSOR, Walk.SORT, 16, 1): (56,),
    (Format.NONE, Walk.SORT, 8, 1): (48,),
    (Format.NONE, Walk.SORT, 16, 1): (48,),
    (Format.BLOCK128, Walk.TAKE, 8, 1): (64,),
    (Format.NONE, Walk.TAKE, 8, 1): (64,),
    (Format.ROW, Walk.TAKE, 8, 1): (64,),
    (Format.ROW, Walk.TAKE, 8, 2): (72,),
    (Format.ROW, Walk.TAKE, 8, 4): (80,),
    (Format.BLOCK128, Walk.COPY, 16, 1): (40,),
    (Format.ROW, Walk.COPY, 16, 1): (40,),
    (Format.MXFP8, Walk.GATHER, 8, 1): (48, 56, 64),
    (Format.MXFP8, Walk.GATHER, 16, 1): (56, 72, 96),
    (Format.MXFP4, Walk.GATHER, 8, 1): (48, 56, 64),
    (Format.MXFP4, Walk.GATHER, 16, 1): (64, 72, 96),
    (Format.NVFP4, Walk.GATHER, 8, 1): (64, 72, 80),
    (Format.NVFP4, Walk.GATHER, 16, 1): (96, 112, 128),
}
"""
Registers of a thread with which the compiler spills nothing, by format, walk, columns of a lane and
held vectors, for 1, 2 and 4 rows of a tile; what is not listed spills. Found by compiling every
layout with nvidia-cutlass-dsl 4.8.1.
"""

_OF_TOKENS = (Walk.SCATTER, Walk.COPY)
"""Walks over tokens whose rows the inverse says."""

_TILINGS = {
    Walk.GATHER: (
        Tiling(rows=2, vector=16, ctas_per_sm=5),
        Tiling(rows=2, ctas_per_sm=7),
        Tiling(threads=64, ctas_per_sm=16),
        Tiling(vector=16, ctas_per_sm=5),
        Tiling(ctas_per_sm=4),
    ),
    Walk.SCATTER: (
        Tiling(threads=64, ctas_per_sm=16, is_eager=True),
        Tiling(vector=16, is_eager=True),
        Tiling(vector=16),
        Tiling(vector=16, is_relayed=True),
        Tiling(ctas_per_sm=9),
    ),
    Walk.SORT: (Tiling(threads=64, ctas_per_sm=16),),
    Walk.TAKE: (Tiling(threads=64, ctas_per_sm=12),),
    Walk.COPY: (
        Tiling(vector=16, threads=64, ctas_per_sm=16, is_eager=True),
        Tiling(vector=16),
        Tiling(vector=16, is_relayed=True),
    ),
}
"""
Gathering reads as much as it writes; where tokens are walked over most bytes are stored. Few tokens
are loaded before it is known who wants them, as nothing matters but how long loads wait for each
other. Of many tokens the scales of blocks are relayed.
"""

_TILINGS_OF_COPIES = {
    Walk.GATHER: (
        Tiling(rows=4),
        Tiling(rows=2, ctas_per_sm=12),
        Tiling(threads=64, ctas_per_sm=16),
    ),
    Walk.SCATTER: (
        Tiling(threads=64, ctas_per_sm=16, is_eager=True),
        Tiling(rows=2, ctas_per_sm=9),
        Tiling(ctas_per_sm=9),
    ),
    Walk.SORT: (Tiling(threads=64, ctas_per_sm=16),),
    Walk.TAKE: (Tiling(threads=64, ctas_per_sm=12),),
}
"""
Tilings for values that are not quantised: with vectors of 16 columns a store of 16 bytes would fill
half of a sector.
"""

_TILINGS_OF_ROWS = (
    Tiling(threads=256, held=4, ctas_per_sm=4, is_eager=True),
    Tiling(threads=256, held=4, ctas_per_sm=4),
    Tiling(threads=256, vector=16, held=2, ctas_per_sm=3),
    Tiling(threads=256, held=1, ctas_per_sm=4),
    Tiling(threads=128, held=4, ctas_per_sm=8),
    Tiling(threads=256, held=2, ctas_per_sm=4),
)

_CALL_US, _LATENCY_US, _BYTES_PER_US = 1.5, 0.7, 3.85e6
"""
Microseconds of a launch and of a load from memory, and the rate of memory where most bytes are
stored.
"""

_RELAY_US, _RELAYED_PER_US = 1.4, 0.65e6
"""Microseconds of the second launch, and the scales a microsecond that it brings to their rows."""

_SECTOR_BYTES = 64
"""
Traffic of a scale that is stored alone: its sector is read from memory and written back. While L2
holds the sector, stores of neighbours are free.
"""

_UNWANTED = 0.25
"""Part of the tokens that go to no expert here, for which a kernel that loads all pays."""


class PermuteQuantize(StreamRules[PermuteQuantizeConfig, PermuteQuantizeProblem]):
    """Rules of the `permute_quantize` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16384)
    sums = permute_space.SUMS
    entry = "sm90/permute_quantize.py.jinja"
    second = ("sm90/permute_copies.py.jinja", permute_space.is_copying)
    usual = permute_space.USUAL
    sides = span = _SIDES
    multiple = COLUMNS
    note = f"the model was fitted to walks over tokens on an {H200.name}"
    check_kind = staticmethod(permute_space.check_kind)

    def legal_kind(self, config: PermuteQuantizeConfig) -> PermuteQuantizeConfig:
        """Return `config` with a kind and flags that go together."""
        start = permute_space.legal_kind(config)
        is_eager = start.tiling.is_eager and start.walk in _OF_TOKENS
        is_relayed = start.tiling.is_relayed and _can_relay(start)
        of_ranks = (Walk.COPY, Walk.TAKE)
        is_persistent = start.tiling.is_persistent and start.walk not in of_ranks
        flags = replace(
            start.tiling, is_eager=is_eager, is_relayed=is_relayed, is_persistent=is_persistent
        )
        return replace(start, tiling=flags)

    def check_flags(self, config: PermuteQuantizeConfig) -> None:
        """Raise a Refusal where the tiling does not go with format and walk."""
        tiling = config.tiling
        refuse_unless(
            _has_whole_rows(config) or tiling.held == 1,
            "E_HELD",
            f"held={tiling.held}: only scales of rows let a thread hold several vectors",
        )
        refuse_unless(
            config.walk in _OF_TOKENS or not tiling.is_eager,
            "E_EAGER",
            "is_eager: a kernel that walks over rows learns from the permutation what to load, and "
            "one that sorts loads first anyway",
        )
        refuse_unless(
            config.walk is not Walk.SORT or tiling.rows == 1,
            "E_SORT",
            f"rows={tiling.rows}: tokens whose pairs a kernel sorts itself are few, and each has "
            "warps of its own",
        )
        refuse_unless(
            config.walk is not Walk.COPY
            or (tiling.rows, tiling.vector, tiling.is_persistent) == (1, COLUMNS, False),
            "E_COPY",
            f"rows={tiling.rows}, vector={tiling.vector}{', persistent' * tiling.is_persistent}: a "
            f"lane copies {COLUMNS} columns of one token, which are 16 bytes, and a warp has one",
        )
        refuse_unless(
            config.walk is not Walk.TAKE
            or (tiling.rows, tiling.vector, tiling.is_persistent) == (1, 8, False),
            "E_TAKE",
            f"rows={tiling.rows}, vector={tiling.vector}{', persistent' * tiling.is_persistent}: a "
            "lane takes 8 columns of one token, and a warp has one",
        )
        refuse_unless(
            _can_relay(config) or not tiling.is_relayed,
            "E_RELAYED",
            "is_relayed: there are scales to bring to rows where tokens are walked over, and "
            f"blocks have theirs (got {config.format}, {config.walk})",
        )

    def needed(self, config: PermuteQuantizeConfig) -> int:
        """Return the registers that a thread needs; raise a Refusal where they never suffice."""
        needed = _needed(config)
        refuse_unless(
            needed is not None,
            "E_SPILLS",
            f"{self.work_words(config)}: more than all registers of a thread hold",
        )
        return needed or 0

    def work_words(self, config: PermuteQuantizeConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        tiling = config.tiling
        return f"{tiling.rows} rows of {tiling.held} x {tiling.vector} columns"

    def thread_bytes(self, config: PermuteQuantizeConfig) -> int:
        """Return the bytes of all loads that a thread has in flight at the same time."""
        column = 1 if config.walk is Walk.COPY else 2
        return column * config.tiling.vector * config.tiling.rows * config.tiling.held

    def listed_for(self, problem: PermuteQuantizeProblem) -> tuple[Tiling, ...]:
        """Return the tilings that may be chosen, legal or not."""
        if problem.format is Format.ROW and problem.walk is Walk.TAKE:
            return (Tiling(threads=256, held=4, ctas_per_sm=3),)
        if problem.format is Format.ROW and problem.walk is not Walk.COPY:
            return _TILINGS_OF_ROWS
        listed = _TILINGS_OF_COPIES if problem.format is Format.NONE else _TILINGS
        return listed[problem.walk]

    def cost(
        self,
        problem: PermuteQuantizeProblem,
        config: PermuteQuantizeConfig,
        device: Device,
        num_sms: int,
    ) -> Cost:
        """
        Estimate the time of `config`: its launch, and waves of loads or bytes at the rate of
        memory, whichever is slower.

        A wave is a chain of loads that wait for each other: three (offs, permutation and x), two
        for a walk over tokens, or one if both are loaded at once; and one more for a row that is
        loaded twice. Rates and times fit the measured times of 1 to 4096 tokens of 7168 columns
        with 8 places on an H200.
        """
        tiling, is_row = config.tiling, _has_whole_rows(config)
        is_gather = config.walk is Walk.GATHER
        tiles = -(-(problem.m * problem.top_k if is_gather else problem.m) // tiling.rows)
        warps = tiling.threads // WARP
        columns = tiling.vector * tiling.threads * tiling.held if is_row else problem.k
        passes = 1 if problem.k <= columns else 2
        if not is_row:
            tiles *= -(-problem.k // (tiling.vector * WARP))
        slots = num_sms * tiling.ctas_per_sm * (1 if is_row else warps)
        loads_at_once = tiling.is_eager or config.walk is Walk.SORT
        chain = (3 if is_gather else 1 if loads_at_once else 2) + passes - 1
        # A kernel that gathers reads each copy, though perhaps from L2.
        again = 2 * problem.k * problem.m * (problem.top_k - 1) if is_gather else 0
        unwanted = int(_UNWANTED * 2 * problem.k * problem.m) if loads_at_once else 0
        num_bytes = problem.traffic_bytes * passes + again + unwanted
        waiting_us = chain * _LATENCY_US * min(2.0, max(1.0, tiles / slots))
        if config.format is Format.BLOCK128:
            scales = problem.m * problem.top_k * -(-problem.k // SCALE_BLOCK)
            if tiling.is_relayed:
                waiting_us += _RELAY_US + scales / _RELAYED_PER_US
            elif not is_gather:
                beyond = max(0.0, 1 - device.l2_bytes / max(1, problem.traffic_bytes))
                num_bytes += int(_SECTOR_BYTES * scales * beyond)
        moved_us = num_bytes / (_BYTES_PER_US * share_of(device, num_sms))
        return Cost(_CALL_US + moved_us + waiting_us, -(-tiles // slots))

    def is_fitted(self, problem: PermuteQuantizeProblem) -> bool:
        """Say whether the cost model was fitted to calls like `problem`, on an H200."""
        return problem.walk is Walk.SCATTER


def _has_whole_rows(config: PermuteQuantizeConfig) -> bool:
    """Say whether a CTA takes whole rows, as it has to find their scales."""
    return config.format is Format.ROW and config.walk is not Walk.COPY


def _can_relay(config: PermuteQuantizeConfig) -> bool:
    return config.walk in _OF_TOKENS and config.format is Format.BLOCK128


def _needed(config: PermuteQuantizeConfig) -> int | None:
    """Return the registers that a thread needs; None where they never suffice."""
    tiling = config.tiling
    by_rows = _NEEDED.get((config.format, config.walk, tiling.vector, tiling.held), ())
    place = _SIDES["rows"].index(tiling.rows)
    return by_rows[place] if place < len(by_rows) else None
