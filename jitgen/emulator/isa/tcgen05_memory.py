# SPDX-License-Identifier: Apache-2.0
"""
Copies from shared memory into tensor memory: tcgen05.cp.

PTX ISA, section "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.formats import matrix_elements
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.isa.tcgen05_group import group_of, num_ctas
from jitgen.emulator.isa.tcgen05_unit import issue, operand_offsets
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.tensor_memory import (
    LANES,
    Cells,
    rectangle,
    split_address,
)
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_WORD = 4


@dataclass(frozen=True, slots=True)
class CopyShape:
    """
    A shape of tcgen05.cp.

    Attributes:
        row_bytes: Bytes of a row in shared memory.
        rows: The row that each lane of tensor memory gets [128].
        bits: Bits of an element in shared memory; elements of less than 8 are packed, 16 in 16
            bytes with padding behind them, and get a byte each. PTX ISA, section "Optional
            Decompression": where in its byte an element of four bits lies is only drawn there, in
            bits 2 to 5.
    """

    row_bytes: int
    rows: tuple[int, ...]
    bits: int = 8


_HALVES = {"02_13": (0, 1, 0, 1), "01_23": (0, 0, 1, 1)}
"""Which 32 of 64 rows each quarter of the lanes gets."""


def _quarters(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(32 * number + row for number in numbers for row in range(32))


_SHAPES: dict[tuple[str, ...], CopyShape] = {
    ("128x256b",): CopyShape(32, tuple(range(LANES))),
    ("128x128b",): CopyShape(16, tuple(range(LANES))),
    ("32x128b", "warpx4"): CopyShape(16, _quarters((0, 0, 0, 0))),
    **{
        ("64x128b", f"warpx2::{name}"): CopyShape(16, _quarters(numbers))
        for name, numbers in _HALVES.items()
    },
}
"""
Shapes of copies, by the modifiers of the instruction. No document says which lanes ``4x256b``
writes, so it is missing.
"""

_FORMATS = {(): 8, ("b8x16", "b4x16_p64"): 4, ("b8x16", "b6x16_p32"): 6}
"""Bits of an element in shared memory, by the modifiers behind the shape."""


@emits("tcgen05.cp")
def cp(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``tcgen05.cp.cta_group::1.32x128b.warpx4 [address], descriptor``; with
    ``.b8x16.b4x16_p64`` behind the shape elements of four bits get a byte each.
    """
    modifiers = tuple(part for part in instruction.parts[2:] if "cta_group" not in part)
    named = tuple(part for part in modifiers if not part.startswith("b"))
    bits = _FORMATS.get(modifiers[len(named) :], 0)
    if named not in _SHAPES or not bits:
        raise Unsupported(f"copy .{'.'.join(modifiers)}")
    address, descriptor = instruction.operands
    arguments = builder.address(address), builder.value(descriptor, "b64")
    shape = builder.constant(replace(_SHAPES[named], bits=bits), "copy_shape")
    ctas = str(num_ctas(builder, instruction))
    builder.do(builder.call(copy, builder.mask(instruction), *arguments, shape, ctas))


def copy(
    f: Fragment,
    at: int,
    mask: Mask,
    address: PerThread,
    descriptor: PerThread,
    shape: CopyShape,
    ctas: int,
) -> None:
    """Issue the copy for each thread under the mask; a CTA copies from its own shared memory."""
    for thread in f.selected(mask).tolist():
        target, bits = int(f.spread(address)[thread]), int(f.spread(descriptor)[thread])
        lane, column = split_address(target)
        if lane:
            f.fault(at, f"a copy of all lanes begins in lane {lane}")
        operand = Operand(max(shape.rows) + 1, shape.row_bytes)
        offsets = operand_offsets(f, at, bits, operand)
        offsets = matrix_elements.without_padding(offsets, shape.bits)
        cells = _columns(column, shape.row_bytes // _WORD)
        issued = issue(f, at, thread)
        for cta in group_of(f, at, ctas):
            issued.note_shared_read(cta, offsets)
            issued.note_write(cta, cells)
        work = Copy(f, at, ctas, offsets, cells, shape)
        f.cluster.queues.issue("matrix", work.run)
        f.machine.counts["tensor_memory_copies"] += 1


@lru_cache(maxsize=1 << 10)
def _columns(first: int, number: int) -> Cells:
    """Return the words of adjacent columns, in all lanes."""
    return rectangle(np.arange(LANES), first, number)


@dataclass(frozen=True, slots=True)
class Copy:
    """
    A copy whose accesses are noted.

    Attributes:
        f, at: The fragment that issued it, and the index of the instruction.
        ctas: Number of CTAs that copy, 1 or 2.
        offsets: Bytes in shared memory, without padding [rows, bytes].
        cells: Words of tensor memory.
        shape: The shape of the copied part.
    """

    f: Fragment
    at: int
    ctas: int
    offsets: NDArray[np.int64]
    cells: Cells
    shape: CopyShape

    def run(self) -> None:
        """Copy the bytes to tensor memory, in each CTA."""
        for cta in group_of(self.f, self.at, self.ctas):
            raw = cta.shared.take(self.f, self.at, self.offsets)
            each = matrix_elements.in_bytes(np.ascontiguousarray(raw), self.shape.bits)
            cta.tensor.put(self.cells, each.view(np.uint32)[list(self.shape.rows)])
