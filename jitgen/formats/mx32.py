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
    Quantise activations or weights to MXFP8: e4m3 values with a power of two as scale for every 32
    along K.

    Args:
        x: (M, K) activations, contiguous or, with `offs`, ragged; (G, M, K) masked ones; or (G, N,
            K) weights. Any float type; K is any size.
        offs: (G,) int32, for ragged rows: as `grouped_gemm` takes it.
        rounding: ``up``: the smallest power of two with which no value is clipped, as in serving
            engines for activations. ``floor``: ``2**(floor(log2(amax)) - 8)``, as in the
            specification (6.3). It clips values between 448 and 512 times the scale; in that case
            ``up`` has twice the scale, and so twice the errors. torchao calls them RCEIL and FLOOR.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: float8_e8m0fnu in atoms (see `jitgen.formats.atoms`): (blocks, ceil(S / 4), 512),
            with a leading G if `x` has one; S = ceil(K / 32), blocks = ceil(M / 128), or (M + 127
            G) // 128 with `offs`. `x` is near ``q[m, k] * 2**(scale - 127)``.

    Raises:
        InputError: `x` or `rounding` is not of this kind.
    """
    values, scale = _scaled(x, offs, DType.E4M3, rounding)
    return e4m3.rounded(values), scale


def mxfp4(
    x: Tensor, *, offs: Tensor | None = None, rounding: Rounding = "up"
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights to MXFP4: e2m1 values with a power of two as scale for every 32
    along K.

    Args:
        x: As for `mxfp8`; K is even.
        offs: As for `mxfp8`.
        rounding: As for `mxfp8`; with ``floor``, which the specification describes, values between
            6 and 8 times the scale are clipped.

    Returns:
        q: (..., K / 2) uint8, two values a byte; `grouped_gemm` also takes
            ``q.view(torch.float4_e2m1fn_x2)``.
        scale: As of `mxfp8`.

    Raises:
        InputError: `x` or `rounding` is not of this kind.
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
