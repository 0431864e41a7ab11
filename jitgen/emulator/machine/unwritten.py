# SPDX-License-Identifier: Apache-2.0
"""
Which threads have not yet written a register, for the few where `definitions` could not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

Mask = NDArray[np.bool_] | None


def check_written(
    f: Fragment, at: int, mask: Mask, guard: int | None, rows: dict[int, str]
) -> None:
    """
    Report threads that read registers which they never wrote.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        guard: Row of the predicate that the guard is, if that is in doubt; all threads read it.
        rows: Names of the registers by their rows in `Cta.unwritten`; the guard is among them.
    """
    for row, name in rows.items():
        unwritten = f.cta.unwritten[row, f.s]
        if mask is not None and row != guard:
            unwritten = unwritten & mask
        if np.count_nonzero(unwritten):
            lane = int(f.lanes[unwritten.argmax()])
            f.warn(at, "undefined", f"thread {lane} reads {name}, to which it never wrote")


def check_sums(
    f: Fragment, at: int, is_added: NDArray[np.bool_] | np.bool_, rows: dict[int, str]
) -> None:
    """
    Report threads that never wrote accumulators to which a product is added.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        is_added: Whether products are added to the accumulators: bool, or an array [n].
        rows: Names of the accumulators by their rows in `Cta.unwritten`.
    """
    if np.count_nonzero(is_added) and np.count_nonzero(_rows(f, list(rows))):
        check_written(f, at, f.spread(is_added), None, rows)


def _rows(f: Fragment, rows: list[int]) -> NDArray[np.bool_]:
    """Return some rows of `Cta.unwritten`, of the threads of a fragment."""
    return f.cta.unwritten[rows][:, f.s]


def note_written(f: Fragment, at: int, mask: Mask, rows: tuple[int, ...]) -> None:
    """Note that the threads under the mask wrote registers."""
    del at
    if mask is None:
        where = (np.array(rows)[:, None], f.s) if isinstance(f.s, np.ndarray) else (list(rows), f.s)
        f.cta.unwritten[where] = False
        return
    for row in rows:
        f.cta.unwritten[row, f.s] &= ~mask
