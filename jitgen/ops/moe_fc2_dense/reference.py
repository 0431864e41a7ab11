# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `moe_fc2_dense`, in plain torch.

    out[t, n] = sum over e of  alpha[t, e] * sum over i of  a[t, e, i] * a_scale[e, t, i]
                                                          * b[e, n, i] * b_scale[e, n, i]

where each scale is repeated over the values that share it. Kernels add in another order and round
once, at the end, to the type of `out`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import InputError
from jitgen.formats import format_of_b
from jitgen.formats.e2m1 import values_of
from jitgen.formats.protocol import Rows


def moe_fc2_dense(  # the arguments of the real one
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    alpha: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: MoEFc2DenseConfig | None = None,  # noqa: ARG001  # as in the real one
) -> Tensor:
    """
    Compute the result of `jitgen.moe_fc2_dense` for the same arguments, slowly and plainly.

    Sums are float32, or float64 where the scales and alpha are. `config` changes nothing.

    Raises:
        InputError: The scales have no format that there is.
    """
    form = format_of_b(b_scale)
    if form is None:
        raise InputError("b_scale", "must have the type and dimensions of a format of scales")
    if out is None:
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or torch.bfloat16)
    rows = values_of(a.transpose(0, 1), alpha.dtype)
    rows = rows * form.repeated_a(a_scale, Rows(tuple(rows.shape[:-1])), rows.shape[-1])
    total = alpha.new_zeros(out.shape)
    for expert, weights in enumerate(b):
        columns = values_of(weights, alpha.dtype)
        columns = columns * form.repeated_b(b_scale[expert], *columns.shape)
        total += alpha[:, expert, None] * (rows[expert] @ columns.T)
    return out.copy_(total)
