# SPDX-License-Identifier: Apache-2.0
"""
INT4 as compressed-tensors packs it: eight values in an int32, the first in its lowest bits, each
stored plus 8; one scale for a group of neighbours in a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.encodings.protocol import Encoding, inner, sizes
from jitgen.layer.checkpoints.part import Matrix, outer

_IN_A_WORD = 8
_MIDDLE = 8
_COUNTS = (torch.int64, torch.int32)


class Int4(Encoding):
    """``weight_packed`` (N, ceil(K / 8)) int32, ``weight_shape``, scales (N, K / group)."""

    name = "int4"
    types = (torch.int32,)

    def fits(self, matrix: Matrix) -> bool:
        """Say whether values are packed in words."""
        return matrix.dtype(self.roles[0]) in self.types

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K, which ``weight_shape`` says."""
        n, words = sizes(matrix, self.roles[0], self.types)
        name = matrix.name("weight_shape")
        found = [0, 0]
        if matrix.shape("weight_shape") == (2,) and matrix.dtype("weight_shape") in _COUNTS:
            found = matrix.read("weight_shape").tolist()
        if found[0] != n or ceil_div(found[1], _IN_A_WORD) != words:
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

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return float32, which is exact."""
        role = self.roles[1]
        k = self.size(matrix)[1]
        group = k // matrix.shape(role)[1]
        words = outer(columns, _IN_A_WORD, k)
        packed = matrix.read(
            self.roles[0], rows, range(words.start // _IN_A_WORD, ceil_div(words.stop, _IN_A_WORD))
        )
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
        codes = ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2) - _MIDDLE
        around = outer(columns, group, k)
        groups = range(around.start // group, around.stop // group)
        stored, origin = matrix.read(role, rows, groups), matrix.origin(rows.start, groups.start)
        scale = scales.non_negative(matrix, role, stored, origin=origin)
        repeated = scale.repeat_interleave(group, 1)[:, inner(columns, around)]
        return codes[:, inner(columns, words)].float() * repeated
