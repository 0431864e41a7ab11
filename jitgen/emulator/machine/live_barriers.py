# SPDX-License-Identifier: Apache-2.0
"""
The mbarriers of a CTA and the bytes that they live in.

From mbarrier.init to mbarrier.inval these bytes belong to the barrier. PTX ISA, section "mbarrier":
"performing any non-mbarrier or mbarrier.init operations on an initialized mbarrier object results
in undefined behavior".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Where

if TYPE_CHECKING:
    from jitgen.emulator.machine.barriers import MBarrier
    from jitgen.emulator.machine.fragment import Fragment

MBARRIER_BYTES = 8

_SHIFT = 3
_NUM_PLACES = 256 * 1024 >> _SHIFT


class LiveBarriers:
    """
    The barriers of one CTA.

    Attributes:
        by_offset: All that were initialised and not invalidated, by offset in shared memory.
        ended: The instruction that invalidated the last one at an offset.
    """

    def __init__(self) -> None:
        self.by_offset: dict[int, MBarrier] = {}
        self.ended: dict[int, int] = {}
        self._is_taken: NDArray[np.bool_] = np.zeros(_NUM_PLACES, np.bool_)
        self._start, self._stop = _NUM_PLACES << _SHIFT, 0  # all barriers lie in between
        self._unfenced: list[MBarrier] = []

    def add(self, barrier: MBarrier) -> None:
        """Note a barrier that mbarrier.init made."""
        self.by_offset[barrier.offset] = barrier
        self._start = min(self._start, barrier.offset)
        self._stop = max(self._stop, barrier.offset + MBARRIER_BYTES)
        self._is_taken[barrier.offset >> _SHIFT] = True
        self._unfenced.append(barrier)

    def remove(self, barrier: MBarrier, at: int) -> None:
        """Note mbarrier.inval, instruction `at`."""
        del self.by_offset[barrier.offset]
        self.ended[barrier.offset] = at
        self._is_taken[barrier.offset >> _SHIFT] = False
        self._unfenced = [other for other in self._unfenced if other is not barrier]

    # --- fences -----------------------------------------------------------------------------------

    def fence(self, agent: int, *, own_only: bool = False) -> None:
        """
        Note that a warp executed a fence behind which the async proxy sees barriers.

        Args:
            agent: The warp.
            own_only: Whether only barriers count that the warp itself initialised
                (fence.mbarrier_init); else all after whose initialisation it is ordered.
        """
        if not self._unfenced:
            return
        still = []
        for barrier in self._unfenced:
            by, epoch = barrier.initialised_by
            knows = barrier.cta.cluster.clocks.vector[agent]
            if agent == by or (not own_only and knows[by] >= epoch):
                barrier.fences.setdefault(agent, int(knows[agent]))
            if agent != by:
                still.append(barrier)
        self._unfenced = still

    # --- other accesses ---------------------------------------------------------------------------

    def check(self, f: Fragment, at: int, offsets: NDArray[np.int64], width: int) -> None:
        """Report threads that access the bytes of a barrier: `width` at `offsets` [k]."""
        if not self.by_offset or self._is_clear(
            int(np.minimum.reduce(offsets)), int(np.maximum.reduce(offsets)) + width
        ):
            return
        for step in range(0, width, MBARRIER_BYTES):
            places = (offsets + step) >> _SHIFT
            is_hit = self._is_taken[places]
            if np.count_nonzero(is_hit):
                self._report(f, at, int(places[is_hit.argmax()]))

    def is_hit(self, start: int, stop: int) -> bool:
        """Return whether a barrier has one of the bytes from `start` up to, and without, `stop`."""
        if self._is_clear(start, stop):
            return False
        return bool(self._is_taken[start >> _SHIFT : (stop - 1 >> _SHIFT) + 1].any())

    def _is_clear(self, start: int, stop: int) -> bool:
        """Return whether bytes lie ahead of, or behind, all barriers."""
        return stop <= self._start or start >= self._stop

    def check_region(self, f: Fragment, at: int, where: Where, start: int, stop: int) -> None:
        """
        Report asynchronous work on `where`, bytes within `start` and `stop`, if it hits a barrier.
        """
        if not self.by_offset or self._is_clear(start, stop):
            return
        if isinstance(where, slice):
            if self.is_hit(where.start, where.stop):
                first = where.start >> _SHIFT
                self._report(f, at, first + int(self._is_taken[first:].argmax()))
        else:
            self.check(f, at, where.reshape(-1).astype(np.int64, copy=False), 1)

    def _report(self, f: Fragment, at: int, place: int) -> None:
        barrier = self.by_offset[place << _SHIFT]
        first = f.machine.program.place(barrier.at)
        f.warn(at, "mbarrier", f"{barrier.name} is accessed while it is a barrier\n  at {first}")
