# SPDX-License-Identifier: Apache-2.0
"""
Layouts of matrices in tensor memory, for loads and stores of a warp, and for matrix instructions.

Sources: PTX ISA, sections "Data Movement Shape" and "Data Path Layout Organization" of tcgen05.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WARP = 32
LANES = 128
LANES_OF_WARP = 32
"""Lanes that a warp can access: those of its number modulo 4."""

REGISTERS_OF_REPEAT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Registers of a thread that tcgen05.ld and tcgen05.st move with the suffix ``.x1``, by shape."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """
    The word of tensor memory that each register of a warp holds, relative to the address.

    Attributes:
        lanes, columns: int64 [registers, 32 threads]; with two words to a register
            [2, registers, 32], the lower half of the register first.
        is_second: Whether the column counts from the second address, of the same shape; only the
            shape ``16x32bx2`` has one.
    """

    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]
    is_second: NDArray[np.bool_]


@lru_cache(maxsize=256)
def pattern(shape: str, registers: int, *, is_packed: bool = False) -> Pattern:
    """
    Return the pattern of a shape; do not write to its arrays.

    Args:
        shape: A key of `REGISTERS_OF_REPEAT`.
        registers: Registers of a thread.
        is_packed: Whether the instruction has ``.pack::16b`` or ``.unpack::16b``: then a register
            holds the lower halves of two adjacent columns.
    """
    thread = np.arange(WARP)[None, :]
    register = np.arange(registers)[:, None]
    row, pair, quad = thread // 4, thread // 2 % 2, thread % 4
    places = {
        "32x32b": (thread, register),
        "16x64b": (row + 8 * (thread % 2), 2 * register + pair),
        "16x128b": (row + 8 * (register % 2), 4 * (register // 2) + quad),
        "16x256b": (row + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * quad + register % 2),
        "16x32bx2": (thread % 16, register),
    }
    lanes, columns = np.broadcast_arrays(*places[shape])
    is_second = np.broadcast_to((thread >= 16) & (shape == "16x32bx2"), lanes.shape)
    if is_packed:
        lanes, is_second = np.stack([lanes, lanes]), np.stack([is_second, is_second])
        columns = np.stack([2 * columns, 2 * columns + 1])
    return Pattern(lanes, columns, is_second)


@dataclass(frozen=True, slots=True)
class Datapath:
    """
    The lanes of a CTA that compute each part of the rows and columns of an accumulator.

    The layouts A and D of the PTX ISA are ``Datapath(128, 1)``, F is ``Datapath(64, 1)`` and B, M =
    128 over two CTAs, is ``Datapath(64, 2)``.

    Attributes:
        rows: Rows of the accumulator that the CTA holds.
        halves: Number of parts of the columns: the second part is 64 lanes after the first.
        first_lane: 0 or 16; where the rows of layout F begin in the lanes of each warp.
    """

    rows: int
    halves: int = 1
    first_lane: int = 0

    @property
    def lanes(self) -> NDArray[np.int64]:
        """
        Lanes of tensor memory, ascending [rows * halves]; rows of A in tensor memory have the same
        lanes.
        """
        if self.rows * self.halves == LANES:
            return np.arange(LANES)
        row = np.arange(self.rows)
        return row // 16 * LANES_OF_WARP + row % 16 + self.first_lane
