# SPDX-License-Identifier: Apache-2.0
"""
The operands of a tcgen05.mma: found, and their accesses noted, when it is issued.

A CTA of a pair has half of the rows of A and D and half of the columns of B, at the same addresses
as its peer, and scale factors of its rows and of all columns.

PTX ISA, sections "Data Path Layout Organization", "Block Scaling" and "Major-ness supported by
Strides" of tcgen05.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats import scales
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.formats.instruction_descriptor import KINDS, ROW_BYTES, InstructionDescriptor
from jitgen.emulator.formats.tensor_layouts import Datapath
from jitgen.emulator.isa.tcgen05_unit import Issue, operand_offsets
from jitgen.emulator.machine.collectors import DISCARD, Matrix, Usage, discard, use
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.tensor_memory import (
    LANES,
    Cells,
    granules_of,
    rectangle,
    split_address,
)

_COLUMNS_OF_A = ROW_BYTES // 4
_WORD_BITS = 32
_LANE_SHIFT, _LANE_MASK, _ID_SHIFT = 16, 0x3FFF, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """
    The parts of the opcode.

    Attributes:
        kind: A key of `KINDS`.
        ctas: CTAs that multiply together.
        scales: Scale factors of a row of A or a column of B; 0 if they have none.
        is_a_tensor: Whether A is in tensor memory.
        input_shift: The old accumulator counts ``2 ** -input_shift`` times.
        collector: Its use of the collector buffer: a word of `machine.collectors`.
    """

    kind: str
    ctas: int
    scales: int
    is_a_tensor: bool
    input_shift: int
    collector: str


@dataclass(frozen=True, slots=True)
class Operands:
    """
    The operands of one thread.

    Attributes:
        d: Address of the accumulator in tensor memory.
        a: Address of A there, or its matrix descriptor.
        b: Matrix descriptor of B.
        descriptor: Instruction descriptor.
        is_added: Whether the product is added to the accumulator; otherwise it replaces the
            accumulator.
        scale_a, scale_b: Addresses of scale factors in tensor memory.
        disabled: A bit for each lane, of the even CTA first, in which D is not changed; or nothing.
    """

    d: int
    a: int
    b: int
    descriptor: int
    is_added: int
    scale_a: int
    scale_b: int
    disabled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """
    What one CTA accesses for an instruction.

    Attributes:
        cta: The CTA.
        a_offsets: Bytes of its rows of A in shared memory, or None.
        a_cells: Its rows of A in tensor memory, or None.
        b_offsets: Bytes of its columns of B in shared memory.
        d_cells: Its accumulator.
        is_enabled: Whether each lane of the accumulator may change; None: all may.
        scale_a, scale_b: Its scale factors, of its rows and of all columns; None if there are none.
    """

    cta: Cta
    a_offsets: NDArray[np.int64] | None
    a_cells: Cells | None
    b_offsets: NDArray[np.int64]
    d_cells: Cells
    is_enabled: NDArray[np.bool_] | None
    scale_a: Cells | None
    scale_b: Cells | None


@dataclass(frozen=True, slots=True)
class Job:
    """
    One instruction of one thread.

    Attributes:
        issued: The agent and the epoch of its issue.
        form, operands: The form and the operands of the instruction.
        shape: Its instruction descriptor.
        datapath: Layout of the accumulator.
        usage: The collector buffer that it fills or uses; None: none.
    """

    issued: Issue
    form: Form
    operands: Operands
    shape: InstructionDescriptor
    datapath: Datapath
    usage: Usage | None


def layout_of(
    issued: Issue, form: Form, operands: Operands, shape: InstructionDescriptor
) -> Datapath:
    """
    Return the layout of the accumulator.

    Raises:
        MachineFault: Its address, or that of A, is one that it cannot have.
    """
    rows = shape.m // form.ctas
    lane, _ = split_address(operands.d)
    is_half = rows < LANES and form.ctas == 1
    if lane not in ({0, 16} if is_half else {0}):
        issued.f.fault(issued.at, f"an accumulator of {shape.m} rows begins in lane {lane}")
    if form.is_a_tensor and split_address(operands.a)[0] != lane:
        issued.f.fault(issued.at, "A in tensor memory does not begin in the accumulator's lane")
    return Datapath(rows, halves=2 if rows < LANES and form.ctas == 2 else 1, first_lane=lane)


def usage_of(
    issued: Issue, form: Form, operands: Operands, shape: InstructionDescriptor
) -> Usage | None:
    """Return which collector buffer an instruction fills or uses, if it does."""
    f, at, unit = issued.f, issued.at, issued.unit.agent
    if form.collector == DISCARD:
        discard(f, at, unit)
        return None
    matrix = Matrix(
        kind=form.kind,
        memory="tensor" if form.is_a_tensor else "shared",
        place=operands.a,
        rows=shape.m // form.ctas,
        type=shape.a_type,
        majorness="MN" if shape.is_a_mn_major else "K",
    )
    return use(f, at, unit, form.collector, matrix)


def share_of(job: Job, cta: Cta, position: int) -> Share:
    """
    Determine and note what one CTA accesses.

    Args:
        job: The instruction.
        cta: The CTA.
        position: Its place in the pair, 0 or 1.

    Raises:
        MachineFault: An operand is not where it may be.
    """
    datapath, operands, shape = job.datapath, job.operands, job.shape
    is_enabled = _enabled_lanes(operands.disabled, position, datapath)
    share = Share(
        cta=cta,
        a_offsets=None if job.form.is_a_tensor else _offsets_of_a(job),
        a_cells=_rectangle(datapath, *_column(operands.a, _COLUMNS_OF_A))
        if job.form.is_a_tensor
        else None,
        b_offsets=_offsets_of_b(job),
        d_cells=_accumulator(datapath, operands.d, shape.n // datapath.halves, is_enabled),
        is_enabled=is_enabled,
        scale_a=_scale_cells(operands.scale_a, datapath.rows, 1) if job.form.scales else None,
        scale_b=_scale_cells(operands.scale_b, shape.n, datapath.halves)
        if job.form.scales
        else None,
    )
    _note(job, share)
    return share


def _note(job: Job, share: Share) -> None:
    issued, shape = job.issued, job.shape
    for offsets in (share.a_offsets, share.b_offsets):
        if offsets is not None:
            issued.note_shared_read(share.cta, offsets)
    for cells in (share.a_cells, share.scale_a, share.scale_b):
        if cells is not None:
            issued.note_read(share.cta, cells)
    if not share.d_cells.is_empty:
        product = issued.product(job.operands.d, (shape.m, shape.n, KINDS[job.form.kind].k))
        issued.note_write(share.cta, share.d_cells, product)


def check_scale_addresses(job: Job) -> None:
    """
    Report scale factors whose address contradicts the instruction descriptor.

    The descriptor says which byte of a word comes first. Compilers keep it in bits 30 and 31 of the
    address as well, and copy it from there: the PTX ISA does not say what these bits do, so that
    other ones are a warning. The bits between name a lane, which must be 0.

    Raises:
        MachineFault: An address names a lane.
    """
    f, at, shape = job.issued.f, job.issued.at, job.shape
    for name, address, first in (
        ("A", job.operands.scale_a, shape.scale_a_id),
        ("B", job.operands.scale_b, shape.scale_b_id),
    ):
        told = address >> _ID_SHIFT
        if address >> _LANE_SHIFT & _LANE_MASK:
            f.fault(at, f"scale factors of {name} at {address:#x} begin in a lane that is not 0")
        if told and told != first:
            f.warn(
                at,
                "scale ids",
                f"the address of the scale factors of {name}, {address:#x}, says byte {told}, "
                f"the instruction descriptor byte {first}",
            )


def _column(address: int, width: int) -> tuple[int, int]:
    return split_address(address)[1], width


def _offsets_of_a(job: Job) -> NDArray[np.int64]:
    size = KINDS[job.form.kind].element_bytes
    operand = Operand(job.datapath.rows, ROW_BYTES, size, job.shape.is_a_mn_major)
    return operand_offsets(job.issued.f, job.issued.at, job.operands.a, operand)


def _offsets_of_b(job: Job) -> NDArray[np.int64]:
    size = KINDS[job.form.kind].element_bytes
    columns = job.shape.n // job.form.ctas
    operand = Operand(columns, ROW_BYTES, size, job.shape.is_b_mn_major)
    return operand_offsets(job.issued.f, job.issued.at, job.operands.b, operand)


def _enabled_lanes(
    disabled: tuple[int, ...], position: int, datapath: Datapath
) -> NDArray[np.bool_] | None:
    """Return which lanes of the datapath may change, or None for all."""
    words = disabled[position * LANES // _WORD_BITS :][: LANES // _WORD_BITS]
    if not any(words):
        return None
    bits = np.array(words, np.uint32)[:, None] >> np.arange(_WORD_BITS, dtype=np.uint32) & 1
    enabled: NDArray[np.bool_] = bits.reshape(-1)[datapath.lanes] == 0
    return enabled


def _accumulator(
    datapath: Datapath, address: int, width: int, is_enabled: NDArray[np.bool_] | None
) -> Cells:
    _, column = split_address(address)
    if is_enabled is None:
        return _rectangle(datapath, column, width)
    return rectangle(datapath.lanes[is_enabled], column, width)


@lru_cache(maxsize=1 << 10)
def _rectangle(datapath: Datapath, column: int, width: int) -> Cells:
    return rectangle(datapath.lanes, column, width)


@lru_cache(maxsize=1 << 10)
def _scale_cells(address: int, rows: int, halves: int) -> Cells:
    """Return the words with scale factors, [copies, rows]."""
    _, column = split_address(address)
    lanes, columns = scales.places(rows, halves=halves)
    return Cells((lanes, columns + column), granules_of(lanes, columns + column))
