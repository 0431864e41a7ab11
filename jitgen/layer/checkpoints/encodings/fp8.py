# SPDX-License-Identifier: Apache-2.0
"""
FP8 weights (e4m3) and their scales: one for each 128 x 128, for each row, for the whole matrix, for
each 32 values of a row, or for each 32 x 32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.config import SCALE_BLOCK
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.encodings.protocol import (
    Encoding,
    Piece,
    inner,
    require_shape,
    sizes,
)
from jitgen.layer.checkpoints.part import Matrix, outer

_GROUP = 32
"""Values of MXFP8 that share a scale."""


class _Fp8(Encoding):
    """``weight`` (N, K) float8_e4m3fn, and a tensor of scales."""

    can_turn = True
    types = (torch.float8_e4m3fn,)

    def fits(self, matrix: Matrix) -> bool:
        """Say whether the scales have a shape of this encoding."""
        if matrix.dtype("weight") not in self.types or len(matrix.shape("weight")) != 2:
            return False
        shape = matrix.shape(self.roles[1])
        return shape in self.shapes(self.size(matrix))

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K."""
        return sizes(matrix, "weight", self.types)

    def shapes(self, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that scales of a matrix (N, K) may have."""
        raise NotImplementedError

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require scales with a shape of this encoding."""
        require_shape(matrix, self.roles[1], *self.shapes(size))

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return the values times their scales, float32."""
        n, k = self.size(matrix)
        around = outer(rows, self.unit, n), outer(columns, self.unit, k)
        values, scale = self.scaled(matrix, *around)
        found = values.float() * self.repeated(scale)[: values.shape[0], : values.shape[1]]
        return found[inner(rows, around[0]), inner(columns, around[1])]

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """Return e4m3 values, and their scales in float32."""
        return Piece(*self.scaled(matrix, rows, columns))

    def scaled(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return values, and their scales in float32."""
        raise NotImplementedError

    def repeated(self, scale: Tensor) -> Tensor:
        """Return scales repeated to the shape of values, or to a larger one."""
        raise NotImplementedError


class Fp8Block(_Fp8):
    """A scale for each 128 x 128: (ceil(N / 128), ceil(K / 128))."""

    name = "fp8_block128"
    kernel = "block128"
    unit = SCALE_BLOCK

    def shapes(self, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return (ceil(N / 128), ceil(K / 128)) alone."""
        return ((ceil_div(size[0], SCALE_BLOCK), ceil_div(size[1], SCALE_BLOCK)),)

    def scaled(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return values, and scales of their blocks."""
        blocks = [
            range(part.start // SCALE_BLOCK, ceil_div(part.stop, SCALE_BLOCK))
            for part in (rows, columns)
        ]
        role = self.roles[1]
        values, scale = matrix.read("weight", rows, columns), matrix.read(role, *blocks)
        origin = matrix.origin(*(part.start for part in blocks))
        found = scales.of_matrix(matrix, role, scale, lambda: _used_blocks(values), origin)
        return values, found

    def repeated(self, scale: Tensor) -> Tensor:
        """Return a scale for each value, up to whole blocks."""
        return scale.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)


class Fp8Row(_Fp8):
    """A scale for each row: (N, 1) or (N,)."""

    name = "fp8_row"
    kernel = "row"

    def shapes(self, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return (N, 1) and (N,)."""
        return (size[0], 1), (size[0],)

    def scaled(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return values, and a scale for each row."""
        values = matrix.read("weight", rows, columns)
        scale = self.for_rows(matrix, rows)

        def used() -> Tensor:  # only if asked
            return (values.view(torch.uint8) & 0x7F).any(dim=1)

        origin = matrix.origin(rows.start)
        return values, scales.of_matrix(matrix, self.roles[1], scale, used, origin)

    def for_rows(self, matrix: Matrix, rows: range) -> Tensor:
        """Return the scales of some rows: (n,)."""
        return matrix.read(self.roles[1], rows).flatten()

    def repeated(self, scale: Tensor) -> Tensor:
        """Return the scales of n rows as (n, 1), which broadcasts."""
        return scale.unsqueeze(1)


class Fp8Tensor(Fp8Row):
    """One scale for the whole matrix; every row gets it."""

    name = "fp8_tensor"

    def shapes(self, _size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a tensor with one value: (), (1,) and (1, 1)."""
        return (), (1,), (1, 1)

    def for_rows(self, matrix: Matrix, rows: range) -> Tensor:
        """Return the scale, once for each row."""
        return matrix.read(self.roles[1]).reshape(1).repeat(len(rows))


class Mxfp8(_Fp8):
    """A power of two for each 32 values of a row: (N, K / 32) bytes."""

    name = "mxfp8"
    kernel = "mxfp8"
    unit = _GROUP
    rows = 1
    """Rows that share a scale."""

    def shapes(self, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return (ceil(N / rows), ceil(K / 32)) alone."""
        return ((ceil_div(size[0], self.rows), ceil_div(size[1], _GROUP)),)

    def fits(self, matrix: Matrix) -> bool:
        """Say whether the scales are bytes, with a shape of this encoding."""
        return super().fits(matrix) and matrix.dtype(self.roles[1]) in scales.BYTES

    def prepacked(self, matrix: Matrix) -> PrepackedFormat:
        """
        Return MXFP8.

        Raises:
            InputError: Kernels do not support the sizes.
        """
        n, k = self.size(matrix)
        if n % 8 or k % _GROUP:
            raise InputError(
                "source",
                f"{matrix.name('weight')} must have N a multiple of 8 and K of 32 (got {n} and "
                f"{k}); dequantize=True reads it as bfloat16",
            )
        return PrepackedFormat.MXFP8

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """Return the bits of values (n, k), and bytes of scales (n, k / 32)."""
        values, stored = self._read(matrix, rows, columns)
        scales.powers(matrix, self.roles[1], stored, ())
        return Piece(values.view(torch.uint8), stored.view(torch.uint8))

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return a part's values times their scales: float32, which is exact."""
        around = outer(columns, _GROUP, self.size(matrix)[1])
        values, stored = self._read(matrix, rows, around)
        scale = scales.powers(matrix, self.roles[1], stored, ())
        repeated = scale.repeat_interleave(_GROUP, 1)[:, : values.shape[1]]
        return (values.float() * repeated)[:, inner(columns, around)]

    def _read(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return values, and a scale for each 32 of each row; columns begin with a group."""
        around = outer(rows, self.rows, self.size(matrix)[0])
        blocks = range(around.start // self.rows, ceil_div(around.stop, self.rows))
        groups = range(columns.start // _GROUP, ceil_div(columns.stop, _GROUP))
        stored = matrix.read(self.roles[1], blocks, groups)
        scales.require_bytes(
            stored, matrix.name(self.roles[1]), matrix.origin(blocks.start, groups.start)
        )
        of_rows = stored.view(torch.uint8).repeat_interleave(self.rows, 0)[inner(rows, around)]
        return matrix.read("weight", rows, columns), of_rows


class Fp8Square(Mxfp8):
    """A power of two for each 32 x 32, as DeepSeek-V4.1 has: (N / 32, K / 32) bytes."""

    name = "fp8_block32"
    rows = _GROUP


def _used_blocks(weight: Tensor) -> Tensor:
    """Return for each 128 x 128 of FP8 weights whether one of its values is not zero."""
    rows, columns = (ceil_div(size, SCALE_BLOCK) for size in weight.shape)
    spare = (0, columns * SCALE_BLOCK - weight.shape[1], 0, rows * SCALE_BLOCK - weight.shape[0])
    values = torch.nn.functional.pad((weight.view(torch.uint8) & 0x7F) != 0, spare)
    blocks = values.view(rows, SCALE_BLOCK, columns, SCALE_BLOCK)
    return blocks.any(dim=3).any(dim=1)
