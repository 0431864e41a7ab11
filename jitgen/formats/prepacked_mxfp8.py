# SPDX-License-Identifier: Apache-2.0
"""Prepacks MXFP8 weights for Hopper; `jitgen.formats.mxfp8` describes the layouts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import mxfp8
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats.mx32 import VALUES
from jitgen.formats.prepacked_weights import PrepackedWeights, check_sizes, layout_of
from jitgen.support.text import shown

_BYTES = (torch.uint8, torch.float8_e8m0fnu)


def prepack_mxfp8(
    b: Tensor, scale: Tensor, *, layout: str | BLayout = BLayout.EXACT1
) -> PrepackedWeights:
    """
    Prepack MXFP8 weights for the kernels of Hopper and of the CPU.

    Works group by group on the device of `b`. Besides the result, it needs memory for the values of
    one group.

    Args:
        b: (G, N, K) float8_e4m3fn; N a multiple of 8, K of 16.
        scale: (G, N, ceil(K / 32)) uint8 or float8_e8m0fnu, row by row; or (G, N / 32, ceil(K /
            32)), one for each 32 x 32 (DeepSeek-V4.1), N then a multiple of 32.
            `jitgen.quantize.from_atoms` converts scales in atoms to this form.
        layout: ``exact1`` for float8_e4m3fn activations, or bfloat16 activations that
            `jitgen.quantize.split_bf16` split; ``wide1`` for bfloat16 activations.

    Raises:
        InputError: An argument has a wrong type or shape, or is out of range.
    """
    form = PrepackedFormat.MXFP8
    found = layout_of(layout, form)
    scale = _checked(b, scale)
    groups, n, k = b.shape
    shape = blocks.shape_of(groups, n, k, form)
    values = torch.empty(shape, dtype=torch.int32, device=b.device)
    factor = torch.empty(groups, dtype=torch.float32, device=b.device)
    spare_n, spare_k = shape[1] * blocks.ROWS - n, shape[2] * blocks.DEPTH - k
    for group in range(groups):
        bits = pad(b[group].contiguous().view(torch.uint8), (0, spare_k, 0, spare_n))
        scales = scale[group].repeat_interleave(n // scale.shape[1], 0)
        scales = pad(scales, (0, blocks.spare_scales(shape, scale, VALUES), 0, spare_n))
        kept = mxfp8.kept(bits, scales, found)
        blocks.blocked(mxfp8.joined(kept.codes, found), kept.words, values[group])
        factor[group] = kept.factor
    return PrepackedWeights(values=values, factor=factor, n=n, k=k, layout=found, format=form)


def _checked(b: Tensor, scale: Tensor) -> Tensor:
    """Check the arguments of `prepack_mxfp8`, and return the scales as uint8."""
    if not isinstance(b, Tensor) or b.dtype is not torch.float8_e4m3fn or b.dim() != 3:
        raise InputError("b", f"must be float8_e4m3fn, (G, N, K) (got {_kind(b)})")
    groups, n, k = b.shape
    if not groups:
        raise InputError("b", "must have at least one group (got none)")
    form = PrepackedFormat.MXFP8
    check_sizes(n, k)
    scales = form.facts.scales_of(k)
    allowed = [(groups, n, scales)]
    if n % VALUES == 0:
        allowed.append((groups, n // VALUES, scales))
    is_right = isinstance(scale, Tensor) and scale.dtype in _BYTES and scale.shape in allowed
    if not is_right:
        raise InputError(
            "scale",
            f"must be uint8 or float8_e8m0fnu of shape {' or '.join(map(str, allowed))}, for b of "
            f"{tuple(b.shape)} (got {_kind(scale)})",
        )
    if scale.device != b.device:
        raise InputError("scale", f"must be on {b.device}, as b is (got {scale.device})")
    return scale.view(torch.uint8)


def _kind(x: object) -> str:
    return f"{x.dtype} of {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)
