# SPDX-License-Identifier: Apache-2.0
"""
Fragments of matrices: which lane's register holds which element.

The layouts of mma.sync and wgmma are the same but for the number of columns: a warp holds 16 rows,
lane ``4 q + c`` holds parts of rows q and q + 8, and each register has 4 bytes of a row. Here the
registers of whole warps, [registers, 32 * warps], become matrices with the rows of the warps one
after the other, or the reverse.

Sources: PTX ISA, sections "Matrix Fragments for mma.m16n8k16" (and its siblings) and "Register
Fragments" of wgmma.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements, Scalar

ROWS = 16
"""Rows of A and of the accumulators that a warp holds."""

COLUMNS = 8
"""Columns of B that a warp holds, and the period of the accumulators' columns."""

_QUADS, _LANES_OF_QUAD = 8, 4


def rows_of_a(registers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """
    Return the rows of A.

    Register i of lane ``4 q + c`` has bytes ``16 (i / 2) + 4 c`` and on of row ``q + 8 (i % 2)``.

    Args:
        registers: uint32 [2 or 4, 32 * warps].

    Returns:
        uint8 [16 * warps, 8 * registers].
    """
    halves = registers.reshape(-1, 2, _warps(registers), _QUADS, _LANES_OF_QUAD)
    rows = halves.transpose(2, 1, 3, 0, 4).reshape(ROWS * _warps(registers), -1)
    return np.ascontiguousarray(rows).view(np.uint8)


def columns_of_b(registers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """
    Return the columns of B, K along the last axis.

    Register i of lane ``4 q + c`` has bytes ``16 i + 4 c`` and on of column q.

    Args:
        registers: uint32 [1 or 2, 32 * warps].

    Returns:
        uint8 [8 * warps, 16 * registers].
    """
    warps = _warps(registers)
    quads = registers.reshape(-1, warps, _QUADS, _LANES_OF_QUAD)
    columns = quads.transpose(1, 2, 0, 3).reshape(COLUMNS * warps, -1)
    return np.ascontiguousarray(columns).view(np.uint8)


def matrix_of(accumulators: NDArray[Scalar]) -> NDArray[Scalar]:
    """
    Return the matrix in accumulator registers.

    Register ``4 j + 2 i + v`` of lane ``4 q + c`` is row ``q + 8 i``, column ``8 j + 2 c + v``.

    Args:
        accumulators: Any type of one element to a register, [columns / 2, 32 * warps]. For those
            of two see `unpack`.

    Returns:
        [16 * warps, columns].
    """
    warps = _warps(accumulators)
    parts = accumulators.reshape(-1, 2, 2, warps, _QUADS, _LANES_OF_QUAD)
    return parts.transpose(3, 1, 4, 0, 5, 2).reshape(ROWS * warps, -1)


def accumulators_of(matrix: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return the registers [columns / 2, 32 * warps] of a matrix: the reverse of `matrix_of`."""
    rows, columns = matrix.shape
    warps = rows // ROWS
    parts = matrix.reshape(warps, 2, _QUADS, columns // COLUMNS, _LANES_OF_QUAD, 2)
    return parts.transpose(3, 1, 5, 0, 2, 4).reshape(columns // 2, 32 * warps)


def unpack(registers: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """
    Return the 16-bit accumulators in registers of two, [registers, n] to [2 * registers, n].

    Register ``2 j + i`` has the two columns of `matrix_of`'s registers ``4 j + 2 i`` and on, the
    first in its lower half.
    """
    count, n = registers.shape
    pairs = np.ascontiguousarray(registers).view(np.uint16).reshape(count, n, 2)
    return pairs.transpose(0, 2, 1).reshape(2 * count, n)


def pack(halves: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return registers of two 16-bit accumulators: the reverse of `unpack`."""
    count, n = halves.shape
    pairs = halves.reshape(count // 2, 2, n).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint32)[..., 0]


def _warps(registers: Elements) -> int:
    count: int = registers.shape[1] // (_QUADS * _LANES_OF_QUAD)
    return count
