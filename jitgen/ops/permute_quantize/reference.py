# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `permute_quantize`, in torch: rows are gathered, then quantised by
`jitgen.quantize`. Scales and values are equal bit by bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.formats.block128 import per_token_group
from jitgen.formats.e4m3 import MAX
from jitgen.formats.mx32 import Rounding, mxfp4, mxfp8
from jitgen.formats.nv16 import nvfp4
from jitgen.formats.row import per_row
from jitgen.ops.tensors import owned_rows
from jitgen.support.moved import with_new_names


def permute_quantize(  # noqa: PLR0913  # the arguments of the real one
    x: Tensor,
    permutation: Tensor,
    *,
    top_k: int,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    format: str = "block128",  # noqa: A002  # as of the real one
    global_scale: Tensor | None = None,
    power_of_two: bool = False,
    rounding: Rounding = "up",
    **old: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    Return rows of tokens in the order of a permutation, quantised, computed slowly and plainly.

    Waits for the device. Rows of no group are 0 before they are quantised.

    Args:
        x: (T, K) bfloat16.
        permutation: (M,) or (G, M) int32: the pair of each row, token times `top_k` plus place.
        top_k: Number of places of a token.
        offs: (G,) int32: where the rows of each group end. Exactly one of these three is given.
        m_indices: (M,) int32: the group of each row, -1 for padding.
        masked_m: (G,) int32: how many rows of each matrix count.
        format: Format of the result.
        global_scale: float32: (1,) for ``tensor``; (1,) or (G,) for ``nvfp4``, where it is the
            scale of the scales.
        power_of_two: Round float32 scales up to powers of two.
        rounding: Rounding of the scales of formats whose scales are always powers of two.
        **old: Arguments by their old names.

    Returns:
        q: Values in the order of `permutation`.
        scale: As `jitgen.quantize` returns it; for ``tensor`` the given one; None for ``none``.

    Raises:
        InputError: There is no such format; or a scale is given that the format does not need, or
            is missing.
    """
    if old:
        return permute_quantize(**with_new_names(permute_quantize, locals()))
    if format not in tuple(Format):
        raise InputError("format", f"must be one of {', '.join(Format)} (got {format!r})")
    form = Format(format)
    if (global_scale is not None) != form.has_given_scale:
        raise InputError(
            "global_scale", f"is given for tensor and nvfp4, and only there (got {form})"
        )
    owned = owned_rows(permutation.shape[-1], offs, m_indices, masked_m)
    tokens = (permutation.long() // top_k).clamp(0, max(0, len(x) - 1))
    rows = x[tokens.flatten()].view(*tokens.shape, -1).where(owned.unsqueeze(-1), 0.0)
    if form is Format.BLOCK128:
        return per_token_group(rows, power_of_two=power_of_two)
    if form is Format.ROW:
        return per_row(rows, power_of_two=power_of_two)
    if form is Format.NVFP4:
        return nvfp4(rows, offs=offs, global_scale=global_scale)[:2]
    if form in (Format.MXFP8, Format.MXFP4):
        return (mxfp8 if form is Format.MXFP8 else mxfp4)(rows, offs=offs, rounding=rounding)
    if global_scale is not None:
        q = (rows.float() / global_scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn)
        return q, global_scale
    return rows, None
