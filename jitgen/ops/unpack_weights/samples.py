# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `unpack_weights` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Self

import torch

from jitgen.config import Arch
from jitgen.config.prepacked import K_MULTIPLE
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats.mx32 import VALUES
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.formats.prepacked_scales import NAN
from jitgen.formats.unpacked import unpacked
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import Output, Solved, nothing_unreachable, untouched
from jitgen.support.frozen import frozen

_N_MULTIPLE = 8
_SCANNED = 2 * 8
"""Blocks that 8 threads read together in one pass of the loop that finds the largest exponents."""

_NEAR, _FAR = 14, 24
"""
Range of the exponents of exact problems, and of others: the latter is wider than that of e4m3.
"""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        groups: Matrices.
        n: Rows of each.
        k: Columns.
    """

    numbers = (
        Number("G", "groups"),
        Number("N", "rows of each", multiple=_N_MULTIPLE),
        Number("K", "columns", multiple=K_MULTIPLE),
    )
    words = "{groups} groups, N {n}, K {k}"

    groups: int
    n: int
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: UnpackWeightsConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: first two parts of K of which the last is short, more
        blocks than threads read together, and tails of N and K; then less than a block.
        """
        columns = max(config.tiling.columns, _SCANNED) + 2
        long = cls(groups=1, n=blocks.ROWS + _N_MULTIPLE, k=columns * blocks.DEPTH + VALUES)
        return long, cls(groups=3, n=blocks.ROWS - _N_MULTIPLE, k=3 * VALUES)

    @classmethod
    def edges(cls, config: UnpackWeightsConfig, arch: Arch) -> tuple[Self, ...]:
        groups, rows, columns = cls.numbers
        lengths = (blocks.DEPTH, config.tiling.columns * blocks.DEPTH, _SCANNED * blocks.DEPTH)
        sizes = in_pairs(around(groups), around(rows, blocks.ROWS), around(columns, *lengths))
        return tuple(cls(groups=g, n=n, k=k) for g, n, k in sizes)

    @classmethod
    def of_numbers(cls, config: UnpackWeightsConfig, *numbers: int) -> Self:
        groups, n, k = numbers
        return cls(groups=groups, n=n, k=k)


unreachable = nothing_unreachable


def tile(_config: UnpackWeightsConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return blocks.ROWS, blocks.DEPTH


def make(
    config: UnpackWeightsConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed`.

    Some scales are NaN, some rows have only NaN scales, some rows and blocks are zeros, and
    exponents differ by as much as is exact, or by more.
    """
    chance = torch.Generator().manual_seed(seed)
    groups, n, k = sizes.groups, sizes.n, sizes.k
    of_row = -(-k // VALUES)
    packed = torch.randint(256, (groups, n, k // 2), dtype=torch.uint8, generator=chance)
    reach = _NEAR if is_exact else _FAR
    spread = torch.randint(reach + 1, (groups, n, 1), generator=chance)
    scale = 120 - (torch.rand((groups, n, of_row), generator=chance) * (spread + 1)).int()
    zeros = torch.rand((groups, n, of_row), generator=chance) < 1 / 8
    packed[zeros.repeat_interleave(VALUES // 2, -1)[..., : k // 2]] = 0
    scale[:, 1::7, -1] = NAN
    scale[:, 3] = NAN
    packed[:, 5] = 0
    weights = prepack_mxfp4(packed, scale.to(torch.uint8), layout=config.b_layout)
    beyond = n - weights.values.shape[1] * blocks.ROWS
    if beyond:
        weights.values[:, -1, :, beyond:] = -1  # the scales of rows that there are not
    return solved(weights, is_exact=is_exact)


def solved(weights: PrepackedWeights, *, is_exact: bool = False) -> Solved:
    """Return the call that unpacks `weights`, with its expected results."""
    outputs = tuple(
        Output(name=name, found=untouched(torch.empty_like(each)), expected=each, of_groups=True)
        for name, each in zip(("b", "b_scale"), unpacked(weights), strict=True)
    )
    return Solved(
        tensors=(weights.values, weights.factor, *(each.found for each in outputs)),
        arguments={},
        is_exact=is_exact,
        outputs=outputs,
    )
