# SPDX-License-Identifier: Apache-2.0
"""
NVFP4 weights prepacked for Hopper: e2m1 with an e4m3 scale for each 16 along K, and a float32
factor of these.

Codes have the same positions as those of MXFP4. A scale is a byte of five bits of exponent and
three of mantissa, without a sign: shifted by seven bits it is the float16 of the scale, whose
subnormal numbers have become normal ones. The sign of a scale is moved into its codes. A NaN is the
byte 255, a scale of zero has codes of zero.

========  ======================================================================================
layout    scales
========  ======================================================================================
exact1    multiply sums of 16 along K in float32: exact
wide1     become part of bfloat16 values, which have six significant bits of eight: exact
========  ======================================================================================

The global scale of a group is in its factor, times a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.formats.nv16 import VALUES
from jitgen.formats.prepacked_blocks import runs
from jitgen.formats.prepacked_scales import NAN, Kept

FACTOR = {BLayout.EXACT1: 2.0**6, BLayout.WIDE1: 2.0**14}
"""
By layout, the ratio of a group's factor to its global scale; the values that kernels read are
smaller by this ratio.
"""

_BIAS = 15
"""Bias of a float16's exponent."""


def kept(codes: Tensor, scale: Tensor) -> Kept:
    """
    Return the codes and words as which a group's weights are stored, with the factor 1: of (R, K)
    uint8 codes and (R, K / 16) scales, e4m3 values as float32.
    """
    mantissa, exponent = torch.frexp(scale.abs())  # of [0.5, 1)
    stored = (exponent - 1 + _BIAS) * 8 + (mantissa * 16).int() - 8
    is_nan, is_zero = scale.isnan(), scale == 0
    stored = stored.masked_fill(is_zero, 0).masked_fill(is_nan, NAN).to(torch.uint8)
    parts = runs(codes, VALUES) ^ (scale < 0).to(torch.uint8).mul(8).unsqueeze(-1)
    parts = parts.masked_fill((is_nan | is_zero).unsqueeze(-1), 0)
    words = stored.contiguous().view(torch.int32)
    return Kept(codes=parts.flatten(-2), words=words, factor=scale.new_ones(()))


def restored(words: Tensor) -> Tensor:
    """Return the scales of a group, (R, K / 128 * 2) int32 to (R, K / 16) float8_e4m3fn."""
    stored = words.contiguous().view(torch.uint8).to(torch.int16) << 7
    return stored.view(torch.float16).to(torch.float8_e4m3fn)


def global_scale_of(factor: Tensor, layout: BLayout) -> Tensor:
    """Return the global scales of groups, float32."""
    return factor / FACTOR[layout]
