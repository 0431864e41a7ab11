# SPDX-License-Identifier: Apache-2.0
"""
Accumulators of wgmma: the registers of a warpgroup as a matrix of 64 rows.

PTX ISA, section "Register Fragments" of wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from jitgen.emulator.arrays import DType, Elements
from jitgen.emulator.formats import fragments

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta

POISON = np.uint32(0x7FC0DEAD)
"""The value of accumulator registers in flight: NaN as a float32 and as two float16."""


@dataclass(frozen=True, slots=True, eq=False)
class Accumulators:
    """
    Registers that hold a matrix of 64 rows, of a type of wgmma. Made once for the same registers.

    Attributes:
        type: ``"f32"``, ``"f16"`` (two to a register) or ``"s32"``.
        columns: Columns of the matrix.
        registers: Rows of the register file.
        index: The same rows as an index: a slice if they are adjacent.
    """

    type: str
    columns: int
    registers: frozenset[int]
    index: slice | list[int]

    @property
    def dtype(self) -> DType:
        """The type of the matrix, in which f16 is float32 with the values of float16."""
        return np.int32 if self.type == "s32" else np.float32

    def load(self, cta: Cta, lanes: slice) -> Elements:
        """Return the matrix [16 * warps, columns] that registers of some warps hold."""
        bits = cta.r[self.index, lanes]
        if self.type == "f16":
            return fragments.matrix_of(fragments.unpack(bits).view(np.float16)).astype(np.float32)
        return fragments.matrix_of(bits.view(self.dtype))

    def store(self, cta: Cta, lanes: slice, matrix: Elements) -> None:
        """Put a matrix [16 * warps, columns] into registers of some warps."""
        values = fragments.accumulators_of(matrix)
        if self.type == "f16":
            cta.r[self.index, lanes] = fragments.pack(values.astype(np.float16).view(np.uint16))
        else:
            cta.r[self.index, lanes] = values.view(np.uint32)


@lru_cache(maxsize=1 << 10)
def accumulators(kind: str, registers: tuple[int, ...]) -> Accumulators:
    """
    Return the `Accumulators` of type `kind` in these rows of the register file; equal arguments
    give the same object.
    """
    first, count = registers[0], len(registers)
    is_adjacent = registers == tuple(range(first, first + count))
    index = slice(first, first + count) if is_adjacent else list(registers)
    columns = count * (4 if kind == "f16" else 2)
    return Accumulators(kind, columns, frozenset(registers), index)
