# SPDX-License-Identifier: Apache-2.0
"""
Collector buffers: copies of A from which later tcgen05.mma of the same thread may read.

``.collector::a::fill`` keeps A; ``use`` and ``lastuse`` say that A is what was kept, and need a
fill that is still valid. It is not after ``lastuse`` and ``discard``, which is what counts without
a qualifier. Whether the tensor core reads the buffer or memory is left to it: so a product that
uses a buffer must have the same A, at the same place and with the same bytes.

PTX ISA, sections "TensorCore 5th Generation Matrix Multiply and accumulate Operations" and
"tcgen05.mma", table of ``.collector_usage``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

FILL, USE, LAST_USE, DISCARD = "fill", "use", "lastuse", "discard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """
    A matrix A of a product, which is compared with the one that a buffer holds.

    Attributes:
        kind: Kind of the instruction, such as ``"f16"``.
        memory: ``"shared"`` or ``"tensor"``.
        place: Its descriptor or address there.
        rows: Rows of a CTA.
        type: Type of the elements.
        majorness: ``"K"`` or ``"MN"``.
    """

    kind: str
    memory: str
    place: int
    rows: int
    type: str
    majorness: str

    def difference(self, other: Matrix) -> str:
        """Return the attribute in which two differ; empty if they are the same."""
        names = (each.name for each in fields(self))
        return next((x for x in names if getattr(self, x) != getattr(other, x)), "")


@dataclass(slots=True)
class Collector:
    """
    The buffer of one thread, from one fill to the next.

    Attributes:
        matrix: The matrix with which it was filled.
        at: The instruction that filled it.
        lost: The instruction after which it is not valid any more; None while it is valid.
        contents: The values that the fill read, by rank of the CTA; they are set when the product
            is done.
    """

    matrix: Matrix
    at: int
    lost: int | None = None
    contents: dict[int, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """
    The use of a buffer by one product.

    Attributes:
        collector: The buffer.
        fills: Whether the product fills the buffer; otherwise it uses its contents.
    """

    collector: Collector
    fills: bool

    def note_read(self, f: Fragment, at: int, rank: int, raw: NDArray[np.generic]) -> None:
        """Keep what a fill reads of A in a CTA; report a use for which memory has other values."""
        if self.fills:
            self.collector.contents[rank] = raw.copy()
        elif not np.array_equal(self.collector.contents.get(rank, raw), raw):
            f.warn(
                at,
                "collector",
                "A in memory is not what the collector buffer was filled with\n"
                f"  at {f.machine.program.place(self.collector.at)}",
            )


def discard(f: Fragment, at: int, unit: int) -> None:
    """Note that instruction `at` makes the contents of the buffer invalid."""
    collector = f.cta.tensor.collectors.get(unit)
    if collector is not None and collector.lost is None:
        collector.lost = at


def use(f: Fragment, at: int, unit: int, how: str, matrix: Matrix) -> Usage | None:
    """
    Note that a product fills or uses a buffer; report a use without a valid fill of its A, and
    return None for it.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        unit: Clock agent of the thread's tensor core.
        how: FILL, USE or LAST_USE.
        matrix: The product's A.
    """
    collectors = f.cta.tensor.collectors
    if how == FILL:
        collectors[unit] = Collector(matrix, at)
        return Usage(collectors[unit], fills=True)
    collector = collectors.get(unit)
    if collector is None:
        f.warn(at, "collector", "the collector buffer is used, and this thread never filled it")
        return None
    wrong = _what_is_wrong(f, collector, matrix)
    if how == LAST_USE:
        discard(f, at, unit)
    if wrong:
        f.warn(at, "collector", f"the collector buffer is used, {wrong}")
        return None
    return Usage(collector, fills=False)


def _what_is_wrong(f: Fragment, collector: Collector, matrix: Matrix) -> str:
    """Return why a buffer does not hold a matrix; empty if it does."""
    place = f.machine.program.place
    filled = f"  at {place(collector.at)}"
    if collector.lost is not None:
        return f"and what filled it was discarded\n{filled}\n  at {place(collector.lost)}"
    difference = collector.matrix.difference(matrix)
    return f"for an A of another {difference} than filled it\n{filled}" if difference else ""
