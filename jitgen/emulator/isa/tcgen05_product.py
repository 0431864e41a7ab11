# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of one tcgen05.mma: operands from memory, scale factors, product, accumulator.

Products and sums are computed in float32, so that results differ from hardware in the last bits
where they are not exact; int8 is exact, and what has scale factors is summed in float64.

PTX ISA, sections "TensorCore 5th Generation Matrix Multiply and accumulate Operations" and "Packing
format for matrix D in Tensor Memory".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.formats import instruction_descriptor, matrix_elements, numbers, scales
from jitgen.emulator.formats.instruction_descriptor import KINDS
from jitgen.emulator.isa import padding
from jitgen.emulator.isa.tcgen05_group import group_of
from jitgen.emulator.isa.tcgen05_operands import (
    Form,
    Job,
    Operands,
    Share,
    check_scale_addresses,
    layout_of,
    share_of,
    usage_of,
)
from jitgen.emulator.isa.tcgen05_unit import issue
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.tensor_memory import Cells

Values = NDArray[np.float32]

_S32 = np.iinfo(np.int32)


def plan(f: Fragment, at: int, thread: int, form: Form, operands: Operands) -> Callable[[], None]:
    """
    Note all accesses of an instruction that a thread, 0..n-1, issues; return a function that
    executes it.

    Raises:
        MachineFault: A descriptor or an address is not valid.
    """
    try:
        shape = instruction_descriptor.decode(
            operands.descriptor, form.kind, form.ctas, form.scales
        )
    except ValueError as error:
        f.fault(at, str(error))
    if form.is_a_tensor and shape.is_a_mn_major:
        f.fault(at, "A in tensor memory is K-major, and the instruction descriptor transposes it")
    group = group_of(f, at, form.ctas)
    issued = issue(f, at, thread)
    said = issued, form, operands, shape
    job = Job(*said, layout_of(*said), usage_of(*said))
    if form.scales:
        check_scale_addresses(job)
    shares = [share_of(job, cta, position) for position, cta in enumerate(group)]
    return Product(job, shares).run


@dataclass(frozen=True, slots=True)
class Product:
    """
    An instruction whose accesses are noted.

    Attributes:
        job: The decoded instruction.
        shares: The part of each CTA.
    """

    job: Job
    shares: list[Share]

    def run(self) -> None:
        """Multiply, in all CTAs of the group."""
        each = [self._shared(share.cta, share.b_offsets, "b") for share in self.shares]
        b = each[0] if len(each) == 1 else np.concatenate(each)
        if self.job.shape.is_b_negated:
            b = -b
        for share in self.shares:
            self._run_share(share, b)

    def _run_share(self, share: Share, b: Values) -> None:
        """Multiply the rows of one CTA with all columns."""
        job, lanes = self.job, self._lanes_of_a(share)
        if share.scale_a is None or share.scale_b is None:
            products: list[Numbers] = [
                numbers.product(*halves) for halves in self._halves(lanes, b)
            ]
        else:
            of_rows = self._scales(share.cta, share.scale_a, job.shape.scale_a_id)
            of_columns = self._scales(share.cta, share.scale_b, job.shape.scale_b_id)
            halves = self._halves(lanes, b, of_columns)
            products = [scales.product(rows, columns, of_rows, of) for rows, columns, of in halves]
        self._accumulate(share, products[0] if len(products) == 1 else np.concatenate(products))

    def _halves(self, *operands: Values) -> list[tuple[Values, ...]]:
        """Return the operands of each half of the accumulator, from those of all of it."""
        if self.job.datapath.halves == 1:
            return [operands]
        return list(zip(*(np.split(x, 2) for x in operands), strict=True))

    def _lanes_of_a(self, share: Share) -> Values:
        """Return the row of A that each lane of the accumulator multiplies, [lanes, K]."""
        job = self.job
        if share.a_cells is not None:
            f, at = job.issued.f, job.issued.at
            words = share.cta.tensor.take(f, at, share.a_cells)
            if job.usage is not None:
                job.usage.note_read(f, at, share.cta.rank, words)
            is_padded = KINDS[job.form.kind].is_padded
            if is_padded:
                padding.check(f, at, words.view(np.uint8), job.shape.a_type)
            a = matrix_elements.in_tensor_memory(words, job.shape.a_type, is_padded=is_padded)
        else:
            assert share.a_offsets is not None
            a = self._shared(share.cta, share.a_offsets, "a")
            a = np.concatenate([a, a]) if job.datapath.halves == 2 else a
        return -a if job.shape.is_a_negated else a

    def _shared(self, cta: Cta, offsets: NDArray[np.int64], name: str) -> Values:
        """Return the values of operand "a" or "b" in a CTA's shared memory, [rows, K]."""
        job = self.job
        raw = cta.shared.take(job.issued.f, job.issued.at, offsets)
        if name == "a" and job.usage is not None:
            job.usage.note_read(job.issued.f, job.issued.at, cta.rank, raw)
        is_padded = KINDS[job.form.kind].is_padded
        type_ = job.shape.a_type if name == "a" else job.shape.b_type
        return matrix_elements.in_shared_memory(raw, type_, is_padded=is_padded)

    def _scales(self, cta: Cta, cells: Cells, first_byte: int) -> Values:
        """Return the scale factors of each row, [rows, scales]."""
        job = self.job
        f, at = job.issued.f, job.issued.at
        copies = cta.tensor.take(f, at, cells)
        if (copies != copies[0]).any():
            f.warn(at, "scales", "the quarters of tensor memory hold different scale factors")
        try:
            return scales.values(copies[0], first_byte, job.form.scales, job.shape.scale_type)
        except ValueError as error:
            f.fault(at, str(error))

    def _accumulate(self, share: Share, product: Numbers) -> None:
        """Add the product, [lanes, columns], to the accumulator, or put it there."""
        job, tensor = self.job, share.cta.tensor
        if share.is_enabled is not None:
            product = product[share.is_enabled]
        if not product.size:
            return
        exact: Numbers = product.astype(np.int64) if job.shape.d_type == "s32" else product
        if job.operands.is_added:
            words = tensor.take(job.issued.f, job.issued.at, share.d_cells)
            old = _READERS[job.shape.d_type](words)
            exact = exact + (np.ldexp(old, -job.form.input_shift) if job.form.input_shift else old)
        if job.shape.is_saturating:
            exact = np.clip(exact, _S32.min, _S32.max)
        tensor.put(share.d_cells, _WRITERS[job.shape.d_type](exact))


_READERS: dict[str, Callable[[NDArray[np.uint32]], Numbers]] = {
    "f32": lambda words: words.view(np.float32),
    "f16": lambda words: words.astype(np.uint16).view(np.float16).astype(np.float32),
    "s32": lambda words: words.view(np.int32).astype(np.int64),
}
"""Accumulators from words, by type; an f16 is in the lower half of its word."""

_WRITERS: dict[str, Callable[[Numbers], NDArray[np.uint32]]] = {
    "f32": lambda values: values.astype(np.float32, copy=False).view(np.uint32),
    "f16": lambda values: values.astype(np.float16).view(np.uint16).astype(np.uint32),
    "s32": lambda values: values.astype(np.uint64).astype(np.uint32),
}
"""Words from accumulators."""
