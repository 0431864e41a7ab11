# SPDX-License-Identifier: Apache-2.0
"""
Converts prepacked MXFP4 weights to plain FP8 ones: e4m3 values, and one float32 scale for each row.

In calls with many rows, kernels would decode each weight once for every tile of rows. After
unpacking, FP8 kernels read the weights. With the largest exponent t of its row and its own exponent
e, a code of value v becomes ``v * 2**(6 - (t - e))``, which is at most 384 (e4m3 goes to 448); the
scale of the row is the inverse factor.

e4m3 represents all of these down to ``0.5 * 2**-8``, so a row whose exponents differ by at most 14
is exact. Beyond that values are rounded to nearest, ties to even, as torch does. A NaN among the
scales makes its 32 values NaN.

This is the arithmetic of `jitgen.ops.unpack_weights`, in torch's operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import e2m1
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats import prepacked_scales as scales
from jitgen.formats.mx32 import VALUES, power
from jitgen.formats.prepacked import PrepackedWeights

REACH = scales.ROW_REACH
"""Largest difference of exponents within a row with which unpacking is exact."""

LAYOUTS = (BLayout.EXACT1, BLayout.FOLDED1)
"""Layouts that are unpacked to e4m3; wide1 is not, because its activations are bfloat16."""

TOP = 6
"""Power of two that multiplies values with the largest exponent of their row."""


def shift(layout: BLayout) -> int:
    """
    Return the number to subtract from the largest stored exponent of a row; the scale is the
    group's factor times two to the power of the difference.
    """
    area = scales.RANGES[layout]
    return TOP + area.top + scales.BIAS + area.factor


def least(layout: BLayout) -> int:
    """
    Return the smallest stored exponent of a row with which its scale is a normal number; smaller
    ones, such as that of a row of zeros, count as this one.
    """
    return shift(layout) - scales.BIAS + 1


def unpacked(weights: PrepackedWeights) -> tuple[Tensor, Tensor]:
    """
    Return weights as FP8 kernels with scales of rows read them.

    Works group by group on the device of `weights`.

    Args:
        weights: Prepacked as exact1 or folded1.

    Returns:
        b: (G, N, K) float8_e4m3fn.
        b_scale: (G, N) float32.

    Raises:
        InputError: `weights` have another format or layout.
    """
    check(weights)
    shape = (weights.groups, weights.n, weights.k)
    b = torch.empty(shape, dtype=torch.float8_e4m3fn, device=weights.device)
    b_scale = torch.empty(shape[:2], dtype=torch.float32, device=weights.device)
    for group in range(weights.groups):
        each = weights.values[group]
        codes = blocks.separated(each[..., : blocks.VALUE_WORDS], weights.layout)
        found = scales.exponents(blocks.scale_words(each), weights.layout)
        is_nan = found == scales.NAN
        top = found.masked_fill(is_nan, 0).amax(-1)
        powers = power((TOP - top.unsqueeze(-1) + found).clamp_min(1 - scales.BIAS))
        powers = powers.masked_fill(is_nan, torch.nan).repeat_interleave(VALUES, -1)
        values = e2m1.unpack(e2m1.paired(codes)) * powers
        b[group] = values[: weights.n, : weights.k].to(torch.float8_e4m3fn)
        exponent = top.clamp_min(least(weights.layout)) - shift(weights.layout)
        b_scale[group] = (power(exponent) * weights.factor[group])[: weights.n]
    return b, b_scale


def check(weights: PrepackedWeights) -> None:
    """
    Require weights that can be unpacked to e4m3.

    Raises:
        InputError: `weights` are not prepacked weights, or have a format or layout without e4m3
            form.
    """
    if not isinstance(weights, PrepackedWeights):
        raise InputError("weights", f"must be PrepackedWeights (got {type(weights).__name__})")
    if weights.format is not PrepackedFormat.MXFP4:
        raise InputError(
            "weights",
            f"must be mxfp4, whose scales are powers of two (got {weights.format}): scales of "
            "others leave no e4m3 values",
        )
    if weights.layout not in LAYOUTS:
        raise InputError(
            "weights",
            f"must be prepacked as {' or '.join(LAYOUTS)} (got {weights.layout}, which is for "
            "bfloat16 activations)",
        )
