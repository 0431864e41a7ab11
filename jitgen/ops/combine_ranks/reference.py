# SPDX-License-Identifier: Apache-2.0
"""Reference for the kernels of `combine_ranks`, in torch: float32 sums in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def combine_ranks(
    parts: Sequence[Tensor], shared: Tensor | None = None, shared_weights: Tensor | None = None
) -> Tensor:
    """
    Return the sum of what each rank has for the tokens of one: (T, H) bfloat16.

    Args:
        parts: Of each rank (T, H) bfloat16.
        shared: (T, H) bfloat16, added at the end.
        shared_weights: (T,) float32, what its rows are multiplied with; None: 1.
    """
    total = torch.zeros(parts[0].shape, device=parts[0].device)
    for part in parts:
        total += part.float()
    if shared is not None:
        weights = 1.0 if shared_weights is None else shared_weights[:, None]
        total += weights * shared.float()
    return total.bfloat16()
