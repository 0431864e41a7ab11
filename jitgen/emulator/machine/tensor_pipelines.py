# SPDX-License-Identifier: Apache-2.0
"""
Which products of one thread run in the order of their issue.

Two products do if they have the same accumulator and the same shape, and a copy into tensor memory
runs before a later product. Other pairs of a thread, as two products of different shapes whose
accumulators overlap, are in no order before the first one was committed and waited for.

A copy that overwrites what products of its thread may still be reading is not such a pair either,
but it is not reported: kernels of NVIDIA's CUTLASS copy the scale factors of each step of K over
those of the last one.

PTX ISA, section "Pipelined tcgen05 Instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.readers import Granules

NOTHING = 0


@dataclass(frozen=True, slots=True)
class Product:
    """
    A product that wrote to tensor memory.

    Attributes:
        accumulator: Its address.
        shape: M, N and K.
        unit, epoch: The clock agent of the thread's tensor core, and its epoch then.
        at: Index of the instruction.
    """

    accumulator: int
    shape: tuple[int, int, int]
    unit: int
    epoch: int
    at: int

    def is_before(self, other: Product) -> bool:
        """Return whether another product of the same thread runs after this one."""
        return (self.accumulator, self.shape) == (other.accumulator, other.shape)


class Pipelines:
    """The product that wrote each granule of tensor memory last."""

    def __init__(self, granules: int) -> None:
        self._products: list[Product | None] = [None]
        self._numbers: dict[Product, int] = {}
        self._last: NDArray[np.int32] = np.full(granules, NOTHING, np.int32)

    def unordered(
        self, granules: Granules, unit: int, done: int, product: Product | None
    ) -> Product | None:
        """
        Return a product of the same thread that need not be over when an instruction is executed;
        None if there is none.

        Args:
            granules: Granules that the instruction accesses [k].
            unit: The thread's tensor core.
            done: The unit's epoch up to which the thread is ordered after its work.
            product: The instruction, if it is a product and these are its accumulator.
        """
        last = self._last[granules]
        numbers = np.unique(last) if np.count_nonzero(last != last[0]) else last[:1]
        for number in numbers.tolist():
            found: Product | None = self._products[number]
            if found is None or found.unit != unit or found.epoch <= done:
                continue
            if product is None or not found.is_before(product):
                return found
        return None

    def note(self, granules: Granules, product: Product) -> None:
        """Note that a product writes granules [k]."""
        number = self._numbers.setdefault(product, len(self._products))
        if number == len(self._products):
            self._products.append(product)
        self._last[granules] = number
