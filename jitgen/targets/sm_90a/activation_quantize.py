# SPDX-License-Identifier: Apache-2.0
"""Rules of sm_90a for `activation_quantize`: see `jitgen.targets.protocol.Rules`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.activation_quantize import (
    Activation,
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
    Tiling,
)
from jitgen.config.config import Layout
from jitgen.config.format import Format
from jitgen.targets import activation_quantize_space
from jitgen.targets.base import Cost, tiled
from jitgen.targets.protocol import Device, refuse_unless
from jitgen.targets.sm_90a.devices import H200, activation_fit_of
from jitgen.targets.sm_90a.streams import WARP, StreamRules
from jitgen.targets.spaces import tilings

VECTOR = 8
"""Columns that a thread takes at once: 16 bytes of gates and 16 of ups."""

TILE_VECTORS = 32
"""Vectors in a tile: one for each lane of a warp."""

_SIDES = {"rows": (1, 2, 4, 8), "threads": (32, 64, 128, 256), "held": (1, 2, 4)}
_SPAN = {**_SIDES, "ctas_per_sm": (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)}
"""Values of each number of a tiling, with the CTAs of an SM, which the SM alone bounds."""


_OF_TILES = {1: 56, 2: 64, 4: 80, 8: 168}
_OF_MEASURED_TILES = {1: 48, 2: 56, 4: 72, 8: 128}
_OF_UNSCALED_TILES = {**_OF_TILES, 8: 255}
_AHEAD = {1: 64, 2: 96, 4: 255}
_OF_WHOLE_ROWS = {
    (1, 1): 64,
    (1, 2): 80,
    (1, 4): 128,
    (2, 1): 80,
    (2, 2): 168,
    (2, 4): 255,
    (4, 1): 255,
    (4, 2): 255,
}
_OF_WHOLE_NUMBERED_ROWS = {**_OF_WHOLE_ROWS, (2, 1): 96}
_MANY_ROWS = 8
_GREEDY = {
    (Format.ROW, Layout.MASKED, Activation.SWIGLU, False, 1): 72,
    (Format.ROW, Layout.MASKED, Activation.SWIGLU_OAI, True, 2): 96,
    (Format.ROW, Layout.CONTIGUOUS, Activation.SWIGLU_OAI, False, 2): 96,
    (Format.ROW, Layout.MASKED, Activation.SWIGLU_BIAS, False, 2): 96,
    (Format.ROW, Layout.MASKED, Activation.GEGLU_TANH, False, 2): 96,
    (Format.NONE, Layout.CONTIGUOUS, Activation.SWIGLU, False, 4): 128,
    (Format.NONE, Layout.CONTIGUOUS, Activation.SWIGLU_OAI, False, 4): 96,
    (Format.NONE, Layout.CONTIGUOUS, Activation.SWIGLU_OAI, True, 4): 96,
    (Format.NONE, Layout.RAGGED, Activation.SWIGLU_OAI, True, 4): 96,
}
"""
Registers of a thread below which the compiler spills more than a few instructions, by rows, by rows
and held vectors, or for the kinds that take more, with interleaved gates or not; what is not listed
always spills. Found by
compiling with nvidia-cutlass-dsl 4.8.1: every kind with what may be chosen, the others a sample,
with a step to spare. No formula gives them, for the compiler orders loads as it likes.
Rows with numbers of their own need more: of whole rows a step; of eight in a tile some spill.
"""

_WIDE = frozenset({Activation.SITU, Activation.GEGLU, Activation.GELU})
_OF_WIDE_TILES = {1: 80, 2: 128, 4: 255}
_OF_WIDE_ROWS = {(1, 1): 128, (2, 1): 168, (4, 1): 255}
"""
Registers below which the compiler spills for activations with several polynomials: by rows, with
loads ahead for up to two of them, and by whole rows and held vectors. Found in the same way, for
kinds with each layout and scale.
"""

_FIRST = frozenset({Activation.SWIGLU, Activation.SWIGLU_OAI})
_OF_UNSCALED_CONTIGUOUS = {1: 64, 2: 96, 4: 128}
"""
Registers below which the compiler spills for contiguous rows without scales, by rows, for
activations other than those in `_FIRST`, which have the table above.
"""

_UNSCALED_CONTIGUOUS = (
    Tiling(ctas_per_sm=4),
    Tiling(rows=2, ctas_per_sm=5),
    Tiling(rows=1, threads=64, ctas_per_sm=16),
)
_WIDE_TILES = (
    Tiling(ctas_per_sm=2),
    Tiling(rows=2, ctas_per_sm=4),
    Tiling(rows=1, ctas_per_sm=6),
)
_WIDE_ROWS = (
    Tiling(rows=1, threads=256, ctas_per_sm=2),
    Tiling(rows=2, threads=256, ctas_per_sm=1),
)
"""Tilings for activations in `_WIDE` with a scale for each row; none was measured."""

_MEASURED = (
    Tiling(is_persistent=False),
    Tiling(rows=2, ctas_per_sm=9),
    Tiling(rows=1, threads=64, ctas_per_sm=16),
)
"""Tilings for ragged rows, block scales and swiglu: the best of ten on an H200, most rows first."""

_USUAL = (
    Tiling(ctas_per_sm=6),
    Tiling(rows=2, ctas_per_sm=8),
    Tiling(rows=1, threads=64, ctas_per_sm=16),
)
_OF_NO_SEARCH = (Tiling(ctas_per_sm=6, is_persistent=False), *_USUAL[1:])
"""
Tilings for ragged rows whose scale, if they have one, is given. The first is 8 % faster than the
same one with persistent CTAs.
"""

_OF_ROWS = (
    Tiling(rows=2, threads=256, ctas_per_sm=3),
    Tiling(rows=1, threads=256, ctas_per_sm=4),
    Tiling(rows=2, threads=256, ctas_per_sm=2),
    Tiling(rows=1, threads=256, ctas_per_sm=3),
)
"""Tilings for a scale for each row. The last two are for the kinds that need the registers."""


class ActivationQuantize(StreamRules[ActivationQuantizeConfig, ActivationQuantizeProblem]):
    """Rules of the `activation_quantize` kernels, their candidates and their cost model."""

    row_edges: tuple[int, ...] = (
        *(1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        *(32768, 131072),
    )
    sums = activation_quantize_space.SUMS
    entry = "sm90/activation_quantize.py.jinja"
    usual = activation_quantize_space.USUAL
    sides, span = _SIDES, _SPAN
    note = f"the model was fitted to ragged rows with block scales on an {H200.name}"
    check_kind = staticmethod(activation_quantize_space.check_kind)
    legal_kind = staticmethod(activation_quantize_space.legal_kind)

    def check_flags(self, config: ActivationQuantizeConfig) -> None:
        """Raise a Refusal where the tiling does not go with the scales."""
        tiling, is_row = config.tiling, config.scale_granularity is Format.ROW
        refuse_unless(
            is_row or tiling.held == 1,
            "E_HELD",
            f"held={tiling.held}: only scales of rows let a thread hold several vectors",
        )
        refuse_unless(
            not (is_row and tiling.loads_ahead),
            "E_LOADS_AHEAD",
            "loads_ahead: a CTA that finds scales of rows waits for all of its warps anyway",
        )

    def needed(self, config: ActivationQuantizeConfig) -> int:
        """Return the registers that a thread needs; raise a Refusal where they never suffice."""
        tiling, needed = config.tiling, _needed(config)
        refuse_unless(
            needed is not None,
            "E_SPILLS",
            f"{tiling.rows} rows, {tiling.held} held, loads_ahead={tiling.loads_ahead}: more than "
            "all registers of a thread hold",
        )
        return needed or 0

    def work_words(self, config: ActivationQuantizeConfig) -> str:
        """Describe the loads that a warp has in flight, for errors."""
        return f"{config.tiling.rows} rows"

    def thread_bytes(self, config: ActivationQuantizeConfig) -> int:
        """
        Return the bytes of all loads that a thread has in flight at the same time: of gates and
        ups, or of values alone.
        """
        tiling, is_row = config.tiling, config.scale_granularity is Format.ROW
        return (
            2
            * config.activation.inputs
            * VECTOR
            * tiling.rows
            * (tiling.held if is_row else 1 + tiling.loads_ahead)
        )

    def variants(self, start: ActivationQuantizeConfig) -> Iterator[ActivationQuantizeConfig]:
        """Yield the configs, legal or not, among which the nearest to `start` is searched."""
        for tiling in tilings(start.tiling, _SPAN):
            for loads_ahead in (start.tiling.loads_ahead, False):
                yield tiled(start, replace(tiling, loads_ahead=loads_ahead))

    def configs(self) -> Iterator[ActivationQuantizeConfig]:
        """
        Yield every kind with every number of rows, threads and CTAs, legal or not; other fields of
        the tiling are the default.
        """
        for kind in self.kinds():
            for tiling in tilings(Tiling(), {**_SPAN, "held": (1,)}):
                yield tiled(kind, tiling)

    def listed_for(self, problem: ActivationQuantizeProblem) -> tuple[Tiling, ...]:
        """Return the tilings that may be chosen, legal or not."""
        is_row = problem.scale_granularity is Format.ROW
        if problem.activation in _WIDE:
            return _WIDE_ROWS if is_row else _WIDE_TILES
        if is_row:
            return _OF_ROWS
        if _is_unscaled_contiguous(problem):
            return _UNSCALED_CONTIGUOUS
        if not problem.scale_granularity.has_float_scales and problem.layout is Layout.RAGGED:
            return _OF_NO_SEARCH
        return _MEASURED if _is_measured(problem) else _USUAL

    def cost(
        self,
        problem: ActivationQuantizeProblem,
        config: ActivationQuantizeConfig,
        device: Device,
        num_sms: int,
    ) -> Cost:
        """Estimate the time of `config`: its launch, and its traffic at the rate of memory."""
        fit, tiling = activation_fit_of(device), config.tiling
        sides = (tiling.rows, tiling.threads, tiling.ctas_per_sm, tiling.is_persistent)
        call_us, rate = fit.speeds.get(sides, fit.other)
        if problem.layout is Layout.MASKED:
            call_us += fit.search_us
        tiles = problem.groups * -(-problem.rows_per_group // tiling.rows)
        warps = num_sms * tiling.ctas_per_sm * tiling.threads // WARP
        widths = -(-problem.n // (VECTOR * TILE_VECTORS))
        is_row = problem.scale_granularity is Format.ROW
        slots = num_sms * tiling.ctas_per_sm if is_row else warps
        share = min(1.0, num_sms / device.num_sms)
        return Cost(
            call_us + problem.traffic_bytes / (rate * share),
            -(-tiles * (1 if is_row else widths) // slots),
            tiles * tiling.rows / max(1, problem.m),
        )

    def is_fitted(self, problem: ActivationQuantizeProblem) -> bool:
        """Say whether the cost model was fitted to calls like `problem`, on an H200."""
        return _is_measured(problem) or problem.scale_granularity is Format.ROW

    def check_sizes(self, problem: ActivationQuantizeProblem) -> None:
        """Raise a Refusal where a row does not end with a whole vector."""
        refuse_unless(
            problem.n % VECTOR == 0,
            "E_SIZE",
            f"must have I, {'half of ' * problem.activation.is_gated}its columns, a multiple of "
            f"{VECTOR} on {self.arch}, 16 bytes of bf16 (got {problem.n})",
        )


def _needed(config: ActivationQuantizeConfig) -> int | None:
    """Return the registers that a thread needs; None where they never suffice."""
    tiling, rows, is_row = config.tiling, config.tiling.rows, config.scale_granularity is Format.ROW
    kind = (config.scale_granularity, config.layout, config.activation, config.interleaved, rows)
    if config.activation in _WIDE:
        return _of_wide(tiling, is_row=is_row)
    if tiling.loads_ahead:
        return _AHEAD.get(rows)
    if tiling.held == 1 and kind in _GREEDY:
        return _GREEDY[kind]
    if is_row:
        of_rows = _OF_WHOLE_NUMBERED_ROWS if config.per_group else _OF_WHOLE_ROWS
        return of_rows.get((rows, tiling.held))
    return _of_tiles(config).get(rows)


def _of_wide(tiling: Tiling, *, is_row: bool) -> int | None:
    if is_row:
        return _OF_WIDE_ROWS.get((tiling.rows, tiling.held))
    return None if tiling.loads_ahead and tiling.rows > 2 else _OF_WIDE_TILES.get(tiling.rows)


def _of_tiles(config: ActivationQuantizeConfig) -> dict[int, int]:
    found = _of_any_tiles(config)
    if config.per_group:  # eight rows have numbers of as many groups
        return {rows: needed for rows, needed in found.items() if rows < _MANY_ROWS}
    return found


def _of_any_tiles(config: ActivationQuantizeConfig) -> dict[int, int]:
    if _is_unscaled_contiguous(config):
        return _OF_UNSCALED_CONTIGUOUS
    if config.scale_granularity is Format.NONE:
        return _OF_UNSCALED_TILES
    return _OF_MEASURED_TILES if _is_measured(config) else _OF_TILES


def _is_unscaled_contiguous(problem: ActivationQuantizeProblem | ActivationQuantizeConfig) -> bool:
    is_contiguous = problem.layout is Layout.CONTIGUOUS
    return (
        is_contiguous
        and problem.scale_granularity is Format.NONE
        and problem.activation not in _FIRST
    )


def _is_measured(problem: ActivationQuantizeProblem | ActivationQuantizeConfig) -> bool:
    return (
        problem.layout is Layout.RAGGED
        and problem.scale_granularity is Format.BLOCK128
        and problem.activation is Activation.SWIGLU
        and not problem.interleaved
        and not problem.power_of_two
    )
