# SPDX-License-Identifier: Apache-2.0
"""
The few configs that the selector may choose on RTX 50, RTX PRO 6000 and DGX Spark: what prewarming
compiles.

They come from a model on paper, not from measurements. Few rows are bound by the weights that
memory delivers: there, tiles of 64 weights give more CTAs, and deep ones more bytes in flight; what
is read once is streamed past L2. Wide tiles are for many rows, which tensor cores bound.
"""

from __future__ import annotations

from jitgen.config import Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, Operands, Schedule, Tile

_Listed = tuple[tuple[int, int, int, Schedule], ...]

_STREAM = Schedule(raster=1, stream_b=True)
_SHARED = Schedule()

_MIXED: _Listed = (
    (8, 64, 512, _STREAM),
    (8, 128, 256, _STREAM),
    (16, 128, 256, _STREAM),
    (32, 128, 256, _STREAM),
    (64, 128, 128, _STREAM),
    (64, 128, 128, _SHARED),
    (128, 128, 128, _SHARED),
)
"""Rows, columns, depth and schedule, where rows have a byte for each value: fewer stages fit."""

_WIDE: _Listed = (
    (8, 64, 256, _STREAM),
    (8, 128, 256, _STREAM),
    (16, 128, 256, _STREAM),
    (32, 128, 128, _STREAM),
    (64, 128, 128, _STREAM),
    (64, 128, 128, _SHARED),
    (128, 128, 128, _SHARED),
)
"""Rows, columns, depth and schedule, where rows have two bytes for each value."""

_PACKED: _Listed = (
    (8, 64, 512, _STREAM),
    (8, 128, 256, _STREAM),
    (16, 128, 256, _STREAM),
    (32, 128, 256, _STREAM),
    (64, 128, 256, _STREAM),
    (64, 128, 256, _SHARED),
    (128, 128, 128, _SHARED),
)
"""Rows, columns, depth and schedule, where both operands have two values a byte."""

_BYTES: _Listed = (
    (8, 64, 256, _STREAM),
    (8, 128, 128, _STREAM),
    (16, 128, 128, _STREAM),
    (32, 128, 128, _STREAM),
    (64, 128, 128, _STREAM),
    (64, 128, 128, _SHARED),
    (128, 128, 128, _SHARED),
)
"""Rows, columns, depth and schedule, where both operands have a byte for each value."""

_PROMOTED: _Listed = (
    (8, 128, 128, _STREAM),
    (16, 128, 128, _STREAM),
    (32, 128, 128, _STREAM),
    (64, 128, 128, _STREAM),
    (64, 128, 128, _SHARED),
    (128, 128, 128, _SHARED),
)
"""Rows, columns, depth and schedule, where scales are applied by promotion, every 128 of K."""


def candidates(
    layout: Layout, operands: Operands, epilogue: Epilogue
) -> tuple[GroupedGemmConfig, ...]:
    """Return the configs that may be chosen, legal or not."""
    bits = operands.a_dtype.bits, operands.b_dtype.bits
    listed = {(16, 4): _WIDE, (8, 4): _MIXED, (4, 4): _PACKED}.get(bits, _BYTES)
    if operands.scale_granularity is ScaleGranularity.BLOCK128:
        listed = _PROMOTED
    return tuple(
        GroupedGemmConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=rows, n=columns, k=depth),
            schedule=way,
            epilogue=epilogue,
        )
        for rows, columns, depth, way in listed
    )


def min_latency(listed: tuple[GroupedGemmConfig, ...]) -> tuple[GroupedGemmConfig, ...]:
    """
    Return the configs of `listed` with the least latency for few rows: the narrowest of the
    smallest tiles, which give the most CTAs, with the depth that has the most bytes in flight.
    """
    place = min((each.tile.m, each.tile.n) for each in listed)
    return tuple(each for each in listed if (each.tile.m, each.tile.n) == place)
