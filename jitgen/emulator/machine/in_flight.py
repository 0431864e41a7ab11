# SPDX-License-Identifier: Apache-2.0
"""
The registers that wgmma owns from the product to the wait for it, and what wgmma.fence orders.

`jitgen.emulator.program.flights` says which instructions have to be looked at.

PTX ISA, sections "wgmma.fence" and "wgmma.wait_group".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment

Mask = NDArray[np.bool_] | None


class InFlight:
    """
    The 32-bit registers of the warps of a CTA, as far as matrix products use them.

    Attributes:
        sums: Whether a register is an accumulator in flight [registers, warps].
        operands: How many products in flight have it as a part of A [registers, warps].
        fences: The number of the warp's wgmma.fence that came last when a product had it last as
            accumulator [registers, warps].
        touched: Whether a thread accessed a register after its last wgmma.fence; only for the
            registers that may be accessed so, numbered by `Flights.rows` [rows, threads].
    """

    def __init__(self, cta: Cta) -> None:
        count = cta.machine.program.register_counts
        shape = count["r"], cta.num_warps
        self.sums: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.operands: NDArray[np.int32] = np.zeros(shape, np.int32)
        self.fences: NDArray[np.int32] = np.zeros(shape, np.int32)
        self.touched: NDArray[np.bool_] = np.zeros(
            (count.get("touched", 0), cta.num_threads), np.bool_
        )


def check_access(f: Fragment, at: int, mask: Mask, rows: dict[int, str]) -> None:
    """
    Report threads that access registers which matrix products in flight own.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        rows: Names of the registers by their rows of the register file.
    """
    flight, warps = f.cta.in_flight, f.selected_warps(mask) - f.cta.agent0
    where = np.array(list(rows))[:, None], warps
    is_owned = flight.sums[where] | (flight.operands[where] > 0)
    if np.count_nonzero(is_owned):
        row, warp = np.argwhere(is_owned)[0].tolist()
        use = "is an accumulator" if flight.sums[list(rows)[row], warps[warp]] else "holds A"
        name = list(rows.values())[row]
        f.warn(
            at, "register", f"warp {warps[warp]} accesses {name}, which {use} of a wgmma in flight"
        )


def note_touched(f: Fragment, at: int, mask: Mask, rows: tuple[int, ...]) -> None:
    """Note that the threads under the mask access registers: `rows` of `InFlight.touched`."""
    del at
    for row in rows:
        f.cta.in_flight.touched[row, f.s] |= True if mask is None else mask


def note_fence(f: Fragment) -> None:
    """Note that threads execute wgmma.fence."""
    touched = f.cta.in_flight.touched
    if touched.size:
        touched[:, f.s] = False


def check_touched(f: Fragment, at: int, rows: dict[int, str], of_a: list[str]) -> None:
    """
    Report registers of a product that were accessed since a fence.

    PTX asks for the fence of accumulators and of A alike. Of A it is a warning: compilers move the
    instruction that computes a register of A down to the product that reads it, past the fence that
    the source has before it.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        rows: Names of registers that may lack the fence, by their rows in `InFlight.touched`.
        of_a: Those of the registers that hold A of the product.
    """
    for row, name in rows.items():
        is_late = f.cta.in_flight.touched[row, f.s]
        if np.count_nonzero(is_late):
            thread = int(f.lanes[is_late.argmax()])
            kind = "fragment" if name in of_a else "fence"
            f.warn(at, kind, f"no wgmma.fence since thread {thread} accessed its register {name}")
            if kind == "fence":
                return
