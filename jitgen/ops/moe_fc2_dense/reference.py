# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `moe_fc2_dense`, in plain torch.

    out[t, n] = sum over e of  router_weights[t, e] * sum over i of  a[t, e, i] * a_scale[e, t, i]
                                                                   * b[e, n, i] * b_scale[e, n, i]

where each scale is repeated over the values that share it. Kernels add in another order and round
once, at the end, to the type of `out`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import InputError
from jitgen.formats import format_of_b
from jitgen.formats.e2m1 import values_of
from jitgen.formats.protocol import Rows
from jitgen.support.moved import MISSING, with_new_names


def moe_fc2_dense(  # the arguments of the real one
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    router_weights: Tensor = MISSING,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: MoEFc2DenseConfig | None = None,  # as in the real one
    **old: Any,
) -> Tensor:
    """
    Compute the result of `jitgen.moe_fc2_dense` for the same arguments, slowly and plainly.

    Sums are float32, or float64 where the scales and weights are. `config` changes nothing.

    Raises:
        InputError: The scales have no known format.
    """
    if old:
        return moe_fc2_dense(**with_new_names(moe_fc2_dense, locals()))
    form = format_of_b(b_scale)
    if form is None:
        raise InputError("b_scale", "must have the type and dimensions of a format of scales")
    if out is None:
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or torch.bfloat16)
    rows = values_of(a.transpose(0, 1), router_weights.dtype)
    rows = rows * form.repeated_a(a_scale, Rows(tuple(rows.shape[:-1])), rows.shape[-1])
    total = router_weights.new_zeros(out.shape)
    for expert, weights in enumerate(b):
        columns = values_of(weights, router_weights.dtype)
        columns = columns * form.repeated_b(b_scale[expert], *columns.shape)
        total += router_weights[:, expert, None] * (rows[expert] @ columns.T)
    return out.copy_(total)
