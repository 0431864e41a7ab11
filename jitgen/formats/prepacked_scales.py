# SPDX-License-Identifier: Apache-2.0
"""
How the scales of prepacked weights are stored: a byte for each 32 along K, a factor for each group.

Exponents are stored relative to the largest one of their group, so that the numbers of kernels stay
far from the ends of float32, and the factor scales results back. Blocks of 32 zeros are ignored.
Values more than ``2**100`` below the largest of their group count as zero.

A NaN (255) stays 255, which kernels decode to infinity, and its codes become zero: their product is
a NaN, and so is the column of the result.

``exact1``, ``wide1``: four bytes of exponents, the first 32 of K in the lowest. ``folded1``: a
nibble each, 11 less the distance to the largest of the 128, in the two lowest bytes; a byte of
zeros; the largest. A distance above 11, for which e4m3 would need subnormal numbers, becomes 11,
and the block's values are rounded: errors are at most ``2**-13`` of the largest block's scale. A
NaN makes all 128 of its row NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.formats import e2m1
from jitgen.formats.mx32 import VALUES, power
from jitgen.formats.prepacked_blocks import runs

NAN = 255
BIAS = 127
"""Bias of a float32's exponent."""

REACH = 11
"""Distance within 128 of K that folding keeps exactly: e4m3 has 6 * 2**6 and 0.5 * 2**-5."""

ROW_REACH = 14
"""Distance within a row that unpacking keeps exactly: e4m3's subnormal numbers have 0.5 * 2**-8."""

_REST = 100
"""Distance to the largest exponent of a group within which all products stay normal numbers."""


class Range(NamedTuple):
    """
    The range of a layout's stored exponents.

    Attributes:
        top: Stored value of the largest exponent of a group.
        factor: Exponent of a group's factor, less the UE8M0 byte of its largest exponent.
        most: Exponents above it do not become `top` but more, so that the factor stays finite.
    """

    top: int
    factor: int
    most: int


_LEAST = 16
"""
Smallest UE8M0 byte that counts as a group's largest exponent: with a smaller one the group's factor
would be no normal number.
"""

RANGES = {
    BLayout.EXACT1: Range(top=127, factor=6 - 127, most=240),  # e4m3 values are v * 2**-6
    BLayout.FOLDED1: Range(top=127, factor=-6 - 127, most=240),  # the largest are v * 2**6
    BLayout.WIDE1: Range(top=253, factor=-127, most=254),  # v * 2**-126 becomes v
}


class Kept(NamedTuple):
    """
    Scales of one group as they are stored, and the codes that belong to them.

    Attributes:
        codes: (R, K) uint8: zeros where the scale is a NaN, or too small to be stored.
        words: (R, K / 128 * words of a row) int32: the scales.
        factor: () float32: factor of all stored scales.
    """

    codes: Tensor
    words: Tensor
    factor: Tensor


def kept(codes: Tensor, scale: Tensor, layout: BLayout) -> Kept:
    """
    Return the stored form of the scales of a group.

    Args:
        codes: (R, K) uint8, K a multiple of 128.
        scale: (R, K / 32) uint8, UE8M0.
        layout: The layout.
    """
    area, parts = RANGES[layout], runs(codes, VALUES)
    exponents = scale.int()
    is_nan = exponents == NAN
    is_empty = ((parts & 7).amax(-1) == 0) | is_nan
    base = exponents.masked_fill(is_empty, 0).amax().clamp(_LEAST, area.most)
    is_lost = is_empty | (base - exponents > _REST)
    stored = (exponents - base + area.top).masked_fill(is_lost, 0)
    if layout is BLayout.FOLDED1:
        parts, words = _folded(parts, stored, is_nan)
    else:
        parts = parts.masked_fill(is_lost.unsqueeze(-1), 0)
        words = _words(runs(stored.masked_fill(is_nan, NAN), 4))
    return Kept(codes=parts.flatten(-2), words=words, factor=power(base + area.factor))


