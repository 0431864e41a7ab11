# SPDX-License-Identifier: Apache-2.0
"""
What is kept of the accesses of one range of global memory: stamps, and planes of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.regions import Box, Scattered
from jitgen.emulator.machine.scopes import Scope

Plane = NDArray[np.int32]
Place = Box | Scattered

_MAX_KEPT = 1 << 20
"""
Limit of what is kept of reads: granules of scattered ones, 8 MiB of their numbers, and boxes, each
of which has one number.
"""

WORD = 4
"""Bytes of a granule, unless single bytes are told apart."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    One access.

    Attributes:
        kind: Kind of the access.
        clocks: The vector clocks of its cluster.
        agent, epoch: The agent of the access, and its epoch.
        at: Index of the instruction.
        is_async: Whether it goes through the async proxy.
        scope: The scope of a relaxed access.
        rank: Rank of the CTA in its cluster.
    """

    kind: str
    clocks: Clocks
    agent: int
    epoch: int
    at: int
    is_async: bool
    scope: Scope
    rank: int

    def __hash__(self) -> int:
        return hash((self.agent, self.epoch, self.at, id(self.clocks)))


class Track:
    """
    What is kept of the accesses of one range, in planes. A plane is an array with an int32 for each
    granule: the number of a `Stamp`, for example of the latest write; 0 for none.

    Attributes:
        unit: Bytes of a granule: 4, or 1 once single bytes are told apart.
        is_only_read: Whether there were only plain reads so far. Most inputs stay like that, so
            their reads are kept without a plane.
        kept: While `is_only_read`, the place of each read, and its number, or one for each granule.

    Args:
        start: The first address of the range, rounded down to a whole word.
        stop: The address behind the range.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start & -WORD, stop
        self.unit = WORD
        self.is_only_read = True
        self.kept: list[tuple[Place, int | Plane]] = []
        self._num_kept = 0
        self._planes: dict[str, Plane] = {}

    def plane(self, name: str) -> Plane:
        """Return a plane, made on first use: a number for each granule."""
        found = self._planes.get(name)
        if found is None:
            size = -(-(self.stop - self.start) // WORD) * WORD // self.unit
            found = self._planes[name] = np.zeros(size, np.int32)
        return found

    def known(self, name: str) -> Plane | None:
        """Return a plane, if there is one."""
        return self._planes.get(name)

    def keep(self, where: Place, numbers: int | Plane) -> None:
        """Keep the place and the numbers of a read until another kind of access comes."""
        self.kept.append((where, numbers))
        self._num_kept += where.number if isinstance(where, Scattered) else 1

    @property
    def is_full(self) -> bool:
        """Whether more than `_MAX_KEPT` granules of scattered reads, and boxes, are kept."""
        return self._num_kept > _MAX_KEPT

    def split(self) -> None:
        """Have a number for each byte from now on, not for each word."""
        if self.unit == WORD:
            self.kept = [_split(where, numbers) for where, numbers in self.kept]
            self._planes = {name: np.repeat(x, WORD) for name, x in self._planes.items()}
            self.unit = 1


def _split(where: Place, numbers: int | Plane) -> tuple[Place, int | Plane]:
    """
    Return a place of words as a place of bytes, and `numbers`, one for each word, as one for each
    byte.
    """
    if isinstance(numbers, np.ndarray):
        numbers = np.repeat(numbers, WORD)
    return where.in_bytes(), numbers
