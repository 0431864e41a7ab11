# SPDX-License-Identifier: Apache-2.0
"""
What a scale format is: one object in a file of `jitgen.formats`, which alone knows the shapes, the
memory layout and the arithmetic of one way of scaling an operand; and torch's element types.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from jitgen.config import DType, ScaleGranularity

TORCH: dict[DType, torch.dtype] = {dtype: getattr(torch, dtype.torch_name) for dtype in DType}
OF_TORCH: dict[torch.dtype, DType] = {value: key for key, value in TORCH.items()}


def ceil_div(size: int, by: int) -> int:
    """Return how many parts of `by` cover `size`."""
    return -(-size // by)


Shape = tuple[int, ...]


class ScaleFormat(Protocol):
    """
    How values of an operand share scales. `rows` are the sizes of a in front of K: (M,) or (G, M).
    """

    name: ScaleGranularity
    """The word of configs."""

    dtype: torch.dtype
    """Element type of the scales."""

    b_rank: int
    """Dimensions of b's scales, by which the format is told from others with the same type."""

    has_readable_orders: bool
    """Whether a's scales may come in any order, of which kernels read some (see `is_readable`)."""

    words: str
    """What one scale of b is for, for errors: ``for each row``."""

    def a_shape(self, rows: Shape, k: int) -> Shape:
        """Return the shape of a's scales."""
        ...

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """Return the shape of b's scales."""
        ...

    def is_readable(self, a_scale: Tensor) -> bool:
        """Say whether kernels of every target can read a's scales with the strides they have."""
        ...

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return a's scales in an order that kernels read: themselves if they are so, or a copy."""
        ...

    def new_a(self, like: Tensor, rows: Shape, k: int) -> Tensor:
        """Return scales of a as kernels read them, beside `like`, not initialised."""
        ...

    def repeated_a(self, scale: Tensor, k: int) -> Tensor:
        """Return a's scales so that they multiply (..., K) values elementwise."""
        ...

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """Return one group's scales of b so that they multiply (N, K) values elementwise."""
        ...

    def quantize_a(self, x: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
        """Return (M, K) or (G, M, K) as float8_e4m3fn, and its scales as kernels read them."""
        ...

    def quantize_b(self, w: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
        """Return (G, N, K) as float8_e4m3fn, and its scales."""
        ...
