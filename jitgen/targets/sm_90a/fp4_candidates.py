# SPDX-License-Identifier: Apache-2.0
"""
The few kernels for prepacked weights that the selector may choose: what prewarming compiles.

Tokens follow the rows of a group: on an H200 one tile that holds them was the fastest, and
several small ones never (32 rows as two tiles of 16 took 287 us, as one 162). Four math warpgroups
decode fastest; accumulators of many tokens leave room for three or two. Narrow tiles, and two CTAs
that take half of K each, are for calls that have fewer tiles than the chip has SMs. Weights are
streamed past L2 there.

Tall tiles are for groups of more than 128 rows, which read their weights once, or from L2. They
have two math warpgroups, whose registers hold the sums of 192 or 256 tokens. Of 256 a kernel
without a cluster has too few registers, and was 4 % slower in the mean.
"""

from __future__ import annotations

from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, Operands, Schedule, Tile
from jitgen.config.prepacked import PrepackedFormat
from jitgen.targets.sm_90a.fp4 import DEPTH
from jitgen.targets.sm_90a.fp4_tiles import MOST_PARTIALS, SOME_PARTIALS

_FEW = ((16, 256, 1), (16, 128, 1), (16, 128, 2))
_MORE = ((32, 256, 1), (32, 128, 1), (32, 128, 2), (64, 256, 1), (64, 128, 1), (128, 192, 1))
_TALL = ((192, Cluster()), (256, Cluster(n=2)))
"""Tokens and clusters of tall tiles, which have 128 columns."""

_TILES = {
    MOST_PARTIALS: ((8, 256, 1), (16, 192, 1), (16, 128, 1), (16, 128, 2), (32, 128, 1)),
    SOME_PARTIALS: (*_FEW, (32, 256, 1), (32, 192, 1), (32, 128, 1), (64, 128, 1)),
    1: (*_FEW, *_MORE),
    0: (*_FEW, *_MORE),
}
_PAIRS = {
    MOST_PARTIALS: ((8, 192, 1), (8, 128, 1), (8, 128, 2), (16, 128, 1)),
    SOME_PARTIALS: (*_FEW, (8, 128, 2), (32, 128, 1)),
    1: (*_FEW, (8, 128, 2), (32, 256, 1), (32, 128, 1), (64, 192, 1)),
}
"""
Tokens, columns, parts of K, by the partial sums of a k-block; of activations that are two e4m3
each, half as many tokens fill the rows.
"""


def candidates(layout: Layout, operands: Operands) -> tuple[GroupedGemmConfig, ...]:
    """Return the configs that may be chosen, legal or not."""
    shapes = _PAIRS if operands.a_dtype is DType.E4M3X2 else _TILES
    form = PrepackedFormat.of(operands.b_dtype, operands.scale_granularity)
    partials = -1 if form is None else form.facts.partials.get(operands.b_layout, -1)
    tall = _TALL if shapes is _TILES and partials == 1 else ()
    few = (
        GroupedGemmConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=tokens, n=columns, k=DEPTH),
            schedule=Schedule(stream_b=True, split_k=split_k),
        )
        for tokens, columns, split_k in shapes.get(partials, ())
    )
    many = (
        GroupedGemmConfig(
            layout=layout,
            operands=operands,
            tile=Tile(m=tokens, n=128, k=DEPTH),
            cluster=cluster,
        )
        for tokens, cluster in tall
    )
    return *few, *many
