# SPDX-License-Identifier: Apache-2.0
"""
The words that some bytes of shared memory lie in: the granules of the history.

The bytes of a matrix operand are scattered by its swizzle, and a kernel reads the same few operands
again and again, so the results for an array that cannot be written to are cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements, Integers, Scalar, Where
from jitgen.emulator.formats.swizzle import CHUNK
from jitgen.emulator.machine.readers import Granules, as_slice
from jitgen.emulator.machine.shared_history import WORD

_MAX_REGIONS = 1024


@dataclass(frozen=True, slots=True)
class Region:
    """
    The words that contain some bytes.

    Attributes:
        words: Numbers of the words, ascending, each once.
        start, stop: The first byte, and the end of the last.
        chunks: If the bytes are aligned chunks of 16: the number of each chunk, in their order [k].
    """

    words: Granules
    start: int
    stop: int
    chunks: NDArray[np.int64] | None = None


_regions: dict[int, tuple[Elements, Region]] = {}
"""Regions of read-only arrays, by identity; a reference to the array keeps its identity unique."""


def region_of(where: Where) -> Region:
    """Return the words that contain the bytes `where`."""
    if isinstance(where, slice):
        return _stretch(where.start, where.stop)
    known = _regions.get(id(where))
    if known is not None and known[0] is where:
        return known[1]
    words = as_slice(np.unique(where // WORD).astype(np.int64))
    found = Region(words, int(where.min()), int(where.max()) + 1, _chunks_of(where))
    if not where.flags.writeable:
        if len(_regions) >= _MAX_REGIONS:
            _regions.clear()
        _regions[id(where)] = (where, found)
    return found


def _chunks_of(where: Integers) -> NDArray[np.int64] | None:
    """Return the numbers of the aligned chunks that bytes consist of; None if they do not."""
    if where.size % CHUNK:
        return None
    rows = where.reshape(-1, CHUNK)
    starts = rows[:, 0]
    if (rows - starts[:, None] != np.arange(CHUNK)).any() or (starts % CHUNK).any():
        return None
    return (starts // CHUNK).astype(np.int64)


@lru_cache(maxsize=1 << 12)
def _stretch(start: int, stop: int) -> Region:
    """Return the words of adjacent bytes."""
    return Region(slice(start // WORD, -(-stop // WORD)), start, stop)


@dataclass(frozen=True, slots=True)
class Scattered:
    """
    Granules of global memory, or accesses of a few bytes each at `addresses` [k].

    Attributes:
        addresses: Where each access begins; after `within`, numbers of granules.
        width: Bytes of each access; after `within`, those of a granule.
    """

    addresses: NDArray[np.int64]
    width: int

    @property
    def number(self) -> int:
        """How many accesses, or granules."""
        return len(self.addresses)

    @property
    def is_whole(self) -> bool:
        """Whether words are accessed as a whole."""
        return self.width % WORD == 0

    def within(self, start: int, unit: int) -> Scattered:
        """Return the accesses as granules of `unit` bytes, numbered from the address `start` on."""
        first = (self.addresses - start) // unit
        count = self.width // unit
        if count == 1:
            return Scattered(first, unit)
        return Scattered((first[:, None] + np.arange(count)).reshape(-1), unit)

    def in_bytes(self) -> Scattered:
        """Return these granules as granules of one byte."""
        if self.width == 1:
            return self
        spread = self.addresses[:, None] * self.width + np.arange(self.width)
        return Scattered(spread.reshape(-1), 1)

    def get(self, plane: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the elements of a plane for these granules."""
        return plane[self.addresses]

    def put(self, plane: Elements, values: Integers | int) -> None:
        """Put values [granules], or one, into a plane for these granules."""
        plane[self.addresses] = values

    def offset(self, position: int, unit: int) -> int:
        """Return the byte, from the start of the range, at which one of the granules begins."""
        return int(self.addresses[position]) * unit


@dataclass(frozen=True, slots=True)
class Box:
    """
    A part of a tensor: rows of adjacent bytes, at regular distances.

    Attributes:
        address: Where it begins; after `within`, its first granule.
        shape: How many in each dimension; the last one in bytes; after `within`, in granules.
        strides: From one to the next, in bytes; after `within`, in granules.
        unit: Bytes of a granule.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    unit: int = 1

    @property
    def number(self) -> int:
        """How many granules."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """True: the bytes after a row's end in its last word are padding."""
        return True

    def moved(self, by: int) -> Box:
        """Return the box moved by a number of bytes."""
        return replace(self, address=self.address + by) if by else self

    def within(self, start: int, unit: int) -> Box:
        """Return the box in granules of `unit` bytes, numbered from the address `start` on."""
        *outer, inner = self.shape
        strides = tuple(stride // unit for stride in self.strides[:-1])
        return Box((self.address - start) // unit, (*outer, -(-inner // unit)), (*strides, 1), unit)

    def in_bytes(self) -> Box:
        """Return the box in granules of one byte."""
        *outer, inner = self.shape
        strides = tuple(stride * self.unit for stride in self.strides[:-1])
        return Box(self.address * self.unit, (*outer, inner * self.unit), (*strides, 1), 1)

    def get(self, plane: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return a view of a plane's elements for these granules [shape]."""
        return self._view(plane)

    def put(self, plane: Elements, values: Integers | int) -> None:
        """Put values [shape], or one, into a plane for these granules."""
        self._view(plane)[...] = values

    def _view(self, plane: NDArray[Scalar]) -> NDArray[Scalar]:
        size = plane.itemsize
        strides = tuple(stride * size for stride in self.strides)
        return np.ndarray(self.shape, plane.dtype, plane, self.address * size, strides)

    def offset(self, position: int, unit: int) -> int:
        """Return the byte, from the start of the range, at which one of the granules begins."""
        where = np.unravel_index(position, self.shape)
        steps = sum(int(i) * step for i, step in zip(where, self.strides, strict=True))
        return (self.address + steps) * unit
