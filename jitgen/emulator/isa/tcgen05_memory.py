# SPDX-License-Identifier: Apache-2.0
"""
Allocation of tensor memory, and copies from shared memory into it: tcgen05.alloc, dealloc, cp.

An SM's tensor memory belongs to one CTA here, as its shared memory does; an allocation that cannot
be had would wait for ever. A pair of CTAs allocates as one: whichever comes first does it in both,
so that matrix instructions may use the peer's columns before its warp is there.

PTX ISA, sections "Tensor Memory Allocation and Management Instructions" and "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats import matrix_elements
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.isa.tcgen05_unit import group_of, issue, operand_offsets
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.history import WRITE, Access
from jitgen.emulator.machine.tensor_memory import (
    COLUMNS,
    LANES,
    MIN_COLUMNS,
    Cells,
    rectangle,
    split_address,
)
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_WORD = 4


def check_parts(instruction: Instruction, known: str) -> None:
    """Raise Unsupported for a modifier that is not among the words of `known`."""
    unknown = [part for part in instruction.parts[2:] if part not in known.split()]
    if unknown:
        raise Unsupported(f"modifier .{unknown[0]}")


def num_ctas(instruction: Instruction) -> int:
    """Return 1 for ``.cta_group::1`` and 2 for ``.cta_group::2``."""
    return 2 if instruction.has("cta_group::2") else 1


# --- allocation ----------------------------------------------------------------------------------


@emits("tcgen05.alloc", whole_warp=True)
def alloc(builder: Builder, instruction: Instruction) -> None:
    """``tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], columns``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned shared::cta b32")
    address, columns = instruction.operands
    arguments = builder.address(address), builder.value(columns, "u32")
    ctas = str(num_ctas(instruction))
    builder.do(builder.call(allocate, builder.mask(instruction), *arguments, ctas))


def allocate(f: Fragment, at: int, mask: Mask, address: Any, columns: Any, ctas: int) -> None:
    """Allocate columns and write the address of the first to shared memory."""
    selected = f.selected(mask)
    if not len(selected):
        return
    columns = _one(f, at, f.spread(columns)[selected])
    if columns & (columns - 1) or not MIN_COLUMNS <= columns <= COLUMNS:
        f.fault(at, f"{columns} columns, which is not a power of two from 32 to 512")
    if not f.cta.tensor.may_allocate:
        f.fault(at, "this CTA has relinquished its permit to allocate tensor memory")
    first = _take_grant(f, at, columns)
    if first is None:
        first = _allocate_group(f, at, columns, ctas)
    target = _one(f, at, f.spread(address)[selected])
    offsets = f.cta.shared.offsets(f, at, target, _WORD)
    data = np.array([[first]], np.uint32).view(np.uint8)
    f.cta.shared.generic_write(f, at, offsets, _WORD, data, selected[:1])


def _one(f: Fragment, at: int, values: NDArray[Any]) -> int:
    """Return the value that all threads have."""
    if (values != values[0]).any():
        f.fault(at, "the threads of the warp disagree about an operand")
    return int(values[0])


def _take_grant(f: Fragment, at: int, columns: int) -> int | None:
    """Return the first column of what the peer already allocated here, or None."""
    granted = f.cta.tensor.granted
    if not granted:
        return None
    first, number = granted.popleft()
    if number != columns:
        f.fault(at, f"{columns} columns, but the peer CTA allocates {number}")
    return first


def _allocate_group(f: Fragment, at: int, columns: int, ctas: int) -> int:
    """Allocate the same columns in every CTA of the group and return the first."""
    group = group_of(f, at, ctas)
    free = set(range(COLUMNS))
    for cta in group:
        free &= set(cta.tensor.find_free(columns).tolist())
    if not free:
        f.fault(at, f"{columns} columns are not free, and nobody can free any")
    first = min(free)
    for cta in group:
        cta.tensor.allocate(first, columns)
        if cta is not f.cta:
            cta.tensor.granted.append((first, columns))
    if ctas == 1:
        agent = int(f.agents[0])
        access = Access(WRITE, agent, f.cluster.clocks.now(agent), agent)
        f.cta.tensor.note(f, at, rectangle(np.arange(LANES), first, columns), access)
    return first


