# SPDX-License-Identifier: Apache-2.0
"""Prepacks NVFP4 weights for Hopper; `jitgen.formats.nvfp4` describes the layouts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import e2m1, nvfp4
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats.nv16 import VALUES
from jitgen.formats.prepacked_weights import PrepackedWeights, check_sizes, layout_of
from jitgen.support.text import shown


def prepack_nvfp4(
    packed: Tensor,
    scale: Tensor,
    global_scale: Tensor,
    *,
    layout: str | BLayout = BLayout.EXACT1,
) -> PrepackedWeights:
    """
    Prepack NVFP4 weights for the kernels of Hopper and of the CPU.

    Works group by group on the device of `packed`. Besides the result, it needs memory for the
    values of one group.

    Args:
        packed: (G, N, K / 2) uint8 or float4_e2m1fn_x2, the first of two codes in the low half of a
            byte. N is a multiple of 8, K of 16.
        scale: (G, N, K / 16) float8_e4m3fn, row by row; `jitgen.quantize.from_atoms` converts
            scales in atoms to this form.
        global_scale: (G,) or (1,) float32: a factor of values times scales. (ModelOpt calls it
            ``weight_scale_2``; compressed-tensors' ``weight_global_scale`` is its reciprocal.)
        layout: ``exact1`` for float8_e4m3fn activations, or bfloat16 activations that
            `jitgen.quantize.split_bf16` split; ``wide1`` for bfloat16 activations.

    Raises:
        InputError: An argument has a wrong type or shape, or is out of range.
    """
    form = PrepackedFormat.NVFP4
    found = layout_of(layout, form)
    _check(packed, scale, global_scale)
    groups, n, half = packed.shape
    k = 2 * half
    shape = blocks.shape_of(groups, n, k, form)
    values = torch.empty(shape, dtype=torch.int32, device=packed.device)
    spare_n, spare_k = shape[1] * blocks.ROWS - n, shape[2] * blocks.DEPTH - k
    for group in range(groups):
        codes = pad(e2m1.single(e2m1.as_bytes(packed[group])), (0, spare_k, 0, spare_n))
        scales = pad(scale[group].float(), (0, spare_k // VALUES, 0, spare_n))
        kept = nvfp4.kept(codes, scales)
        blocks.blocked(blocks.joined(kept.codes, found), kept.words, values[group])
    factor = global_scale.expand(groups) * nvfp4.FACTOR[found]
    return PrepackedWeights(
        values=values, factor=factor.contiguous(), n=n, k=k, layout=found, format=form
    )


def _check(packed: Tensor, scale: Tensor, global_scale: Tensor) -> None:
    if not isinstance(packed, Tensor) or not e2m1.is_packed(packed) or packed.dim() != 3:
        raise InputError(
            "packed", f"must be uint8 or float4_e2m1fn_x2, (G, N, K / 2) (got {_kind(packed)})"
        )
    groups, n, half = packed.shape
    if not groups:
        raise InputError("packed", "must have at least one group (got none)")
    check_sizes(n, 2 * half)
    for name, each, dtype, shapes in (
        ("scale", scale, torch.float8_e4m3fn, [(groups, n, 2 * half // VALUES)]),
        ("global_scale", global_scale, torch.float32, [(groups,), (1,)]),
    ):
        is_right = isinstance(each, Tensor) and each.dtype is dtype and tuple(each.shape) in shapes
        if not is_right:
            wanted = " or ".join(map(str, shapes))
            raise InputError(
                name,
                f"must be {dtype} of shape {wanted}, for packed of {tuple(packed.shape)} (got "
                f"{_kind(each)})",
            )
        if each.device != packed.device:
            raise InputError(name, f"must be on {packed.device}, as packed is (got {each.device})")


def _kind(x: object) -> str:
    return f"{x.dtype} of {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)
