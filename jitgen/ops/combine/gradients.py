# SPDX-License-Identifier: Apache-2.0
"""
The gradients of `combine`, by torch's operations, in a fixed order.

    out[t] = sum over j of topk_weights[t, j] * y[inverse[t, j]] + shared_weights[t] * shared[t]
"""

from __future__ import annotations

import torch
from torch import Tensor


def of_rows(dout: Tensor, inverse: Tensor, topk_weights: Tensor, shape: torch.Size) -> Tensor:
    """
    Return the gradient of y, whose shape is `shape`: for each row, the sum over the places that
    have the row, in float32; 0 for rows of no place.
    """
    count = shape[:-1].numel()
    rows = inverse.flatten().long()
    has = (rows >= 0) & (rows < count)
    total = dout.new_zeros((count + 1, shape[-1]), dtype=torch.float32)  # the last is of no row
    products = dout.float()[:, None] * topk_weights[..., None]
    rows, products = rows.where(has, count), products.flatten(0, 1)
    if dout.is_cuda:  # sorts what it adds up, which index_add does not
        total.index_put_((rows,), products, accumulate=True)
    else:
        total.index_add_(0, rows, products)
    return total[:count].to(dout.dtype).view(shape)


def of_weights(dout: Tensor, inverse: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of `topk_weights`, (T, k) float32: 0 for places without a row."""
    every = y.reshape(-1, y.shape[-1])
    has = (inverse >= 0) & (inverse < len(every))
    if not len(every):
        return dout.new_zeros(inverse.shape, dtype=torch.float32)
    rows = every.index_select(0, inverse.where(has, 0).flatten()).view(*inverse.shape, -1)
    found = (rows.float() * dout.float()[:, None]).sum(-1)
    return found.masked_fill(~has, 0.0)


def of_shared(dout: Tensor, shared_weights: Tensor | None) -> Tensor:
    """Return the gradient of `shared`, (T, N)."""
    if shared_weights is None:
        return dout
    return (dout.float() * shared_weights[:, None]).to(dout.dtype)


def of_shared_weights(dout: Tensor, shared: Tensor) -> Tensor:
    """Return the gradient of `shared_weights`, (T,) float32."""
    return (dout.float() * shared.float()).sum(1)
