# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of float8_e4m3fn values, for all formats with float32 scales.

A scale is ``s = max(abs(x)) / 448`` over the values that share it, and ``q = x / s`` rounded to
float8_e4m3fn, whose largest value is 448 (OCP 8-bit Floating Point Specification, E4M3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError

MAX = 448.0
_TINY = torch.finfo(torch.float32).tiny


def scale_of(largest: Tensor, *, power_of_two: bool) -> Tensor:
    """
    Return the scale of values up to `largest`; never 0 and never subnormal, so that dividing by it
    is safe.

    Raises:
        InputError: `power_of_two` is not a bool.
    """
    if type(power_of_two) is not bool:
        raise InputError("power_of_two", f"must be True or False (got {power_of_two!r})")
    # By a tensor: GPUs would multiply by a number's reciprocal, which is one rounding more.
    quotient = largest / torch.full((), MAX, dtype=largest.dtype, device=largest.device)
    scale = torch.where(largest == 0, 1.0, quotient.clamp_min(_TINY))
    if not power_of_two:
        return scale
    mantissa, exponent = torch.frexp(scale)
    # frexp's mantissa is in [0.5, 1): 0.5 means a power of two already.
    rounded_up = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    return torch.where(scale.isfinite(), rounded_up, scale)  # frexp says nothing of the others


def rounded(values: Tensor) -> Tensor:
    """
    Round to float8_e4m3fn. The division may exceed 448 by one rounding, which would become a NaN;
    so values are clamped.
    """
    return values.clamp(-MAX, MAX).to(torch.float8_e4m3fn).contiguous()


def check(x: Tensor, argument: str, *, ranks: tuple[int, ...], may_be_empty: bool = False) -> None:
    """
    Require a float tensor with one of `ranks` dimensions.

    Raises:
        InputError: `x` cannot be quantised; the message names `argument`.
    """
    wanted = " or ".join(f"{rank}" for rank in ranks)
    if not isinstance(x, Tensor):
        raise InputError(argument, f"must be a torch tensor (got {type(x).__name__})")
    if x.dim() not in ranks:
        raise InputError(argument, f"must have {wanted} dimensions (got shape {tuple(x.shape)})")
    if not x.is_floating_point():
        raise InputError(argument, f"must be of a float type (got {x.dtype})")
    if not may_be_empty and x.shape[-1] == 0:
        raise InputError(argument, f"must have K of at least 1 (got shape {tuple(x.shape)})")


def check_block(size: int, argument: str) -> None:
    """Require the side of a block; raises InputError."""
    if type(size) is not int or size < 1:
        raise InputError(argument, f"must be an integer of at least 1 (got {size!r})")
