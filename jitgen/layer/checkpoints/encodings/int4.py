# SPDX-License-Identifier: Apache-2.0
"""
INT4 as compressed-tensors packs it: eight values in an int32, the first in its lowest bits, each
stored as value plus 8; one scale for each group of consecutive values in a row. Layers support
groups of 32 and 128, prepacked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import int4
from jitgen.formats.int4 import IN_A_WORD
from jitgen.formats.prepacked_int4 import GROUPS, SCALES
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.encodings.protocol import Encoding, Piece, inner, sizes
from jitgen.layer.checkpoints.part import Matrix, outer

_COUNTS = (torch.int64, torch.int32)


class Int4(Encoding):
    """``weight_packed`` (N, ceil(K / 8)) int32, ``weight_shape``, scales (N, K / group)."""

    name = "int4"
    types = (torch.int32,)
    kernel = "int4"

    def fits(self, matrix: Matrix) -> bool:
        """Say whether values are packed in int32 words."""
        return matrix.dtype(self.roles[0]) in self.types

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K from ``weight_shape``."""
        n, words = sizes(matrix, self.roles[0], self.types)
        name = matrix.name("weight_shape")
        found = [0, 0]
        if matrix.shape("weight_shape") == (2,) and matrix.dtype("weight_shape") in _COUNTS:
            found = matrix.read("weight_shape").tolist()
        if found[0] != n or ceil_div(found[1], IN_A_WORD) != words:
            raise InputError(
                "source",
                f"{name} must be N and K of {matrix.name(self.roles[0])}, which is {(n, words)} "
                f"words of eight values of 4 bits (got {matrix.dtype('weight_shape')} "
                f"of shape {matrix.source.shape(name)}, {found})",
            )
        return n, found[1]

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require a scale for each group, and groups of one size."""
        n, k = size
        role = self.roles[1]
        shape = matrix.shape(role)
        if len(shape) != 2 or shape[0] != n or not shape[1] or k % shape[1]:
            raise InputError(
                "source",
                f"{matrix.name(role)} must be (N, K / group) for N, K = {size} (got "
                f"{matrix.source.shape(matrix.name(role))})",
            )

    def prepacked(self, matrix: Matrix) -> PrepackedFormat:
        """
        Return the prepacked format of INT4 in groups of this size.

        Raises:
            InputError: Groups are of another size, or scales of another type.
        """
        n, k = self.size(matrix)
        values, name = self.unit_of(matrix), matrix.name(self.roles[0])
        dtype, advice = matrix.dtype(self.roles[1]), "dequantize=True reads it as bfloat16"
        if values not in GROUPS or k % values or n % 8:
            raise InputError(
                "source",
                f"{name} must have N a multiple of 8 and K of groups of 32 or 128 (got {n} and {k} "
                f"in groups of {values}); {advice}",
            )
        if dtype not in SCALES:
            raise InputError(
                "source",
                f"{matrix.name(self.roles[1])} must be bfloat16 or float16 (got {dtype}); {advice}",
            )
        return GROUPS[values]

    def unit_of(self, matrix: Matrix) -> int:
        """Return the size of a group."""
        size = self.size(matrix)
        self.check(matrix, size)
        return int(size[1] // matrix.shape(self.roles[1])[1])

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """Return values, int8, and the scales of their groups."""
        return Piece(*self._read(matrix, rows, columns, self.unit_of(matrix)))

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return a part's values times their scales: float32, which is exact."""
        group = self.unit_of(matrix)
        around = outer(columns, group, self.size(matrix)[1])
        values, scale = self._read(matrix, rows, columns, group)
        repeated = scale.float().repeat_interleave(group, 1)[:, inner(columns, around)]
        return values.float() * repeated

    def _read(
        self, matrix: Matrix, rows: range, columns: range, group: int
    ) -> tuple[Tensor, Tensor]:
        """Return values of some rows and columns, and the scales of all groups that these touch."""
        role, k = self.roles[1], self.size(matrix)[1]
        words, around = outer(columns, IN_A_WORD, k), outer(columns, group, k)
        packed = matrix.read(
            self.roles[0], rows, range(words.start // IN_A_WORD, ceil_div(words.stop, IN_A_WORD))
        )
        groups = range(around.start // group, around.stop // group)
        stored, origin = matrix.read(role, rows, groups), matrix.origin(rows.start, groups.start)
        scales.non_negative(matrix, role, stored, origin=origin)
        return int4.values_of(packed)[:, inner(columns, words)], stored
