# SPDX-License-Identifier: Apache-2.0
"""
The protocol of scale formats: one object in a file of `jitgen.formats`, with the shapes, the memory
layout and the arithmetic of one way of scaling an operand; and torch's element types.

The other functions of these files quantise values; their arguments and results differ.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from jitgen.config import DType, ScaleGranularity

TORCH: dict[DType, torch.dtype] = {dtype: getattr(torch, dtype.torch_name) for dtype in DType}
OF_TORCH: dict[torch.dtype, DType] = {
    # a's rank tells e4m3x2; int4 is in prepacked weights alone
    **{TORCH[each]: each for each in DType if each not in (DType.E4M3X2, DType.INT4)},
    torch.uint8: DType.E2M1,  # two values a byte, as most code passes them around
}


def ceil_div(size: int, by: int) -> int:
    """Return how many parts of `by` cover `size`."""
    return (size + by - 1) // by  # not -(-size // by): torch finds no range of that for symbols


Shape = tuple[int, ...]

Index = slice | tuple[int, slice]
"""Some rows of a tensor, or of one group of it."""


def at(x: Tensor, *where: Index) -> Tensor:
    """Return ``x[where[0]][where[1]]``, and so on."""
    for index in where:
        x = x[index]
    return x


class Rows(NamedTuple):
    """
    The layout of the rows of a, as far as scales depend on it.

    Attributes:
        shape: The sizes of a before K: (M,) or (G, M).
        groups: Number of groups of the ragged layout, which follow each other without padding; 0 in
            other layouts, in which groups start at multiples of 128 rows or have their own matrix.
        offs: (groups,) int32: for each group, the index after its last row; None if only shapes are
            needed.
    """

    shape: Shape
    groups: int = 0
    offs: Tensor | None = None


class ScaleFormat(Protocol):
    """How values of an operand share scales."""

    name: ScaleGranularity
    """The name of the format in configs."""

    dtype: torch.dtype
    """Element type of the scales."""

    b_rank: int
    """Number of dimensions of b's scales, which distinguishes formats with the same type."""

    has_alpha: bool
    """Whether there is a further float32 factor of the sums of each group."""

    has_atoms: bool
    """
    Whether scales are in atoms; then a's scales may have more blocks (dimension -3) than needed.
    """

    has_readable_orders: bool
    """Whether a's scales may have any strides, of which kernels read some (see `is_readable`)."""

    words: str
    """The extent of one scale of b, for errors: ``for each row``."""

    def a_shape(self, rows: Rows, k: int) -> Shape:
        """Return the shape of a's scales."""
        ...

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """Return the shape of b's scales."""
        ...

    def is_readable(self, a_scale: Tensor) -> bool:
        """Say whether kernels of every target can read a's scales with their strides."""
        ...

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return a's scales with strides that kernels read: the tensor itself, or a copy."""
        ...

    def new_a(self, like: Tensor, rows: Rows, k: int) -> Tensor:
        """
        Return new scales of a in the layout that kernels read, on the device of `like`, not
        initialised.
        """
        ...

    def part_of_a(self, scale: Tensor, rows: Rows, k: int, *where: Index) -> Tensor:
        """
        Return the scales of some rows of a, in the layout for an a with only these rows.

        Args:
            scale: a's scales.
            rows: The groups of the rows.
            k: Length of the sums.
            where: Indices of these rows, one after the other: ``x[where[0]][where[1]]``.
        """
        ...

    def repeated_a(self, scale: Tensor, rows: Rows, k: int) -> Tensor:
        """Return a's scales in a shape that broadcasts to (..., K) values."""
        ...

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """Return one group's scales of b in a shape that broadcasts to (N, K) values."""
        ...
