# SPDX-License-Identifier: Apache-2.0
"""
INT4 in the orders of GPTQ and AWQ: matrices are (K, N), eight values in an int32, scales are (S,
N). Only symmetric weights are read, whose columns are in their order; others are refused by name.

========  ===========================  =========================================================
who       words                        zero points, one for each scale
========  ===========================  =========================================================
GPTQ      (K / 8, N), values along K   7 in every place; in files of its second format, which the
                                       model's config names, 8
AWQ       (K, N / 8), values along N   8 in every place
          interleaved
========  ===========================  =========================================================
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats import int4
from jitgen.formats.int4 import IN_A_WORD, MIDDLE
from jitgen.formats.prepacked_int4 import awq_values
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.encodings.int4 import Int4
from jitgen.layer.checkpoints.encodings.protocol import inner, require_shape, sizes
from jitgen.layer.checkpoints.part import Matrix, outer

GPTQ_V2 = "gptq_v2"
"""Name, in a model's config, of the format of GPTQ files whose zero points are stored unchanged."""


class _Turned(Int4):
    """Base of the encodings of GPTQ and AWQ, whose matrices are (K, N), with zero points."""

    def fits(self, matrix: Matrix) -> bool:
        """Say whether values are in int32 words, with the N of the scales."""
        words, found = matrix.shape(self.roles[0]), matrix.shape(self.roles[1])
        is_packed = matrix.dtype(self.roles[0]) in self.types and len(words) == len(found) == 2
        return is_packed and self._of_words(*words)[0] == found[1]

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K."""
        return self._of_words(*sizes(matrix, self.roles[0], self.types))

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require scales and zero points of groups of one size, and columns in their order."""
        n, k = size
        self._require_scales(matrix, size)
        groups = matrix.shape(self.roles[1])[0]
        zeros = self.roles[2]
        require_shape(matrix, zeros, (groups, ceil_div(n, IN_A_WORD)))
        _require_words(matrix, zeros)
        wanted = self._zero(matrix)
        found = int4.values_of(matrix.read(zeros))[:, :n] + MIDDLE
        if (found != wanted).any():
            other = int(found[found != wanted][0])
            raise InputError(
                "source",
                f"{matrix.name(zeros)} must be {wanted} in every place, as symmetric weights have "
                f"it: weights with other zero points are not read (got {other})",
            )
        for order in self.roles[3:]:
            require_shape(matrix, order, (k,))
            _require_words(matrix, order)
            if not torch.equal(matrix.read(order), torch.arange(k).int() // (k // groups)):
                raise InputError(
                    "source",
                    f"{matrix.name(order)} must have the groups of columns in their order, "
                    f"0 to {groups - 1}: weights that desc_act reordered are not read",
                )

    def unit_of(self, matrix: Matrix) -> int:
        """Return the size of a group."""
        size = self.size(matrix)
        self._require_scales(matrix, size)
        return size[1] // matrix.shape(self.roles[1])[0]

    def _require_scales(self, matrix: Matrix, size: tuple[int, int]) -> None:
        (n, k), role = size, self.roles[1]
        shape = matrix.shape(role)
        if len(shape) != 2 or shape[1] != n or not shape[0] or k % shape[0]:
            raise InputError(
                "source",
                f"{matrix.name(role)} must be (K / group, N) for N, K = {size} (got "
                f"{matrix.source.shape(matrix.name(role))})",
            )

    def _read(
        self, matrix: Matrix, rows: range, columns: range, group: int
    ) -> tuple[Tensor, Tensor]:
        """Return values of some rows and columns, and the scales of all groups that these touch."""
        role, around = self.roles[1], outer(columns, group, self.size(matrix)[1])
        groups = range(around.start // group, around.stop // group)
        stored, origin = matrix.read(role, groups, rows), matrix.origin(groups.start, rows.start)
        scales.non_negative(matrix, role, stored, origin=origin)
        return self._values(matrix, rows, columns).contiguous(), stored.mT

    @abstractmethod
    def _of_words(self, first: int, second: int) -> tuple[int, int]:
        """Return N and K of a matrix whose words have the shape (`first`, `second`)."""

    @abstractmethod
    def _zero(self, matrix: Matrix) -> int:
        """Return the stored number for the zero point of symmetric weights."""

    @abstractmethod
    def _values(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return values of some rows and columns, (n, k) int8."""


class Gptq(_Turned):
    """``qweight`` (K / 8, N) int32, ``scales`` (S, N), ``qzeros`` (S, N / 8), ``g_idx`` (K,)."""

    name = "int4_gptq"

    def _of_words(self, first: int, second: int) -> tuple[int, int]:
        return second, first * IN_A_WORD

    def _zero(self, matrix: Matrix) -> int:
        return MIDDLE if matrix.scale_format == GPTQ_V2 else MIDDLE - 1

    def _values(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        words = outer(columns, IN_A_WORD, self.size(matrix)[1])
        at = range(words.start // IN_A_WORD, words.stop // IN_A_WORD)
        return int4.values_of(matrix.read(self.roles[0], at, rows).mT)[:, inner(columns, words)]


class Awq(_Turned):
    """``qweight`` (K, N / 8) int32, ``scales`` (S, N), ``qzeros`` (S, N / 8)."""

    name = "int4_awq"

    def _of_words(self, first: int, second: int) -> tuple[int, int]:
        return second * IN_A_WORD, first

    def _zero(self, _matrix: Matrix) -> int:  # there is one format of files
        return MIDDLE

    def _values(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        words = outer(rows, IN_A_WORD, self.size(matrix)[0])
        at = range(words.start // IN_A_WORD, words.stop // IN_A_WORD)
        return awq_values(matrix.read(self.roles[0], columns, at))[:, inner(rows, words)].mT


def _require_words(matrix: Matrix, role: str) -> None:
    if matrix.dtype(role) is not torch.int32:
        raise InputError("source", f"{matrix.name(role)} must be int32 (got {matrix.dtype(role)})")
