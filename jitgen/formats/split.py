# SPDX-License-Identifier: Apache-2.0
"""
``e4m3x2``: a bfloat16 value as two e4m3 parts, the high four and the low four of its eight
significant bits.

Hopper's kernels for weights prepacked as e4m3 multiply the two parts as two rows and add the sums,
so bfloat16 activations keep their precision in FP8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.e4m3 import check, rounded, scale_of

PARTS = 2
_STEP = 16.0
"""Factor between the two parts: e4m3 has four significant bits."""

_LEAST = 2.0**-100
"""The smallest scale, which stays a normal number in all products with it."""


def split_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    """
    Split activations into two e4m3 parts with a power of two for each row.

    Args:
        x: (M, K) or (G, M, K) bfloat16.

    Returns:
        q: (M, 2, K) or (G, M, 2, K) float8_e4m3fn, contiguous: the high parts, the low parts.
        scale: (M, 2) or (G, M, 2) float32, contiguous: s and s / 16.

    ``q[m, 0, k] * scale[m, 0] + q[m, 1, k] * scale[m, 1]`` equals x for values of at least
    ``2**-13`` of the largest in their row; for smaller values the error is up to ``2**-21`` of the
    largest. An infinity or NaN makes its row NaN.

    Raises:
        InputError: `x` is not of this kind.
    """
    check(x, "x", ranks=(2, 3))
    if x.dtype is not torch.bfloat16:
        raise InputError("x", f"must be bfloat16, which two e4m3 hold (got {x.dtype})")
    wide = x.float()
    scale = scale_of(wide.abs().amax(-1), power_of_two=True).clamp_min(_LEAST)
    values = wide / scale.unsqueeze(-1)
    high = rounded(values)
    low = rounded((values - high.float()) * _STEP)
    return torch.stack([high, low], -2), torch.stack([scale, scale / _STEP], -1)


def joined(q: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the sum of both parts of each value: (M, K) or (G, M, K) of `dtype`."""
    return (q.to(dtype) * scale.to(dtype).unsqueeze(-1)).sum(-2)