@emits("tcgen05.dealloc", whole_warp=True)
def dealloc(builder: Builder, instruction: Instruction) -> None:
    """``tcgen05.dealloc.cta_group::1.sync.aligned.b32 address, columns``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned b32")
    arguments = [builder.value(operand, "u32") for operand in instruction.operands]
    builder.do(builder.call(deallocate, builder.mask(instruction), *arguments))


def deallocate(f: Fragment, at: int, mask: Mask, address: Any, columns: Any) -> None:
    """Free columns of this CTA; in a pair each CTA frees its own."""
    selected = f.selected(mask)
    if len(selected):
        first = _one(f, at, f.spread(address)[selected])
        f.cta.tensor.free(f, at, first, _one(f, at, f.spread(columns)[selected]))


@emits("tcgen05.relinquish_alloc_permit", whole_warp=True)
def relinquish(builder: Builder, instruction: Instruction) -> None:
    """``tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned")
    builder.do(builder.call(relinquish_permit, builder.mask(instruction)))


def relinquish_permit(f: Fragment, at: int, mask: Mask) -> None:  # noqa: ARG001
    """Let this CTA not allocate any more."""
    if mask is None or mask.any():
        f.cta.tensor.may_allocate = False


# --- copies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyShape:
    """
    A shape of tcgen05.cp.

    Attributes:
        row_bytes: Bytes of a row in shared memory.
        rows: The row that each lane of tensor memory gets [128].
        bits: Of an element in shared memory; those of less than 8 are packed, 16 in 16 bytes with
            padding behind them, and get a byte each. PTX ISA, section "Optional Decompression":
            where in its byte an element of four bits lies is only drawn there, in bits 2 to 5.
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
"""By the modifiers. Of ``4x256b`` it is not documented which lanes it writes."""

_FORMATS = {(): 8, ("b8x16", "b4x16_p64"): 4, ("b8x16", "b6x16_p32"): 6}
"""Bits of an element in shared memory, by the modifiers behind the shape."""


@emits("tcgen05.cp")
def cp(builder: Builder, instruction: Instruction) -> None:
    """
    ``tcgen05.cp.cta_group::1.32x128b.warpx4 [address], descriptor``; with
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
    ctas = str(num_ctas(instruction))
    builder.do(builder.call(copy, builder.mask(instruction), *arguments, shape, ctas))


def copy(
    f: Fragment, at: int, mask: Mask, address: Any, descriptor: Any, shape: CopyShape, ctas: int
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
        cells = rectangle(np.arange(LANES), column, shape.row_bytes // _WORD)
        issued = issue(f, at, thread)
        for cta in group_of(f, at, ctas):
            issued.note_shared_read(cta, offsets)
            issued.note_write(cta, cells)
        work = Copy(f, at, ctas, offsets, cells, shape)
        f.cluster.queues.issue("matrix", work.run)
        f.machine.counts["tensor_memory_copies"] += 1


@dataclass(frozen=True, slots=True)
class Copy:
    """
    A copy whose accesses are noted.

    Attributes:
        f, at: Who issued it.
        ctas: CTAs that copy.
        offsets: Bytes in shared memory, without padding [rows, bytes].
        cells: Words of tensor memory.
        shape: What is copied.
    """

    f: Fragment
    at: int
    ctas: int
    offsets: NDArray[np.int64]
    cells: Cells
    shape: CopyShape

    def run(self) -> None:
        """Copy."""
        for cta in group_of(self.f, self.at, self.ctas):
            raw = cta.shared.take(self.f, self.at, self.offsets)
            each = matrix_elements.in_bytes(np.ascontiguousarray(raw), self.shape.bits)
            cta.tensor.put(self.cells, each.view(np.uint32)[list(self.shape.rows)])
