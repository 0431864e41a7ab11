# SPDX-License-Identifier: Apache-2.0
"""
MXFP8 weights prepacked for Hopper: e4m3 with a power of two for each 32 along K. FP8 kernels of
Hopper have scales of rows or of 128 x 128; those for prepacked weights have one for every 32.

========  ======================================================================================
layout    values and scales
========  ======================================================================================
exact1    e4m3 as they are, in the order in which WGMMA takes them; scales multiply sums of 32
wide1     two e4m3 in 16 bits: the first where bfloat16 has them, the second in what is left;
          both become bfloat16 times the scale, which is exact
========  ======================================================================================

Exponents are kept as those of MXFP4 are: see `jitgen.formats.prepacked_scales`. A value that is a
NaN makes the 32 that share its scale NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.formats.mx32 import VALUES, power
from jitgen.formats.prepacked_blocks import DEPTH, ROWS, runs
from jitgen.formats.prepacked_scales import NAN, Kept

_NAN_VALUE = 0x7F
_LEAST, _MOST = 16, 254
"""Exponents that the largest of a group counts as at least, and at most."""

_REST = 100
"""Distance to the largest exponent of a group within which all products stay normal numbers."""

_TOP = {BLayout.EXACT1: 127, BLayout.WIDE1: 253}
"""Stored value of the largest exponent of a group."""

_FACTOR = {BLayout.EXACT1: -127, BLayout.WIDE1: 120 - 253}
"""Exponent of a group's factor where that is 0; wide values are ``v * 2**-120`` without scales."""


def joined(values: Tensor, layout: BLayout) -> Tensor:
    """
    Pack the bits of values into the words of prepacked blocks.

    Args:
        values: (64 * blocks, 128 * columns) uint8, bits of e4m3.
        layout: Layout that they are prepacked for.

    Returns:
        (blocks, columns, 2048) int32: four planes of 32 along K; in each four words of a thread. As
        ``exact1``: (first 16, first row), (first 16, second row), (last 16, first row), (last 16,
        second row), four neighbours each; as ``wide1`` each has two neighbours of the first 8 of
        its 16 and the two at the same positions of the last 8.
    """
    rows, depth = values.shape
    blocks, columns = rows // ROWS, depth // DEPTH
    of_rows = values.view(blocks, 4, 8, 2, columns, 4, 2, 16)  # warp, lane / 4, row, plane, 16
    if layout is BLayout.EXACT1:
        parts: Tensor = of_rows.unflatten(-1, (4, 4))  # thread, neighbour
        words = parts.permute(0, 4, 5, 1, 2, 7, 6, 3, 8).contiguous().view(torch.int32)
    else:
        parts = of_rows.unflatten(-1, (2, 4, 2)).int()  # 8, thread, neighbour
        first, second = parts.unbind(-3)
        halves = (first & 0x80) << 8 | (first & 0x7F) << 4 | (second & 15) | (second & 0xF0) << 7
        words = halves[..., 0] | halves[..., 1] << 16
        words = words.permute(0, 4, 5, 1, 2, 7, 6, 3)
    return words.reshape(blocks, columns, 2 * ROWS * DEPTH // 8)


def separated(words: Tensor, layout: BLayout) -> Tensor:
    """Return the bits of values, (64 * blocks, 128 * columns) uint8; the inverse of `joined`."""
    blocks, columns, _ = words.shape
    words = words.view(blocks, columns, 4, 4, 8, 4, 2, 2)  # plane, warp, lane / 4, thread, 16, row
    if layout is BLayout.EXACT1:
        values = words.unsqueeze(-1).contiguous().view(torch.uint8)
        values = values.permute(0, 3, 4, 7, 1, 2, 6, 5, 8)
    else:
        halves = torch.stack([words & 0xFFFF, words >> 16 & 0xFFFF], -1)
        first = halves >> 8 & 0x80 | halves >> 4 & 0x7F
        second = halves & 15 | halves >> 7 & 0xF0
        values = torch.stack([first, second], -1).to(torch.uint8)
        values = values.permute(0, 3, 4, 7, 1, 2, 6, 9, 5, 8)
    return values.reshape(blocks * ROWS, columns * DEPTH)


def kept(values: Tensor, scale: Tensor, layout: BLayout) -> Kept:
    """
    Return the values, words of scales and factor as which a group's weights are stored.

    Args:
        values: (R, K) uint8, K a multiple of 128.
        scale: (R, K / 32) uint8, UE8M0.
        layout: The layout.
    """
    parts, exponents = runs(values, VALUES), scale.int()
    magnitudes = parts & 0x7F
    is_nan = (exponents == NAN) | (magnitudes == _NAN_VALUE).any(-1)
    is_empty = (magnitudes.amax(-1) == 0) | is_nan
    base = exponents.masked_fill(is_empty, 0).amax().clamp(_LEAST, _MOST)
    is_lost = is_empty | (base - exponents > _REST)
    stored = (exponents - base + _TOP[layout]).masked_fill(is_lost, 0).masked_fill(is_nan, NAN)
    codes = parts.masked_fill(is_lost.unsqueeze(-1), 0).flatten(-2)
    words = stored.to(torch.uint8).contiguous().view(torch.int32)
    return Kept(codes=codes, words=words, factor=power(base + _FACTOR[layout]))


def restored(words: Tensor, factor: Tensor, layout: BLayout) -> Tensor:
    """
    Return the scales of a group, (R, K / 128) int32 to (R, K / 32) uint8; 0 for 32 values of zero.
    """
    found = words.contiguous().view(torch.uint8).int()
    base = torch.frexp(factor).exponent - 1 - _FACTOR[layout]
    exponents = (found - _TOP[layout] + base).clamp_min(0).masked_fill(found == 0, 0)
    return exponents.masked_fill(found == NAN, NAN).to(torch.uint8)


def numbers_of(values: Tensor, scale: Tensor) -> Tensor:
    """
    Return the weights of (..., K) float8_e4m3fn values and (..., K / 32) uint8 scales, float64.
    """
    factor = torch.exp2(scale.double() - 127).masked_fill(scale == NAN, torch.nan)
    return values.double() * factor.repeat_interleave(VALUES, -1)[..., : values.shape[-1]]
