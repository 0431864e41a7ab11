# SPDX-License-Identifier: Apache-2.0
"""
Tensor memory of a CTA: 128 lanes of 512 columns of 32 bits, which tcgen05 instructions allocate.

Accesses are recorded for each granule, a column of 16 lanes: the smallest unit that two warps, or a
warp and a matrix instruction, use independently of each other.

PTX ISA, sections "Tensor Memory", "Tensor Memory Addressing" and "Tensor Memory Allocation".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Where
from jitgen.emulator.machine.access import WRITE, Access
from jitgen.emulator.machine.clocks import Clock
from jitgen.emulator.machine.faults import warn_at_exit
from jitgen.emulator.machine.history import History
from jitgen.emulator.machine.readers import Granules, as_slice
from jitgen.emulator.machine.tensor_columns import COLUMNS
from jitgen.emulator.machine.tensor_pipelines import Pipelines

if TYPE_CHECKING:
    from jitgen.emulator.machine.collectors import Collector
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment

LANES = 128

LANES_OF_GRANULE = 16
_GRANULES_OF_COLUMN = LANES // LANES_OF_GRANULE

MIN_COLUMNS = 32
"""The unit of allocation, which is a power of two of columns from here on."""

_POISON = np.uint32(0xFFFFFFFF)  # NaN in every format

_NUMBERS = np.arange(LANES * COLUMNS).reshape(LANES, COLUMNS)

_LANE_SHIFT = 16
_LANE_MASK = 0x7F
_COLUMN_MASK = 0xFFFF


def split_address(address: int) -> tuple[int, int]:
    """
    Return lane and column of an address: ``lane << 16 | column``.

    Bits above the lane are dropped; compilers keep the number of a scale factor there.
    """
    return address >> _LANE_SHIFT & _LANE_MASK, address & _COLUMN_MASK


@dataclass(frozen=True, slots=True)
class Cells:
    """
    Words of tensor memory that an instruction accesses.

    Attributes:
        index: Of lanes and of columns, slices or arrays: what indexes an array [128, 512].
        granules: Their numbers in the history; a slice if they are adjacent. Not checked to be in
            bounds.
    """

    index: tuple[Where, Where]
    granules: Granules

    @property
    def is_empty(self) -> bool:
        """Whether there are no words."""
        return not isinstance(self.granules, slice) and not len(self.granules)


def granules_of(lanes: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """
    Return the granules of words, each once and ascending.

    Adding `granule_at` of an address to granules relative to it gives those at that address.

    Args:
        lanes: Of the words.
        columns: Likewise; the two are broadcast against each other.
    """
    return np.unique(columns * _GRANULES_OF_COLUMN + lanes // LANES_OF_GRANULE)


def granule_at(lane: int, column: int) -> int:
    """Return the granule of one word."""
    return column * _GRANULES_OF_COLUMN + lane // LANES_OF_GRANULE


def rectangle(lanes: NDArray[np.int64], column: int, width: int) -> Cells:
    """Return the words of `width` columns from `column` on in some lanes [k], which ascend."""
    numbers = granules_of(lanes, column + np.arange(width)[:, None])
    granules = as_slice(numbers) if len(numbers) else numbers
    rows: slice | NDArray[np.int64] = slice(None) if len(lanes) == LANES else lanes
    return Cells((rows, slice(column, column + width)), granules)


@dataclass(slots=True)
class Request:
    """
    A tcgen05.alloc or tcgen05.dealloc of one warp that has begun.

    Attributes:
        name: The name of the instruction, one of the two.
        columns: How many.
        agent: The warp.
        group: CTAs that take part.
        cta: The CTA of the warp.
        first: The first column; -1 as long as it is not known.
        epoch: Of a deallocation, the warp's at that time.
        versions: For each SM, the number of times that columns had become free when there were not
            enough.
        is_done: It is over.
    """

    name: str
    columns: int
    agent: int
    group: list[Cta]
    cta: Cta
    first: int = -1
    epoch: int = 0
    versions: list[int] = field(default_factory=list)
    is_done: bool = False

    def may_go_on(self) -> bool:
        """Return whether columns became free since there were not enough."""
        return bool(self.versions) and self.versions != [
            cta.tensor.sm.version for cta in self.group
        ]

    def __str__(self) -> str:
        """Return a text that says what is waited for."""
        if self.versions:
            taken = COLUMNS - int(self.cta.tensor.sm.is_taken.sum())
            return (
                f"{self.columns} columns of tensor memory ({self.name}), of which {taken} are free"
            )
        return f"the {self.name} of the peer of {self.cta.name}, {self.columns} columns"


@dataclass(frozen=True, slots=True)
class Load:
    """
    The latest tcgen05.ld of a warp.

    Attributes:
        agent, issued: The warp, and its epoch then.
        epoch: That of the unit that loads.
        at: The instruction.
    """

    agent: int
    issued: int
    epoch: int
    at: int


class TensorMemory:
    """
    The tensor memory of one CTA.

    Attributes:
        words: uint32 [128, 512]; what was not written is poison.
        initialised: Whether each word was written since its column was allocated.
        allocations: Number of columns of each allocation, by its first column.
        is_allocated: For each column.
        sm: The columns of its SM, which other CTAs may have a part of.
        calls: What each warp has begun, by warp and instruction.
        asking: Allocations that were not granted, in order.
        closing: Deallocations that the peer CTA has to make as well, by first column.
        last_allocated: Columns of the last allocation.
        has_peer: It allocated together with the other CTA of its pair.
        may_allocate: False after tcgen05.relinquish_alloc_permit.
        completed: By warp, the epoch up to which each unit's work is complete, as only the warp
            itself knows.
        taken_up: By warp, its clock at its last tcgen05.fence::after_thread_sync.
        loads: By the unit that loads, the latest.
        pipelines: The products that wrote granules, as far as they may be in flight.
        collectors: The collector buffer of each thread, by its unit.
        history: Accesses of granules.
    """

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self.words = np.full((LANES, COLUMNS), _POISON)
        self.initialised = np.zeros((LANES, COLUMNS), np.bool_)
        self.allocations: dict[int, int] = {}
        self.is_allocated = np.zeros(COLUMNS, np.bool_)
        self.sm = cta.machine.sms.columns(cta)
        self.calls: dict[tuple[int, int], Request] = {}
        self.asking: deque[Request] = deque()
        self.closing: dict[int, Request] = {}
        self.last_allocated = COLUMNS
        self.has_peer = False
        self.may_allocate = True
        self.completed: dict[int, dict[int, int]] = {}
        self.taken_up: dict[int, Clock] = {}
        self.loads: dict[int, Load] = {}
        self.collectors: dict[int, Collector] = {}
        granules = COLUMNS * _GRANULES_OF_COLUMN
        self.pipelines = Pipelines(granules)
        self.history = History(cta.cluster.clocks, granules, self._describe)

    def _describe(self, granule: int) -> str:
        column, part = divmod(granule, _GRANULES_OF_COLUMN)
        lane = part * LANES_OF_GRANULE
        last = lane + LANES_OF_GRANULE - 1
        return f"tensor memory of {self._cta.name}, column {column} of lanes {lane}..{last}"

    # --- allocation -------------------------------------------------------------------------------

    def allocate(self, first: int, columns: int) -> None:
        """Allocate columns that are free."""
        self.allocations[first] = columns
        self.is_allocated[first : first + columns] = True
        self.sm.is_taken[first : first + columns] = True

    def note_owner(self, f: Fragment, at: int, first: int, columns: int, agent: int) -> None:
        """Note that a warp allocates or frees columns, of which no access may be under way."""
        granules = np.arange(granule_at(0, first), granule_at(0, first + columns))
        access = Access(WRITE, agent, self._cta.cluster.clocks.now(agent), agent)
        self.history.access(f, at, granules, access)

    def free(self, first: int) -> None:
        """Free an allocation."""
        span = slice(first, first + self.allocations.pop(first))
        self.is_allocated[span] = self.sm.is_taken[span] = False
        self.sm.version += 1
        self.initialised[:, span] = False
        self.words[:, span] = _POISON

    def check_exit(self) -> None:
        """
        Report allocations that were not freed: the next kernel on this SM would wait for them.
        """
        for first, columns in self.allocations.items():
            message = f"{columns} columns of tensor memory from column {first} on are not freed"
            warn_at_exit(self._cta, "tensor memory", message)

    # --- access -----------------------------------------------------------------------------------

    def note(self, f: Fragment, at: int, cells: Cells, access: Access) -> None:
        """
        Note that words are accessed; call it when the instruction is executed.

        Args:
            f: The fragment that executes the instruction.
            at: The instruction.
            cells: Which words.
            access: Who accesses them; the arrays in it are as the granules.

        Raises:
            MachineFault: A column is not allocated.
        """
        granules = cells.granules
        columns: Granules
        if isinstance(granules, slice):
            first, last = (x // _GRANULES_OF_COLUMN for x in (granules.start, granules.stop - 1))
            columns = slice(first, last + 1)
        else:
            columns = granules // _GRANULES_OF_COLUMN
            first, last = int(columns.min()), int(columns.max())
        if last >= COLUMNS or not self.is_allocated[columns].all():
            f.fault(
                at,
                f"columns {first}..{last} of the tensor memory of {self._cta.name} are not all "
                f"allocated, which are {self._allocated()}",
            )
        self.history.access(f, at, granules, access)

    def take(self, f: Fragment, at: int, cells: Cells) -> NDArray[np.uint32]:
        """Return the words, in the shape of the index; a view of them where that is of slices."""
        initialised = self.initialised[cells.index]
        if not initialised.all():
            hole = _NUMBERS[cells.index].flat[int(initialised.argmin())]
            lane, column = divmod(int(hole), COLUMNS)
            place = f"lane {lane}, column {column} of the tensor memory of {self._cta.name}"
            f.warn(at, "uninitialised", f"{place} is read and was never written")
        return self.words[cells.index]

    def put(self, cells: Cells, data: NDArray[np.uint32]) -> None:
        """Write words, in the shape of the index."""
        self.words[cells.index] = data
        self.initialised[cells.index] = True

    def _allocated(self) -> str:
        spans = [f"{first}..{first + n - 1}" for first, n in sorted(self.allocations.items())]
        return ", ".join(spans) or "none"
