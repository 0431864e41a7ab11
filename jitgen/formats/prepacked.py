# SPDX-License-Identifier: Apache-2.0
"""
MXFP4 weights prepacked for Hopper: they are reordered once, when they are loaded.

Hopper has no tensor cores for e2m1. So its kernels decode weights in registers, and read them in an
order made for that. There are three layouts, each with 4.25 bits per weight, which differ in how
scales are applied. A layout does not depend on tiles or sizes: weights are prepacked once for all
of its kernels.

=============  ================================  ==================================================
layout         activations                       scales
=============  ================================  ==================================================
``exact1``     e4m3 (row, block128), e4m3x2      multiply sums of 32 along K: exact whatever they
                                                 are
``folded1``    e4m3 (row, block128), e4m3x2      become part of e4m3 values, sums of 128 are
                                                 multiplied: exact up to a spread of 11 within 128
                                                 of K (see `spread`), faster from 32 rows a group on
``wide1``      bfloat16                          become part of bfloat16 values: exact
=============  ================================  ==================================================

`jitgen.formats.prepacked_blocks` describes the positions of the bits;
`jitgen.formats.prepacked_scales` how scales are stored, which precision is lost far below the
largest one, and how a NaN is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats import atoms, e2m1, e4m3, mx32
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats import prepacked_scales as scales
from jitgen.formats.mx32 import VALUES, Rounding
from jitgen.formats.prepacked_scales import spread
from jitgen.formats.prepacked_weights import (
    PrepackedWeights,
    _made,  # noqa: F401  # pickles of older versions look for it here
    check_sizes,
    layout_of,
    spread_of_rows,
)
from jitgen.formats.protocol import ceil_div
from jitgen.support.moved import renamed

PrepackedLayout = Literal["exact1", "folded1", "wide1", "auto"]


def prepack_mxfp4(
    packed: Tensor, scale: Tensor, *, layout: PrepackedLayout | BLayout = BLayout.EXACT1
) -> PrepackedWeights:
    """
    Prepack MXFP4 weights for the kernels of Hopper and of the CPU.

    Works group by group on the device of `packed`. Besides the result, it needs memory for the
    values of one group.

    Args:
        packed: (G, N, K / 2) uint8 or float4_e2m1fn_x2, the first of two codes in the low half of a
            byte, as in the checkpoints of gpt-oss (blocks flattened) and of others. N is a multiple
            of 8, K of 16.
        scale: (G, N, ceil(K / 32)) uint8 or float8_e8m0fnu, row by row;
            `jitgen.quantize.from_atoms` converts scales in atoms to this form.
        layout: ``exact1``, ``folded1``, ``wide1``; or ``auto``: ``folded1`` if it is exact for all
            of these weights, otherwise ``exact1``. ``wide1`` is for bfloat16 activations.

    Raises:
        InputError: An argument has a wrong type or shape, or is out of range.
    """
    _check(packed, scale)
    groups, n, _ = packed.shape
    k = packed.shape[-1] * 2
    if layout == "auto":
        is_near = all(int(_spread(packed, scale, i).amax()) <= scales.REACH for i in range(groups))
        layout = BLayout.FOLDED1 if is_near else BLayout.EXACT1
    parts = (
        (e2m1.as_bytes(packed[group]), scale[group].view(torch.uint8)) for group in range(groups)
    )
    return _prepacked(parts, (groups, n, k), packed.device, layout_of(layout))


def prepack_mxfp4_from(
    w: Tensor, *, layout: PrepackedLayout | BLayout = BLayout.EXACT1, rounding: Rounding = "up"
) -> PrepackedWeights:
    """
    Quantise weights to MXFP4 and prepack them.

    Args:
        w: (G, N, K), any float type; N a multiple of 8, K of 16.
        layout: As for `prepack_mxfp4`, but not ``auto``.
        rounding: As for `jitgen.quantize.mxfp4`.

    Raises:
        InputError: An argument has a wrong type or shape, or is out of range.
    """
    e4m3.check(w, "w", ranks=(3,))
    groups, n, k = w.shape
    check_sizes(n, k)

    def parts() -> Iterator[tuple[Tensor, Tensor]]:
        for each in w:
            packed, scale = mx32.mxfp4(each, rounding=rounding)
            yield packed, atoms.plain(scale, ceil_div(k, VALUES))[:n].view(torch.uint8)

    return _prepacked(parts(), (groups, n, k), w.device, layout_of(layout))


def _prepacked(
    parts: Iterator[tuple[Tensor, Tensor]],
    sizes: tuple[int, int, int],
    device: torch.device,
    layout: BLayout,
) -> PrepackedWeights:
    """
    Prepack the groups that `parts` yields one after the other, each as its packed codes and scales;
    `sizes` are G, N and K.
    """
    groups, n, k = sizes
    shape = blocks.shape_of(*sizes)
    values = torch.empty(shape, dtype=torch.int32, device=device)
    factor = torch.empty(groups, dtype=torch.float32, device=device)
    spread_here = torch.zeros((), dtype=torch.int32, device=device)
    spare_n, spare_k = shape[1] * blocks.ROWS - n, shape[2] * blocks.DEPTH - k
    for group, (packed, scale) in enumerate(parts):
        codes = pad(e2m1.single(packed), (0, spare_k, 0, spare_n))
        spare = blocks.spare_scales(shape, scale, VALUES)
        kept = scales.kept(codes, pad(scale, (0, spare, 0, spare_n)), layout)
        blocks.blocked(blocks.joined(kept.codes, layout), kept.words, values[group])
        factor[group] = kept.factor
        spread_here = spread_here.maximum(scales.row_spread(kept.codes, kept.words, layout))
    return PrepackedWeights(
        values=values, factor=factor, n=n, k=k, layout=layout, row_spread=int(spread_here)
    )


def _spread(packed: Tensor, scale: Tensor, group: int) -> Tensor:
    return spread(packed[group : group + 1], scale[group : group + 1])


def _check(packed: Tensor, scale: Tensor) -> None:
    _require(packed, "packed", e2m1.is_packed, "uint8 or float4_e2m1fn_x2, (G, N, K / 2)")
    _require(scale, "scale", _is_scale, "uint8 or float8_e8m0fnu, (G, N, ceil(K / 32))")
    groups, n, half = packed.shape
    if not groups:
        raise InputError("packed", "must have at least one group (got none)")
    check_sizes(n, 2 * half)
    wanted = (groups, n, ceil_div(2 * half, VALUES))
    if tuple(scale.shape) != wanted:
        raise InputError(
            "scale",
            f"must have shape {wanted}, a byte for each 32 of packed, whose shape is "
            f"{tuple(packed.shape)} (got {tuple(scale.shape)})",
        )
    if scale.device != packed.device:
        raise InputError("scale", f"must be on {packed.device}, as packed is (got {scale.device})")


def _is_scale(x: Tensor) -> bool:
    return x.dtype in {torch.uint8, torch.float8_e8m0fnu}


def _require(x: object, name: str, is_right: Callable[[Tensor], bool], what: str) -> None:
    if not isinstance(x, Tensor):
        raise InputError(name, f"must be a torch tensor (got {type(x).__name__})")
    if x.dim() != 3 or not is_right(x):
        raise InputError(name, f"must be {what} (got {x.dtype} of shape {tuple(x.shape)})")


__all__ = [
    "PrepackedLayout",
    "PrepackedWeights",
    "prepack_mxfp4",
    "prepack_mxfp4_from",
    "spread",
    "spread_of_rows",
]


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
