# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of e2m1 values, two in a byte, which formats with 4-bit operands share.

A code has a sign, two bits of exponent (biased by 1) and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4
and 6, and their negatives; no infinity and no NaN (OCP Microscaling Formats Specification v1.0,
5.3.3). Of two neighbours along K the first is in the low half of their byte.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from jitgen.errors import InputError

MAX = 6.0
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PACKED = (torch.uint8, torch.float4_e2m1fn_x2)


def pack(x: Tensor) -> Tensor:
    """
    Round to nearest, ties to the even code, and pack; values beyond 6 become 6.

    Args:
        x: (..., K) float32 with K even; a NaN becomes 0.

    Returns:
        (..., K / 2) uint8.
    """
    return paired(codes_of(x))


def codes_of(x: Tensor) -> Tensor:
    """
    Round to the nearest e2m1 code, ties to the even one; values beyond 6 become 6, and a NaN 0.

    Returns:
        (..., K) uint8, a code in each byte.
    """
    codes = torch.bucketize(x.abs().contiguous(), _bounds(x.device)).to(torch.uint8)
    return codes.masked_fill_(x.isnan(), 0) | torch.signbit(x).to(torch.uint8) << 3


def paired(codes: Tensor) -> Tensor:
    """Pack codes (..., K), two in a byte: (..., K / 2) uint8."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def single(q: Tensor) -> Tensor:
    """Unpack codes (..., K / 2) to one per byte: (..., K) uint8."""
    q = as_bytes(q)
    return torch.stack([q & 15, q >> 4], -1).flatten(-2)


def _bounds(device: torch.device) -> Tensor:
    """Return `_new_bounds`, cached, except in a torch mode, whose tensors must not be shared."""
    return _new_bounds(device) if torch._C._len_torch_dispatch_stack() else _kept_bounds(device)


def _new_bounds(device: torch.device) -> Tensor:
    """
    Return the magnitudes above which the next code begins: the middle, or the float32 below it if a
    tie rounds up.
    """
    values = torch.tensor(_VALUES, dtype=torch.float32)
    middles = (values[1:] + values[:-1]) / 2
    below = torch.nextafter(middles, torch.zeros_like(middles))
    goes_up = torch.arange(len(middles)) % 2 == 1  # the even code is the upper one
    return torch.where(goes_up, below, middles).to(device)


_kept_bounds = cache(_new_bounds)


def unpack(q: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """
    Return the values of packed codes.

    Args:
        q: (..., K / 2) uint8 or float4_e2m1fn_x2.
        dtype: Type of the result; every float type holds them exactly.

    Returns:
        (..., K).
    """
    values = torch.tensor((*_VALUES, *(-value for value in _VALUES)), dtype=dtype)
    return values.to(q.device)[single(q).long()]


def is_packed(x: Tensor) -> bool:
    """Say whether `x` holds e2m1."""
    return x.dtype in _PACKED


def as_bytes(q: Tensor) -> Tensor:
    """Return packed codes as uint8, which all torch operations and all kernels support."""
    return q if q.dtype is torch.uint8 else q.view(torch.uint8)


def values_of(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of an operand of any type, (..., K)."""
    return unpack(x, dtype) if is_packed(x) else x.to(dtype)


def check_even(x: Tensor, argument: str) -> None:
    """Require that K can be packed; raises InputError."""
    if x.shape[-1] % 2:
        raise InputError(
            argument, f"must have an even K: e2m1 has two values a byte (got {tuple(x.shape)})"
        )
