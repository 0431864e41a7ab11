# SPDX-License-Identifier: Apache-2.0
"""
The place of wgmma's operands in shared memory, and recording that they were read.

A kernel uses few descriptors many times, so that tables of offsets are made once. Reads are noted
when the group of products is closed, for all of its products together: one stage of a ring is then
one stretch of memory, where a single product reads a few bytes of each row.

A warp reads all of B, but of A the 16 rows that it computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Where
from jitgen.emulator.formats.descriptors import Operand, of_wgmma, offsets
from jitgen.emulator.formats.fragments import ROWS

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.warpgroup import Member


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """
    The place of a descriptor's operand. Made once for each descriptor and shape.

    Attributes:
        where: Offset of each byte [rows, bytes]; it cannot be written to.
        start, stop: No byte is below `start`, and all are below `stop`.
    """

    where: NDArray[np.int64]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """
    The shared memory that one product reads.

    Attributes:
        at: Index of the instruction.
        a, b: Its operands; None where A is in registers.
    """

    at: int
    a: Place | None
    b: Place


def find(f: Fragment, at: int, bits: int, operand: Operand) -> Place:
    """
    Return where an operand is.

    Raises:
        MachineFault: The descriptor is not valid, or the operand out of bounds.
    """
    try:
        place = _place(bits, operand)
    except ValueError as error:
        f.fault(at, str(error))
    f.cta.shared.check_bounds(f, at, place.start, place.stop)
    return place


@lru_cache(maxsize=1 << 10)
def _place(bits: int, operand: Operand) -> Place:
    where = offsets(of_wgmma(bits), operand)
    where.flags.writeable = False
    return Place(where, int(where.min()), int(where.max()) + 1)


@lru_cache(maxsize=1 << 10)
def rows_of_a(parts: tuple[tuple[Place, int, int], ...]) -> NDArray[np.int64]:
    """
    Return the shared offsets of rows of A that warps read, int64 [rows, bytes]; do not write to it.

    Args:
        parts: For each range of warps the place of their A, the first warp (0..3), and the one
            behind the last.
    """
    rows = [place.where[ROWS * first : ROWS * stop] for place, first, stop in parts]
    where = np.concatenate(rows)
    where.flags.writeable = False
    return where


def note_reads(f: Fragment, members: list[Member]) -> None:
    """Note what the open groups of some warps read, and report what they may not read yet."""
    readers: dict[tuple[Place, ...], list[tuple[int, int, int, int]]] = {}
    own: dict[int, list[tuple[Where, int, int, int]]] = {}
    for share, group in members:
        epoch = group.open_group(share)
        for warp, row in zip(range(share.first, share.stop), f.agents[share.agents], strict=True):
            reads = group.take_reads(warp)
            if reads:
                reader = (reads[0].at, int(group.agents[warp]), epoch, int(row))
                readers.setdefault(tuple(read.b for read in reads), []).append(reader)
                places = tuple(read.a for read in reads if read.a)
                if places:
                    own.setdefault(reader[0], []).append((_union(places, warp), *reader[1:]))
    for at, apart in own.items():
        f.cta.shared.note_reads_apart(f, at, apart)
    for places, who in readers.items():
        at = who[0][0]
        _, agents, epochs, rows = np.array(who).T
        f.cta.shared.note_async_read(f, at, _union(places), agents, epochs, rows)


@lru_cache(maxsize=1 << 10)
def _union(places: tuple[Place, ...], warp: int | None = None) -> Where:
    """Return the bytes of several operands, or of a warp's rows of them, each byte once."""
    rows = slice(None) if warp is None else slice(ROWS * warp, ROWS * (warp + 1))
    bytes_ = np.unique(np.concatenate([place.where[rows].ravel() for place in places]))
    if bytes_[-1] - bytes_[0] + 1 == len(bytes_):
        return slice(int(bytes_[0]), int(bytes_[-1]) + 1)
    bytes_.flags.writeable = False
    return bytes_
