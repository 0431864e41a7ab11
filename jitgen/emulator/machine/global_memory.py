# SPDX-License-Identifier: Apache-2.0
"""
Global memory: the ranges of the host's memory that a kernel may touch, and nothing else.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

_UNITS = (8, 4, 2, 1)


@dataclass(slots=True)
class Range:
    """
    Memory that was declared.

    Attributes:
        start, stop: Addresses of the first byte and behind the last.
        name: What it is, in words: the name of a tensor.
        bytes: uint8 view of it.
    """

    start: int
    stop: int
    name: str
    bytes: NDArray[np.uint8]
    _views: dict[int, tuple[int, NDArray[Any]]] = field(default_factory=dict)

    def view(self, unit: int) -> tuple[int, NDArray[Any]]:
        """Return the aligned integers of `unit` bytes, and the address of the first."""
        if unit not in self._views:
            first = -(-self.start // unit) * unit
            whole = (self.stop - first) // unit * unit
            aligned = self.bytes[first - self.start : first - self.start + max(whole, 0)]
            self._views[unit] = (first, aligned.view(f"u{unit}"))
        return self._views[unit]

    def distance(self, address: int) -> int:
        """Return how many bytes lie between an address and the range."""
        return max(self.start - address, address - self.stop + 1, 0)


class GlobalMemory:
    """Global memory as one kernel sees it."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, address: int, size: int, name: str) -> None:
        """Declare `size` bytes from `address` on, which belong to this process and stay."""
        if size > 0:
            buffer = (ctypes.c_uint8 * size).from_address(address)
            self._ranges.append(Range(address, address + size, name, np.ctypeslib.as_array(buffer)))

    def bytes(self, address: int, size: int) -> NDArray[np.uint8]:
        """
        Return a view of `size` bytes.

        Raises:
            IndexError: They are not all in one range; the message tells which is near.
        """
        found = self._range_of(address, address + size)
        if found is None:
            raise IndexError(self._complaint(address, size))
        return found.bytes[address - found.start : address - found.start + size]

    def load(self, f: Fragment, at: int, addresses: Any, width: int) -> NDArray[np.uint8]:
        """
        Return what threads read, uint8 [k, width].

        Args:
            f: Who executes the instruction.
            at: The instruction.
            addresses: uint64 [k].
            width: Bytes that each reads, 1 to 32: a power of 2, which also is its alignment.

        Raises:
            MachineFault: Out of bounds or not aligned.
        """
        unit = _unit(width)
        data = np.empty((len(addresses), width // unit), f"u{unit}")
        for chosen, integers, index in self._parts(f, at, addresses, width):
            data[chosen] = integers[index]
        return data.view(np.uint8)

    def store(self, f: Fragment, at: int, addresses: Any, data: NDArray[np.uint8]) -> None:
        """Write what threads write, uint8 `data` [k, width]; see `load`."""
        width = data.shape[1]
        units = np.ascontiguousarray(data).view(f"u{_unit(width)}")
        for chosen, integers, index in self._parts(f, at, addresses, width):
            integers[index] = units[chosen]
        f.machine.global_events += 1

    def _parts(
        self, f: Fragment, at: int, addresses: Any, width: int
    ) -> list[tuple[NDArray[Any] | slice, NDArray[Any], NDArray[np.int64]]]:
        """Return for each range which accesses are in it, its integers, and which of those."""
        wide = np.asarray(addresses).astype(np.int64)
        misaligned = wide & (width - 1)
        if misaligned.any():
            first = int(wide[misaligned.argmax()])
            f.fault(at, f"global address {first:#x} is not a multiple of {width}")
        unit = _unit(width)
        steps = np.arange(width // unit)
        parts = []
        for found, chosen in self._by_range(f, at, wide, width):
            start, integers = found.view(unit)
            index = ((wide[chosen] - start) // unit)[:, None] + steps
            parts.append((chosen, integers, index))
        return parts

    def _by_range(
        self, f: Fragment, at: int, addresses: NDArray[np.int64], width: int
    ) -> list[tuple[Range, NDArray[np.int64] | slice]]:
        """Return the ranges that accesses lie in, and which do."""
        if not len(addresses):
            return []
        low, high = int(addresses.min()), int(addresses.max()) + width
        found = self._range_of(low, high)
        if found is not None:
            return [(found, slice(None))]
        parts: list[tuple[Range, NDArray[np.int64] | slice]] = []
        is_left = np.ones(len(addresses), np.bool_)
        while is_left.any():
            address = int(addresses[is_left.argmax()])
            found = self._range_of(address, address + width)
            if found is None:
                f.fault(at, self._complaint(address, width))
            inside = (addresses >= found.start) & (addresses + width <= found.stop) & is_left
            parts.append((found, np.flatnonzero(inside)))
            is_left &= ~inside
        return parts

    def _range_of(self, start: int, stop: int) -> Range | None:
        """Return a range that holds all of some bytes."""
        for found in self._ranges:
            if found.start <= start and stop <= found.stop:
                return found
        return None

    def _complaint(self, address: int, size: int) -> str:
        """Return, in words, that bytes are out of bounds, and of what."""
        message = f"global memory {address:#x}..{address + size:#x} is out of bounds"
        if not self._ranges:
            return message
        near = min(self._ranges, key=lambda found: found.distance(address))
        last = address + size - 1
        where = f"{address - near.stop} bytes behind" if last >= near.stop else "before"
        if address < near.start:
            where = f"{near.start - address} bytes before"
        elif address < near.stop:
            where = "over the end of"
        return f"{message}: {where} {near.name} ({near.start:#x}..{near.stop:#x})"


def _unit(width: int) -> int:
    """Return the largest size of integers that accesses consist of."""
    return next(unit for unit in _UNITS if width % unit == 0)
