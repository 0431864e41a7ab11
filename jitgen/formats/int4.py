# SPDX-License-Identifier: Apache-2.0
"""
``int4``: -8 to 7, with a bfloat16 or float16 scale for each 32 or 128 along K, prepacked for
Hopper. A value is ``v * scale``; there are no zero points.

========  ======================================================================================
layout    codes and scales
========  ======================================================================================
exact1    v from 0 on is the code v, a negative one 7 - v: bit 3 is the sign, and the others,
          plus the sign, are the magnitude, which is e4m3 of ``v * 2**-9`` as it is. Scales do not
          become part of values: a float16 for each 32 along K, or a float32 for each 128.
wide1     the code is v + 8, which is bfloat16 of ``code * 2**-133`` as it is. Scales are bfloat16
          and become part of values, which are rounded to bfloat16.
========  ======================================================================================

Scales are stored relative to the power of two below the largest one of their group, and the factor
of the group brings results back. As ``exact1``, scales of 128 values are exact, and scales of 32
from ``2**-28`` of the largest on; smaller ones have errors of at most ``2**-39`` of the largest. As
``wide1`` a float16 is rounded to bfloat16, and what is more than ``2**80`` below the largest counts
as zero. A NaN or an infinity makes its part of the weights NaN or infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats.prepacked_scales import Kept

IN_A_WORD = 8
"""Values of an int32, as checkpoints pack them."""

MIDDLE = 8
"""Number added to a value to make its code in an int32 of a checkpoint, and in ``wide1``."""

_MOST = 2.0**64
"""Scales are smaller: a factor stays far from the end of float32."""

_LEAST = -100
"""Exponent that the largest scale of a group counts as where it is below."""

_HALF_TOP = 14
"""Exponent of the float16 that the largest scale of 32 values is stored as."""

_WIDE_TOP = 100
"""
Exponent of the bfloat16 that the largest scale is stored as; times a code of 2**-133 even small
scales stay normal numbers.
"""

_REST = 80
"""Powers of two below the largest scale from which on scales are stored as 0."""

_FACTOR = {
    (BLayout.EXACT1, PrepackedFormat.INT4_32): 9 - _HALF_TOP,
    (BLayout.EXACT1, PrepackedFormat.INT4_128): 9,
    (BLayout.WIDE1, PrepackedFormat.INT4_32): 133 - _WIDE_TOP,
    (BLayout.WIDE1, PrepackedFormat.INT4_128): 133 - _WIDE_TOP,
}
"""Exponent of a group's factor where that of its largest scale is 0."""


def values_of(packed: Tensor) -> Tensor:
    """
    Return the INT4 values in words, (..., K / 8) int32 to (..., K) int8; the lowest bits first.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    codes = (packed.unsqueeze(-1) >> shifts) & 15
    return (codes.flatten(-2) - MIDDLE).to(torch.int8)


def packed_of(values: Tensor) -> Tensor:
    """Return words of INT4 values, (..., K) to (..., K / 8) int32; the inverse of `values_of`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=values.device)
    codes: Tensor = (values.int() + MIDDLE).unflatten(-1, (-1, IN_A_WORD))
    return (codes << shifts).sum(-1, dtype=torch.int32)


def codes_of(values: Tensor, layout: BLayout) -> Tensor:
    """Return the codes with which `layout` stores INT4 values, uint8."""
    wide = values.int()
    codes = wide + MIDDLE if layout is BLayout.WIDE1 else torch.where(wide < 0, 7 - wide, wide)
    return codes.to(torch.uint8)


def from_codes(codes: Tensor, layout: BLayout) -> Tensor:
    """Return the INT4 values of the codes of `layout`, int8; the inverse of `codes_of`."""
    wide = codes.to(torch.int8)
    return wide - MIDDLE if layout is BLayout.WIDE1 else torch.where(wide > 7, 7 - wide, wide)


def kept(values: Tensor, scale: Tensor, layout: BLayout, form: PrepackedFormat) -> Kept:
    """
    Return the codes, words of scales and factor as which a group's weights are stored.

    Args:
        values: (R, K) int8, K a multiple of 128.
        scale: (R, S) bfloat16 or float16.
        layout: The layout.
        form: The format; S is K over the values that share a scale.

    Raises:
        InputError: A scale is ``2**64`` or more.
    """
    numbers = scale.double()
    largest = numbers.abs().masked_fill(~numbers.isfinite(), 0).amax()
    if largest >= _MOST:
        raise InputError("scale", f"must be below 2**64 (got {float(largest):.3g})")
    base = torch.frexp(largest).exponent - 1
    base = base.masked_fill(largest == 0, _LEAST).clamp_min(_LEAST)
    relative = numbers * torch.exp2(-base.double())
    if layout is BLayout.EXACT1:
        is_half = form is PrepackedFormat.INT4_32
        stored = (relative * 2.0**_HALF_TOP).half() if is_half else relative.float()
    else:
        is_lost = relative.abs() < 2.0**-_REST
        stored = (relative * 2.0**_WIDE_TOP).masked_fill(is_lost, 0).bfloat16()
        if form is PrepackedFormat.INT4_128:  # both halves of a word, for pairs of values
            stored = stored.repeat_interleave(2, -1)
    factor = torch.exp2((base + _FACTOR[layout, form]).double()).float()
    words = stored.contiguous().view(torch.int32)
    return Kept(codes=codes_of(values, layout), words=words, factor=factor)


def restored(words: Tensor, factor: Tensor, layout: BLayout, form: PrepackedFormat) -> Tensor:
    """
    Return the scales of a group as kernels use them.

    Args:
        words: (R, K / 128 * words of a row) int32.
        factor: () float32.
        layout: Layout that they were stored for.
        form: The format.

    Returns:
        (R, S) float32.
    """
    unit = factor.double() * torch.exp2(torch.tensor(-_FACTOR[layout, form]).double())
    words = words.contiguous()
    if layout is BLayout.WIDE1:
        found = words.view(torch.bfloat16).double() * 2.0**-_WIDE_TOP
        found = found[..., ::2] if form is PrepackedFormat.INT4_128 else found
    elif form is PrepackedFormat.INT4_32:
        found = words.view(torch.float16).double() * 2.0**-_HALF_TOP
    else:
        found = words.view(torch.float32).double()
    return (found * unit).float()


def numbers_of(values: Tensor, scale: Tensor, layout: BLayout, form: PrepackedFormat) -> Tensor:
    """
    Return the numbers that kernels compute with, (..., K) float32.

    Args:
        values: (..., K) int8.
        scale: (..., S) float32, as `restored` returns them.
        layout: Layout of the weights.
        form: Format of the weights.
    """
    repeated = scale.repeat_interleave(form.facts.values, -1)[..., : values.shape[-1]]
    product = values.float() * repeated  # exact: 4 bits times 11
    return product.bfloat16().float() if layout is BLayout.WIDE1 else product
