# SPDX-License-Identifier: Apache-2.0
"""Weights that are not quantised: bfloat16; float16 and float32 are rounded to it."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.layer.checkpoints.encodings.protocol import Encoding, Piece, sizes
from jitgen.layer.checkpoints.part import Matrix

PLAIN = (torch.bfloat16, torch.float16, torch.float32)


class Plain(Encoding):
    """Weights that are not quantised: one tensor, ``weight`` (N, K)."""

    name = "bf16"
    types = PLAIN
    kernel = "none"
    can_turn = True

    def fits(self, matrix: Matrix) -> bool:
        """Say whether the weights have a type that is not quantised."""
        return matrix.dtype("weight") in self.types

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K."""
        return sizes(matrix, "weight", self.types)

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """Return any part of a matrix, converted to bfloat16."""
        return Piece(self.numbers(matrix, rows, columns))

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return any part of a matrix, converted to bfloat16."""
        return matrix.read("weight", rows, columns).to(torch.bfloat16)
