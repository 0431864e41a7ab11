# SPDX-License-Identifier: Apache-2.0
"""``tensor``: one float32 for all of a, one for each group's b."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import ScaleGranularity
from jitgen.formats.e4m3 import check, rounded, scale_of
from jitgen.formats.protocol import Index, Rows, Shape


def per_tensor(x: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise activations, with one scale for the whole tensor.

    Args:
        x: (M, K) or (G, M, K), any float type.
        power_of_two: Round the scale up to a power of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (1,) float32.
    """
    check(x, "x", ranks=(2, 3), may_be_empty=True)
    largest = x.float().abs().amax() if x.numel() else torch.zeros((), device=x.device)
    scale = scale_of(largest, power_of_two=power_of_two)
    return rounded(x.float() / scale), scale.reshape(1)


def per_matrix(w: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise weights, with one scale for the matrix of each group.

    Args:
        w: (G, N, K), any float type.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: (G, N, K) float8_e4m3fn, row-major.
        scale: (G,) float32.
    """
    check(w, "w", ranks=(3,))
    scale = scale_of(w.float().abs().amax((-2, -1)), power_of_two=power_of_two)
    return rounded(w.float() / scale[:, None, None]), scale


class PerTensor:
    """The format ``tensor``; implements `jitgen.formats.protocol.ScaleFormat`."""

    name = ScaleGranularity.TENSOR
    dtype = torch.float32
    b_rank = 1
    has_alpha = False
    has_atoms = False
    has_readable_orders = False
    words = "for each group"

    def a_shape(self, rows: Rows, k: int) -> Shape:
        """Return the shape of a's scale: (1,)."""
        return (1,)

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """Return the shape of b's scales: (G,)."""
        return (groups,)

    def is_readable(self, a_scale: Tensor) -> bool:
        """Return True: one value has no strides to choose."""
        return True

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return `a_scale`."""
        return a_scale

    def new_a(self, like: Tensor, rows: Rows, k: int) -> Tensor:
        """Return a new scale of a, (1,)."""
        return like.new_empty((1,), dtype=torch.float32)

    def part_of_a(self, scale: Tensor, rows: Rows, k: int, *where: Index) -> Tensor:
        """Return `scale`, (1,): it is that of all rows."""
        return scale

    def repeated_a(self, scale: Tensor, rows: Rows, k: int) -> Tensor:
        """Return `scale`, (1,), which broadcasts."""
        return scale

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """
        Return one group's scale of b as (1,): without a dimension it would not promote other types
        to float32.
        """
        return scale.reshape(1)


FORMAT = PerTensor()
