# SPDX-License-Identifier: Apache-2.0
"""
The swizzles of shared memory: how rows of a tile are spread over the banks.

An address's bits from bit 4 on are XORed with those from bit 7 on: three of them for the 128-byte
swizzle, two for 64 bytes, one for 32 bytes. Addresses count from the start of the CTA's shared
memory, so that one rule holds for bulk copies, for matrix operands and for the kernel's own loads,
whatever the tile starts with. PTX ISA, section "Tensors: Swizzling Modes".

Only bits 4 to 6 change: chunks of 16 bytes change places within their 128 bytes, or less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CHUNK = 16
"""Bytes that stay together."""


def swizzled(address: NDArray[np.int64] | int, bits: int) -> NDArray[np.int64] | int:
    """
    Return the swizzled address of the byte that an unswizzled layout puts at `address`; its own
    inverse.
    """
    return address ^ (address >> 7 & (1 << bits) - 1) << 4


def span(bits: int) -> int:
    """
    Return the size of the aligned units within which a swizzle moves bytes: the width of its rows.
    """
    return CHUNK << bits


@dataclass(frozen=True, slots=True)
class Placement:
    """
    The placement of the bytes of a tile.

    Attributes:
        where: The bytes of shared memory: adjacent ones, or the offset of each [size].
        order: Where they are adjacent and swizzled, the 16-byte chunk of the tile [size / 16] that
            each chunk of them holds; None where none changes its place.
    """

    where: slice | NDArray[np.int64]
    order: NDArray[np.int64] | None

    def arranged(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Return the bytes of a tile [size] in the order of `where`, or bytes in that order as a tile:
        this is its own inverse.
        """
        if self.order is None:
            return data
        halves = np.ascontiguousarray(data).view(np.uint64).reshape(-1, 2)
        moved: NDArray[np.uint64] = halves.take(self.order, axis=0)
        return moved.reshape(-1).view(np.uint8)


@lru_cache(maxsize=4096)
def placement(offset: int, size: int, bits: int) -> Placement:
    """
    Return the placement of a tile of `size` bytes at `offset`, both multiples of 16, with a swizzle
    of `bits` address bits.

    A tile that begins and ends at whole spans only changes the order of its chunks, which is fast;
    `Placement.arranged` is its own inverse, as the swizzle is.
    """
    if bits == 0:
        return Placement(slice(offset, offset + size), None)
    if offset % span(bits) == 0 and size % span(bits) == 0:
        chunks = offset + CHUNK * np.arange(size // CHUNK)
        return Placement(
            slice(offset, offset + size), (np.asarray(swizzled(chunks, bits)) - offset) // CHUNK
        )
    where = np.asarray(swizzled(np.arange(offset, offset + size), bits))
    where.setflags(write=False)  # the memory caches facts about an array that stays
    return Placement(where, None)
