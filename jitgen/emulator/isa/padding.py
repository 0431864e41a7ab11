# SPDX-License-Identifier: Apache-2.0
"""
Padding of elements of less than a byte that have a byte each: in registers and in tensor memory.

The PTX ISA, sections "ldmatrix" and "Packing formats" of tcgen05, shows where the padding bits are
and not what they may hold. Copies and conversions leave zeros there; a kernel that leaves something
else relies on matrix instructions that ignore the padding, which is a warning.
"""

from __future__ import annotations

import numpy as np

from jitgen.emulator.arrays import Integers
from jitgen.emulator.machine.fragment import Fragment

_BITS = {"e2m1": 0b11_0000_11, "e2m3": 0b11_000000, "e3m2": 0b11_000000}
"""Bits of a byte that are padding, by type."""


def check(f: Fragment, at: int, raw: Integers, name: str) -> None:
    """
    Report padding that is not zero.

    Args:
        f: The fragment that executes the matrix instruction.
        at: Index of the instruction.
        raw: Bytes of an operand, an element each.
        name: Type of the elements; those of a whole byte have no padding.
    """
    bits = _BITS.get(name.removesuffix(".byte"))
    if bits is not None and np.count_nonzero(raw & np.uint8(bits)):
        f.warn(at, "padding", f"an operand of {name} has padding bits that are not zero")
