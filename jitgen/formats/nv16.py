# SPDX-License-Identifier: Apache-2.0
"""
``nv16``: an e4m3 scale for each 1x16 of a and of b, and a float32 factor of these scales: NVFP4.

There are two levels of scales: a value is ``q * scale * global_scale``, where `scale` is an e4m3
for 16 consecutive values along K, and `global_scale` a float32 for a tensor, or for the matrix of
each group. In a product, both global scales are factors of the sum: the argument
``alpha = a_global * b_global``, (G,) float32, of `grouped_gemm`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import ScaleGranularity
from jitgen.errors import InputError
from jitgen.formats import e2m1, e4m3
from jitgen.formats.atoms import Atoms, laid_out, rows_of

VALUES = 16


def nvfp4(
    x: Tensor, *, offs: Tensor | None = None, global_scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Quantise to NVFP4 by torch's operations; arguments, results and errors are those of
    `jitgen.quantize.nvfp4`.
    """
    rows = rows_of(x, offs)
    overall = global_scale_of(x, offs, global_scale)
    size_k = x.shape[-1]
    padded = pad(x.float(), (0, -size_k % VALUES))
    parts = padded.reshape(*x.shape[:-1], padded.shape[-1] // VALUES, VALUES)
    per_matrix = overall.view(-1, 1, 1) if x.dim() == 3 else overall
    largest = parts.abs().amax(-1)
    scale = torch.where(largest.isfinite(), _sixth(largest) / per_matrix, torch.nan)
    scale = e4m3.rounded(scale)
    divisor = (scale.float() * per_matrix).unsqueeze(-1)
    values = torch.where(divisor == 0, 0.0, parts / divisor).flatten(-2)[..., :size_k]
    return e2m1.pack(values), laid_out(scale, rows), overall


def global_scale_of(x: Tensor, offs: Tensor | None, given: Tensor | None) -> Tensor:
    """
    Return the global scale of `x`: `given`, or one computed from the largest value.

    Args:
        x: As for `nvfp4`.
        offs: As for `nvfp4`.
        given: (1,) float32, or (G,) if `x` has a leading G; None: it is computed, in one pass over
            `x`.

    Returns:
        (1,) float32, or (G,) where `x` has G.

    Raises:
        InputError: As for `nvfp4`.
    """
    rows_of(x, offs)
    e2m1.check_even(x, "x")
    groups = x.shape[0] if x.dim() == 3 else 1
    return _global(x, groups) if given is None else _given(given, x, groups)


def _global(x: Tensor, groups: int) -> Tensor:
    if not x.numel():
        return x.new_ones(groups, dtype=torch.float32)
    largest = torch.linalg.vector_norm(x.reshape(groups, -1), torch.inf, dim=-1).float()
    return e4m3.scale_of(_sixth(largest), power_of_two=False)


def _sixth(largest: Tensor) -> Tensor:
    """
    Divide by 6, e2m1's largest value. It is given as a tensor, because GPUs would multiply by a
    number's reciprocal, which is one rounding more.
    """
    return largest / torch.full((), e2m1.MAX, device=largest.device)


def _given(global_scale: Tensor, x: Tensor, groups: int) -> Tensor:
    allowed = [(1,), (groups,)] if groups > 1 else [(1,)]
    if not isinstance(global_scale, Tensor) or global_scale.dtype is not torch.float32:
        got = getattr(global_scale, "dtype", type(global_scale).__name__)
        raise InputError("global_scale", f"must be a float32 tensor (got {got})")
    if tuple(global_scale.shape) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise InputError(
            "global_scale", f"must have shape {wanted} (got {tuple(global_scale.shape)})"
        )
    if global_scale.device != x.device:
        raise InputError(
            "global_scale", f"must be on {x.device}, as x is (got {global_scale.device})"
        )
    return global_scale.expand(groups)


class Nv16(Atoms):
    """The format ``nv16``; implements `jitgen.formats.protocol.ScaleFormat`."""

    name = ScaleGranularity.NV16
    dtype = torch.float8_e4m3fn
    values = VALUES
    has_alpha = True
    words = "for each 16 values of a row, in atoms"


FORMAT = Nv16()
