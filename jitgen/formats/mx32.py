# SPDX-License-Identifier: Apache-2.0
"""
``mx32``: a power of two for each 1x32 of a and of b: MXFP8 with e4m3 operands, MXFP4 with e2m1
ones.

A scale is a UE8M0 byte e, which means ``2**(e - 127)``; 255 is a NaN (OCP Microscaling Formats
Specification v1.0, 5.4.1).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import DType, ScaleGranularity
from jitgen.errors import InputError
from jitgen.formats import e2m1, e4m3
from jitgen.formats.atoms import Atoms, laid_out, rows_of
from jitgen.formats.protocol import Rows

VALUES = 32
Rounding = Literal["up", "floor"]

_BIAS, _NAN, _MOST = 127, 255, 254
_LARGEST = {DType.E4M3: e4m3.MAX, DType.E2M1: e2m1.MAX}


def mxfp8(
    x: Tensor, *, offs: Tensor | None = None, rounding: Rounding = "up"
) -> tuple[Tensor, Tensor]:
    """
    Quantise to MXFP8 by torch's operations; arguments, results and errors are those of
    `jitgen.quantize.mxfp8`.
    """
    values, scale = _scaled(x, offs, DType.E4M3, rounding)
    return e4m3.rounded(values), scale


def mxfp4(
    x: Tensor, *, offs: Tensor | None = None, rounding: Rounding = "up"
) -> tuple[Tensor, Tensor]:
    """
    Quantise to MXFP4 by torch's operations; arguments, results and errors are those of
    `jitgen.quantize.mxfp4`.
    """
    values, scale = _scaled(x, offs, DType.E2M1, rounding)
    return e2m1.pack(values), scale


def check(x: Tensor, offs: Tensor | None, rounding: str) -> Rows:
    """
    Check arguments of `mxfp8`, and return the groups of the rows of `x`.

    Raises:
        InputError: `x` or `rounding` is not allowed for `mxfp8`.
    """
    rows = rows_of(x, offs)
    if rounding not in {"up", "floor"}:
        raise InputError("rounding", f"must be up or floor (got {rounding!r})")
    return rows


def _scaled(x: Tensor, offs: Tensor | None, dtype: DType, rounding: str) -> tuple[Tensor, Tensor]:
    """
    Return the values of `x` divided by their scales, float32, clipped; and the scales in atoms.
    """
    rows = check(x, offs, rounding)
    if dtype is DType.E2M1:
        e2m1.check_even(x, "x")
    size_k, most = x.shape[-1], _LARGEST[dtype]
    padded = pad(x.float(), (0, -size_k % VALUES))
    parts = padded.reshape(*x.shape[:-1], padded.shape[-1] // VALUES, VALUES)
    scale = _exponents(parts.abs().amax(-1), most, rounds_up=rounding == "up")
    values = _over(parts, scale.unsqueeze(-1)).clamp(-most, most).flatten(-2)[..., :size_k]
    stored = scale.to(torch.uint8).view(torch.float8_e8m0fnu)
    return values.contiguous(), laid_out(stored, rows)


def _exponents(largest: Tensor, most: float, *, rounds_up: bool) -> Tensor:
    """
    Return UE8M0 bytes, as int32: scales that bring values up to `largest` into the range of a type
    whose largest value is `most`.
    """
    mantissa, exponent = torch.frexp(largest)  # in [0.5, 1): largest = mantissa * 2**exponent
    top, span = math.frexp(most)
    exponent = exponent - span
    if rounds_up:
        exponent = exponent + (mantissa > top).int()
    biased = (exponent + _BIAS).clamp(0, _MOST)
    biased = biased.masked_fill(largest == 0, 0)  # as the GPU's own conversion has it
    return torch.where(largest.isfinite(), biased, _NAN).int()


def _over(values: Tensor, scale: Tensor) -> Tensor:
    """Divide values by powers of two, given as UE8M0 bytes, without a subnormal factor."""
    exponent = _BIAS - scale
    half = exponent >> 1
    return values * power(half) * power(exponent - half)


def power(exponent: Tensor) -> Tensor:
    """Return ``2**exponent`` for integers from -126 to 127, exact on every device."""
    return ((exponent + 127) << 23).view(torch.float32)


class Mx32(Atoms):
    """The format ``mx32``; implements `jitgen.formats.protocol.ScaleFormat`."""

    name = ScaleGranularity.MX32
    dtype = torch.float8_e8m0fnu
    values = VALUES
    has_alpha = False
    words = "for each 32 values of a row, in atoms"


FORMAT = Mx32()
