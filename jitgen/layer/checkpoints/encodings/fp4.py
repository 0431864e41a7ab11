# SPDX-License-Identifier: Apache-2.0
"""Weights in e2m1, two codes a byte: MXFP4 and NVFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import e2m1
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
_BLOCKS = "blocks"
_NV_GROUP = 16
_PACKED = (torch.uint8, torch.int8, torch.float4_e2m1fn_x2)


class Mxfp4(Encoding):
    """
    Codes (N, K / 2), or blocks (N, K / 32, 16), and a power of two for each 32: (N, K / 32).
    """

    name = "mxfp4"
    types = _PACKED
    kernel = "mxfp4"
    unit = _GROUP

    def fits(self, matrix: Matrix) -> bool:
        """
        Say whether the values lie in blocks, or as codes (N, K / 2) with a byte of scale for each
        32 values.
        """
        if self.roles[0] == _BLOCKS:
            return True
        codes, scale = (matrix.shape(role) for role in self.roles)
        is_wide = len(codes) == 2 and scale == (codes[0], codes[1] * 2 // _GROUP)
        is_byte = matrix.dtype(self.roles[0]) in self.types
        return is_byte and is_wide and matrix.dtype(self.roles[1]) in scales.BYTES

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K."""
        role = self.roles[0]
        if role != _BLOCKS:
            n, half = sizes(matrix, role, self.types)
            return n, 2 * half
        name, shape = matrix.name(role), matrix.shape(role)
        if len(shape) != 3 or shape[-1] != _GROUP // 2 or 0 in shape:
            whole = matrix.source.shape(name)
            raise InputError(
                "source", f"{name} must be (E, N, K / 32, 16) uint8 (got shape {whole})"
            )
        if matrix.dtype(role) is not torch.uint8:
            raise InputError("source", f"{name} must be uint8 (got {matrix.dtype(role)})")
        return shape[0], shape[1] * _GROUP

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require a scale for each 32 values along K, N a multiple of 8 and K of 32."""
        n, k = size
        name = matrix.name(self.roles[0])
        if n % 8 or k % _GROUP:
            raise InputError(
                "source", f"{name} must have N a multiple of 8 and K of 32 (got {n} and {k})"
            )
        require_shape(matrix, self.roles[1], (n, k // _GROUP))

    def prepacked(self, _matrix: Matrix) -> PrepackedFormat:
        """Return MXFP4."""
        return PrepackedFormat.MXFP4

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """Return codes (n, k / 2), and bytes of scales (n, k / 32)."""
        return Piece(*self._read(matrix, rows, columns))

    def _read(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        groups = range(columns.start // _GROUP, -(-columns.stop // _GROUP))
        if self.roles[0] == _BLOCKS:
            codes = matrix.read(_BLOCKS, rows, groups).flatten(-2)
        else:
            half = range(columns.start // 2, columns.stop // 2)
            codes = matrix.read(self.roles[0], rows, half).view(torch.uint8)
        scale = matrix.read(self.roles[1], rows, groups)
        origin = matrix.origin(rows.start, groups.start)
        scales.require_bytes(scale, matrix.name(self.roles[1]), origin)
        return codes, scale.view(torch.uint8)

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return a part's values times their scales: float32, which is exact."""
        around = outer(columns, _GROUP, self.size(matrix)[1])
        codes, scale = self._read(matrix, rows, around)
        powers = scale.view(torch.float8_e8m0fnu).float()
        values = e2m1.unpack(codes) * powers.repeat_interleave(_GROUP, 1)
        return values[:, inner(columns, around)]


class Nvfp4(Encoding):
    """
    Codes (N, K / 2), e4m3 scales of 16 values (N, K / 16), and one number for the matrix: a factor
    (``weight_scale_2``), or a divisor (``weight_global_scale``).
    """

    name = "nvfp4"
    types = _PACKED
    kernel = "nvfp4"
    unit = _NV_GROUP

    def fits(self, matrix: Matrix) -> bool:
        """Say whether the codes have a type for packed e2m1."""
        return matrix.dtype(self.roles[0]) in self.types

    def size(self, matrix: Matrix) -> tuple[int, int]:
        """Return N and K."""
        n, half = sizes(matrix, self.roles[0], self.types)
        return n, 2 * half

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require a scale for each 16 values along K, and one global scale."""
        n, k = size
        if k % _NV_GROUP:
            name = matrix.name(self.roles[0])
            raise InputError("source", f"{name} must have K a multiple of 16 (got {k})")
        require_shape(matrix, self.roles[1], (n, k // _NV_GROUP))
        require_shape(matrix, self.roles[2], (), (1,), (1, 1))

    def prepacked(self, matrix: Matrix) -> PrepackedFormat:
        """
        Return NVFP4.

        Raises:
            InputError: Kernels do not support N.
        """
        n, _ = self.size(matrix)
        if n % 8:
            name = matrix.name(self.roles[0])
            raise InputError("source", f"{name} must have N a multiple of 8 (got {n})")
        return PrepackedFormat.NVFP4

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """
        Return codes (n, k / 2), e4m3 scales (n, k / 16), and the float32 factor of all values.
        """
        codes, stored = self._read(matrix, rows, columns)
        return Piece(codes, stored, self._factor(matrix).float())

    def _factor(self, matrix: Matrix) -> Tensor:
        """Return the factor of all values of a matrix, float64 ()."""
        whole = scales.positive(matrix, self.roles[2]).double()
        return 1 / whole if self.roles[2] == "weight_global_scale" else whole

    def _read(self, matrix: Matrix, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return codes, and scales of whole groups."""
        groups = range(columns.start // _NV_GROUP, columns.stop // _NV_GROUP)
        half = range(columns.start // 2, columns.stop // 2)
        codes = matrix.read(self.roles[0], rows, half).view(torch.uint8)
        stored = matrix.read(self.roles[1], rows, groups)
        origin, types = matrix.origin(rows.start, groups.start), (torch.float8_e4m3fn,)
        scales.non_negative(matrix, self.roles[1], stored, types, origin=origin)
        return codes, stored

    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """
        Return a part's values times their scales: float64, exact except for the rounding of one
        division.
        """
        around = outer(columns, _NV_GROUP, self.size(matrix)[1])
        codes, stored = self._read(matrix, rows, around)
        repeated = (stored.double() * self._factor(matrix)).repeat_interleave(_NV_GROUP, 1)
        return (e2m1.unpack(codes, torch.float64) * repeated)[:, inner(columns, around)]