def _folded(parts: Tensor, stored: Tensor, is_nan: Tensor) -> tuple[Tensor, Tensor]:
    """
    Return the codes of a group, and its words with a nibble for each scale; a stored exponent of 0
    means no scale.
    """
    stored, is_nan = runs(stored, 4), runs(is_nan, 4)
    parts = parts.view(*stored.shape, VALUES)
    top = stored.amax(-1, keepdim=True)
    beyond = (top - stored - REACH).clamp_min(0).masked_fill(stored == 0, 0)
    if beyond.any():  # which costs as much as all the rest
        values = e2m1.unpack(e2m1.paired(parts)) * torch.exp2(-beyond.float()).unsqueeze(-1)
        parts = e2m1.codes_of(values)
    is_spoilt = is_nan.any(-1, keepdim=True)
    parts = parts.masked_fill((is_spoilt | (stored == 0)).unsqueeze(-1), 0)
    steps = (REACH - (top - stored)).clamp_min(0)
    low, high = steps[..., 0::2] | steps[..., 1::2] << 4, top.masked_fill(is_spoilt, NAN)
    return parts.flatten(-3, -2), _words(torch.cat([low, torch.zeros_like(high), high], -1))


def restored(words: Tensor, factor: Tensor, layout: BLayout) -> Tensor:
    """
    Return the scales of a group.

    Args:
        words: (R, K / 128) int32.
        factor: () float32.
        layout: Layout that they were stored for.

    Returns:
        (R, K / 32) uint8, UE8M0; any byte but NaN for blocks of zeros.
    """
    area, kept_as = RANGES[layout], exponents(words, layout)
    base = torch.frexp(factor).exponent - 1 - area.factor
    found = (kept_as - area.top + base).clamp_min(0).masked_fill(kept_as == 0, 0)
    return found.masked_fill(kept_as == NAN, NAN).to(torch.uint8)


def exponents(words: Tensor, layout: BLayout) -> Tensor:
    """
    Return the stored exponents of a group, relative to its largest.

    Args:
        words: (R, K / 128) int32.
        layout: Layout that they were stored for.

    Returns:
        (R, K / 32) int32; 255 for a NaN, any value for blocks of zeros.
    """
    found = words.unsqueeze(-1).contiguous().view(torch.uint8).int()
    if layout is BLayout.FOLDED1:
        top = found[..., 3:]
        steps = torch.stack([found[..., :2] & 15, found[..., :2] >> 4], -1).flatten(-2)
        found = (top - REACH + steps).masked_fill(top == 0, 0).masked_fill(top == NAN, NAN)
    return found.flatten(-2)


def row_spread(codes: Tensor, words: Tensor, layout: BLayout) -> Tensor:
    """
    Return the largest difference of stored exponents within a row, over all of K and all rows.

    Args:
        codes: (R, K) uint8.
        words: (R, K / 128) int32.
        layout: Layout that they were stored for.

    Returns:
        () int32. Blocks of 32 that are all zeros, or NaN, do not count.
    """
    found, is_counted = exponents(words, layout), (runs(codes, VALUES) & 7).amax(-1) != 0
    most = found.masked_fill(~is_counted, 0).amax(-1)
    least = found.masked_fill(~is_counted, NAN).amin(-1)
    return (most - least).clamp_min(0).amax()


def _words(found: Tensor) -> Tensor:
    """Return four bytes each as words: (R, columns, 4) int32 to (R, columns) int32."""
    return found.to(torch.uint8).view(torch.int32).squeeze(-1)


def spread(packed: Tensor, scale: Tensor) -> Tensor:
    """
    Say how far the exponents of weights differ within each 128 of K.

    Args:
        packed: (G, N, K / 2) uint8 or float4_e2m1fn_x2.
        scale: (G, N, ceil(K / 32)) uint8 or float8_e8m0fnu, row by row.

    Returns:
        (G, N, ceil(K / 128)) int32. Blocks of 32 that are all zeros, or NaN, do not count. Up to 11
        ``folded1`` is exact.
    """
    exponents = scale.view(torch.uint8).int()
    magnitudes = e2m1.as_bytes(packed) & 0x77
    magnitudes = pad(magnitudes, (0, -magnitudes.shape[-1] % (VALUES // 2)))
    is_counted = (runs(magnitudes, VALUES // 2).amax(-1) != 0) & (exponents != NAN)

    def of_columns(fill: int) -> Tensor:
        counted = exponents.masked_fill(~is_counted, fill)
        return runs(pad(counted, (0, -counted.shape[-1] % 4), value=fill), 4)

    return (of_columns(-1).amax(-1) - of_columns(NAN).amin(-1)).clamp_min(0)
