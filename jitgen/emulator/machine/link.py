# SPDX-License-Identifier: Apache-2.0
"""
Stores to peers that have not arrived, which a mode with delayed links keeps.

They arrive when that is required: at a release or a fence that peers may see, at an access of the
device to a peer's memory, or at the end of the launch. Otherwise they arrive one by one when
nothing else can happen, either in order or the last one first. The elements of a vector are stores
of their own. Stores to one place arrive in their order.

PTX ISA, sections "Vector Data-types" and "Coherence" of the memory consistency model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements
from jitgen.emulator.modes import Links


@dataclass(frozen=True, slots=True)
class _Parcel:
    """
    The stores of one element by each of some threads.

    Attributes:
        memory: Integers of the peer's memory.
        index: Index of each stored integer in `memory` [k].
        values: New values of the elements [k].
        addresses: Addresses of the elements, in bytes [k].
    """

    memory: Elements
    index: NDArray[np.int64]
    values: Elements
    addresses: NDArray[np.int64]

    def arrive(self) -> None:
        """Do the stores."""
        self.memory[self.index] = self.values


class Link:
    """The stores of one device to its peers that have not arrived, in order of issue."""

    def __init__(self, order: Links) -> None:
        self._next = 0 if order is Links.SLOW else -1
        self._parcels: list[_Parcel] = []

    def put_off(
        self,
        memory: Elements,
        index: NDArray[np.int64],
        values: Elements,
        addresses: NDArray[np.int64],
    ) -> None:
        """
        Keep the stores of some threads.

        Args:
            memory: Integers of the peer's memory.
            index: Index in `memory` of each integer that a thread stores [k, elements].
            values: New values of the elements [k, elements].
            addresses: Addresses of the elements, in bytes [k, elements].
        """
        if any(np.isin(addresses, one.addresses).any() for one in self._parcels):
            self.arrive()
        for element in range(index.shape[1]):
            where, what = index[:, element], values[:, element].copy()
            self._parcels.append(_Parcel(memory, where, what, addresses[:, element]))

    def arrive(self) -> None:
        """Complete all outstanding stores."""
        while self._parcels:
            self._parcels.pop(0).arrive()

    def arrive_one(self) -> bool:
        """Deliver the first or the last of all stores; return whether there was one."""
        if self._parcels:
            self._parcels.pop(self._next).arrive()
            return True
        return False
