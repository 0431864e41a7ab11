# SPDX-License-Identifier: Apache-2.0
"""Element types of tensors and of configs."""

from __future__ import annotations

import torch

from jitgen.config import DType

TORCH: dict[DType, torch.dtype] = {dtype: getattr(torch, dtype.torch_name) for dtype in DType}
OF_TORCH: dict[torch.dtype, DType] = {value: key for key, value in TORCH.items()}


def ceil_div(size: int, by: int) -> int:
    """Return how many parts of `by` cover `size`."""
    return -(-size // by)
