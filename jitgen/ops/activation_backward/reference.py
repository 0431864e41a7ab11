# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `activation_backward`, in torch: float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config.activation_backward import SUM_COLUMNS
from jitgen.config.activation_quantize import Activation
from jitgen.ops.activation_quantize import derivatives
from jitgen.ops.activation_quantize.numbers import require_numbers
from jitgen.ops.tensors import owned_rows


def activation_backward(  # noqa: PLR0913  # the arguments of the real one
    dy: Tensor,
    x: Tensor,
    weights: Tensor,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Compute the result of a kernel, slowly and plainly, for any float type.

    Rows of no group are 0.

    Args:
        dy: (M, I) or (G, M, I).
        x: (M, 2 I) or (G, M, 2 I); I columns without gates.
        weights: (M,) or (G, M) float32.
        offs: (G,) int32: where the rows of each group end. Exactly one of these three is given.
        m_indices: (M,) int32: the group of each row, -1 for padding.
        masked_m: (G,) int32: how many rows of each matrix count.
        activation: As for `jitgen.activation_quantize`; the same holds for the numbers below.
        interleaved: Gates are in the even columns of x, ups in the odd ones.
        swiglu_limit: For activations that have it.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.

    Returns:
        dx like x, y like dy, and sums, (M, ceil(I / 256)) or (G, M, ceil(I / 256)) float32.

    Raises:
        InputError: A number that the activation needs is missing, or one is given that it does not
            have.
    """
    given = {
        "swiglu_limit": swiglu_limit,
        "swiglu_alpha": swiglu_alpha,
        "swiglu_beta": swiglu_beta,
        "gate_softcap": gate_softcap,
        "up_softcap": up_softcap,
    }
    kind = Activation(activation)
    numbers = require_numbers(kind, given)
    owned = owned_rows(x.shape[-2], offs, m_indices, masked_m).unsqueeze(-1)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    values, slopes = (each.to(wide).where(owned, 0.0) for each in (x, dy))
    factors = weights.to(wide).unsqueeze(-1).where(owned, 0.0)
    gate, up = _halves(values, interleaved) if kind.is_gated else (values, None)
    y, of_gate, of_up = derivatives.of_gate(kind, gate, up, *numbers)
    weighted = slopes * factors
    parts = [weighted * each for each in (of_gate, of_up) if each is not None]
    dx = torch.stack(parts, -1 if interleaved else -2).flatten(-2)
    sums = pad(slopes * y, (0, -y.shape[-1] % SUM_COLUMNS))
    sums = sums.unflatten(-1, (-1, SUM_COLUMNS)).sum(-1).where(owned, 0.0)
    y, dx = (each.where(owned, 0.0).to(x.dtype) for each in (y * factors, dx))
    return dx, y, sums


def _halves(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    columns = x.shape[-1] // 2
    return x[..., :columns], x[..., columns:]
