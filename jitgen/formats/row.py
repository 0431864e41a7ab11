# SPDX-License-Identifier: Apache-2.0
"""``row``: one float32 for each row of a, one for each row (output column) of b."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import ScaleGranularity
from jitgen.formats.e4m3 import check, rounded, scale_of
from jitgen.formats.protocol import Index, Rows, Shape, at


def per_row(x: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights, with one scale for every row along K.

    Args:
        x: (M, K) or (G, M, K), any float type.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (M,) or (G, M) float32.
    """
    check(x, "x", ranks=(2, 3))
    scale = scale_of(x.float().abs().amax(-1), power_of_two=power_of_two)
    return rounded(x.float() / scale.unsqueeze(-1)), scale


class PerRow:
    """The format ``row``; implements `jitgen.formats.protocol.ScaleFormat`."""

    name = ScaleGranularity.ROW
    dtype = torch.float32
    b_rank = 2
    has_alpha = False
    has_atoms = False
    has_readable_orders = False
    words = "for each row"

    def a_shape(self, rows: Rows, k: int) -> Shape:
        """Return the shape of a's scales: (M,) or (G, M)."""
        return rows.shape

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """Return the shape of b's scales: (G, N)."""
        return groups, n

    def is_readable(self, a_scale: Tensor) -> bool:
        """Return True; other checks refuse scales that are not contiguous."""
        return True

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return `a_scale`."""
        return a_scale

    def new_a(self, like: Tensor, rows: Rows, k: int) -> Tensor:
        """Return new scales of a, (M,) or (G, M)."""
        return like.new_empty(rows.shape, dtype=torch.float32)

    def part_of_a(self, scale: Tensor, rows: Rows, k: int, *where: Index) -> Tensor:
        """Return the scales of the rows at `where`, as a view."""
        return at(scale, *where)

    def repeated_a(self, scale: Tensor, rows: Rows, k: int) -> Tensor:
        """Return a's scales as a view that broadcasts, (M, 1) or (G, M, 1)."""
        return scale.unsqueeze(-1)

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """Return one group's scales of b as a view that broadcasts, (N, 1)."""
        return scale.unsqueeze(-1)


FORMAT = PerRow()
