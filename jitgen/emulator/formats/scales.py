# SPDX-License-Identifier: Apache-2.0
"""
Scale factors of block-scaled matrix instructions, one byte each.

In global memory they are stored in atoms of 512 bytes: 128 rows, each with the scales of four
adjacent blocks. The atom's rows r, r + 32, r + 64 and r + 96 lie side by side in 16 bytes, so that
a copy of 32 such lines of 16 bytes puts the scales of row r into lane ``r % 32``, column ``r / 32``
of tensor memory.

Sources: PTX ISA, sections "Scale Factor A ID", "Scale Factor B ID" and "Valid combinations of scale
vectorsize with types and MMA-Kind" of tcgen05; cuBLAS, section "1D Block Scaling Factors Layout".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats import numbers

ATOM_SCALES = 4

LANES = 32
"""Lanes that hold the scales of 32 rows. All four quarters of tensor memory have a copy."""

QUARTERS = 4


def places(rows: int, *, halves: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    Return lanes and columns, relative to the address, of the words with the scales of each row.

    Args:
        rows: Rows of A, or columns of B.
        halves: Parts that the rows are cut into; the second lies 64 lanes on, in the same columns.

    Returns:
        Two arrays that broadcast to [copies, rows]; the copies are ``4 / halves`` quarters of the
        tensor memory that hold the same.
    """
    part, row = np.divmod(np.arange(rows), rows // halves)
    quarters = QUARTERS // halves
    copy = np.arange(quarters)[:, None]
    lanes = (copy + quarters * part) * LANES + row % LANES
    return lanes, np.broadcast_to(row // LANES, lanes.shape)


def values(
    words: NDArray[np.uint32], first_byte: int, count: int, name: str
) -> NDArray[np.float32]:
    """
    Return the scales of rows, [rows, count] float32.

    Args:
        words: The word of tensor memory of each row [rows].
        first_byte: Scale factor id: the byte of the word that holds the first one.
        count: Scales of a row that the instruction takes: 1, 2 or 4.
        name: ``"ue8m0"`` or ``"ue4m3"``.

    Raises:
        ValueError: `first_byte` is no multiple of `count`, or the bytes cross the end of the word.
    """
    if first_byte % count or first_byte + count > ATOM_SCALES:
        raise ValueError(f"scale factor id {first_byte} with {count} scale factors")
    codes = np.ascontiguousarray(words).view(np.uint8).reshape(-1, ATOM_SCALES)
    return numbers.decode(codes[:, first_byte : first_byte + count], name)


def product(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    scales_a: NDArray[np.float32],
    scales_b: NDArray[np.float32],
) -> NDArray[np.float64]:
    """
    Return the product of block-scaled matrices, [..., rows, columns] float64.

    Each element is multiplied by the scale of its block first, in float64: that is exact, as scales
    are powers of two or have four bits, and a scaled element is never beyond float64, though it may
    be beyond float32. PTX ISA, section "Block Scaling".

    Args:
        a: float32 [..., rows, K].
        b: float32 [..., columns, K].
        scales_a: float32 [..., rows, blocks]; a block is ``K / blocks`` adjacent elements.
        scales_b: float32 [..., columns, blocks].
    """
    return _scaled(a, scales_a) @ np.swapaxes(_scaled(b, scales_b), -1, -2)


def _scaled(x: NDArray[np.float32], of_blocks: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return elements [..., rows, K] times the scale of their block [..., rows, blocks]."""
    in_blocks = x.reshape(*of_blocks.shape, -1)
    return np.multiply(in_blocks, of_blocks[..., None], dtype=np.float64).reshape(x.shape)
