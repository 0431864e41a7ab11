# SPDX-License-Identifier: Apache-2.0
"""
The columns of tensor memory that an SM has, and which CTAs share them.

Which columns an allocation gets is not promised: on hardware it depends on what else runs on the
SM. So it differs here between modes and between CTAs, always the same way in the same mode, and a
kernel that takes its columns for the first ones is found.

PTX ISA, section "Tensor Memory Allocation".
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.limits import REGISTERS, registers_of

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.machine import Machine

COLUMNS = 512

SHARED_BYTES_OF_SM = 228 * 1024
THREADS_OF_SM = 2048


class Columns:
    """
    The columns of one SM.

    Attributes:
        is_taken: Whether each column is allocated.
        version: Bumped when columns become free.
    """

    def __init__(self) -> None:
        self.is_taken: NDArray[np.bool_] = np.zeros(COLUMNS, np.bool_)
        self.version = 0


class Sms:
    """
    The SMs of a launch. A place is what one cluster needs: an SM for each of its CTAs.

    Attributes:
        places: Number of places.
        resident: Clusters that run at once, at most. As many as there are places, as CTAs mostly
            fill the shared memory of their SM; more where CTAs that use tensor memory do not.
    """

    def __init__(self, machine: Machine, num_sms: int) -> None:
        self.places = max(1, num_sms // machine.launch.cluster_size)
        self.resident = self.places * _ctas_of_sm(machine)
        self._clusters = [0] * self.places
        self._last = -1
        self._columns: dict[tuple[int, int], Columns] = defaultdict(Columns)

    def enter(self) -> int:
        """
        Return the place of a new cluster: the next one of the places with the fewest clusters.
        """
        behind = [(self._last + 1 + step) % self.places for step in range(self.places)]
        self._last = min(behind, key=self._clusters.__getitem__)
        self._clusters[self._last] += 1
        return self._last

    def leave(self, place: int) -> None:
        """Note that a cluster has ended."""
        self._clusters[place] -= 1

    def columns(self, cta: Cta) -> Columns:
        """Return the columns of the SM that a CTA runs on."""
        return self._columns[cta.cluster.place, cta.rank]


def _ctas_of_sm(machine: Machine) -> int:
    """Return how many CTAs of a launch run on one SM; 1 without tensor memory to share."""
    if "alloc" not in machine.tensor_opcodes:
        return 1
    launch = machine.launch
    bounds = (
        SHARED_BYTES_OF_SM // max(1, machine.shared_end),
        THREADS_OF_SM // launch.num_threads,
        REGISTERS // max(1, registers_of(launch.num_threads, launch.registers)),
    )
    return max(1, min(bounds))


def choose(is_taken: NDArray[np.bool_], number: int, turn: int) -> int | None:
    """
    Return the first of `number` free columns, or None if there are not as many in a row.

    They lie at a multiple of their number, in the smallest free stretch, so that allocations that
    fit together always do.

    Args:
        is_taken: Whether each column is allocated.
        number: A power of two.
        turn: Number that chooses among equally good places.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for first in range(0, COLUMNS, number):
        if not is_taken[first : first + number].any():
            found[_stretch(is_taken, first, number)].append(first)
    if not found:
        return None
    best = found[min(found)]
    return best[turn % len(best)]


def _stretch(is_taken: NDArray[np.bool_], first: int, number: int) -> int:
    """Return the size of the largest aligned free stretch, a power of two, around some columns."""
    while number < COLUMNS:
        start = first & ~(2 * number - 1)
        if is_taken[start : start + 2 * number].any():
            break
        number *= 2
    return number


def turn_of(cta: Cta, ctas: int) -> int:
    """
    Return the `turn` of `choose`, which differs between modes, and between CTAs or pairs of them.
    """
    mode, (x, y, z) = cta.machine.mode, cta.index
    width, height, _ = cta.machine.launch.grid
    number = (x + width * (y + height * z)) // ctas
    return 1 + number + (len(mode.deferred) if mode.seed is None else mode.seed)
