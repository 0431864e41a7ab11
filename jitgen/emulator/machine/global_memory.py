# SPDX-License-Identifier: Apache-2.0
"""
Global memory: the ranges of the host's memory that a kernel may touch, and nothing else.

On each device the memory of a peer has other addresses. An access is recorded for the *home* of the
memory, that is, its address on the device that owns it.

An access has two sides, as in shared memory: what it does to the bytes, and that it happens, which
`note`, `note_words` and `note_box` tell the history when the instruction is executed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements, Integers
from jitgen.emulator.machine.access import Access
from jitgen.emulator.machine.global_history import WRITES, GlobalHistory
from jitgen.emulator.machine.link import Link
from jitgen.emulator.machine.regions import Box, Scattered
from jitgen.emulator.machine.remote_clocks import Given
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.machine.tensor_maps import TensorMaps

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment

_UNITS = (8, 4, 2, 1)
_WORD = 4


@dataclass(slots=True)
class Range:
    """
    Memory that was declared.

    Attributes:
        start, stop: Address of the first byte, and the address after the last one.
        name: Its name in messages, that of a tensor.
        bytes: uint8 view of it.
        is_set: For memory that is unknown at first whether each byte was written, from the whole
            word on that `start` lies in; else None.
        is_settled: No earlier grid can still be writing to it, nor did this one: it may be read
            before griddepcontrol.wait.
        peer: The range of the same memory on the device that owns it; None if this device owns it.
    """

    start: int
    stop: int
    name: str
    bytes: NDArray[np.uint8]
    is_set: NDArray[np.bool_] | None = None
    is_settled: bool = False
    peer: Range | None = None
    _views: dict[int, tuple[int, Elements]] = field(default_factory=dict)

    def view(self, unit: int) -> tuple[int, Elements]:
        """Return the address of the first aligned integer of `unit` bytes, and these integers."""
        if unit not in self._views:
            first = -(-self.start // unit) * unit
            whole = (self.stop - first) // unit * unit
            aligned = self.bytes[first - self.start : first - self.start + max(whole, 0)]
            self._views[unit] = (first, aligned.view(f"u{unit}"))
        return self._views[unit]

    @property
    def home(self) -> Range:
        """
        The range of the same memory on the device that owns it; this one, unless that is a peer.
        """
        return self.peer or self

    @property
    def shift(self) -> int:
        """Number to add to an address in this range to get the same place in `home`."""
        return self.home.start - self.start

    def distance(self, address: int) -> int:
        """Return the distance of an address from the nearest byte of the range; 0 inside."""
        return max(self.start - address, address - self.stop + 1, 0)


class GlobalMemory:
    """
    Global memory as the kernels of one device see it.

    Attributes:
        history: The accesses of the running launch, or with several devices of all launches.
        flags: The clocks released at an address, for clusters that acquire them.
        maps: Fences for tensor maps that the kernel changes.
        link: The stores to peers that have not arrived; None: stores arrive at once.
    """

    def __init__(self) -> None:
        self.link: Link | None = None
        self._ranges: list[Range] = []
        self._peers: list[Range] = []
        self.begin()

    def begin(self) -> None:
        """Begin a launch: everything before it is complete and visible."""
        self.history = GlobalHistory()
        self.flags: dict[int, Given] = {}
        self.maps = TensorMaps()

    def join(self, other: GlobalMemory) -> None:
        """
        Share the history of accesses with the memory of `other`, a device that runs at the same
        time.
        """
        self.history, self.flags, self.maps = other.history, other.flags, other.maps
        self.history.widest = Scope.SYS

    def add(
        self,
        address: int,
        size: int,
        name: str,
        *,
        is_unknown: bool = False,
        is_settled: bool = False,
    ) -> None:
        """
        Declare memory that belongs to this process and stays.

        Args:
            address: Of its first byte.
            size: In bytes.
            name: What it is.
            is_unknown: Whatever it holds means nothing until the kernel has written it, as in an
                output or a workspace.
            is_settled: No earlier grid can still be writing to it.
        """
        if size > 0:
            buffer = (ctypes.c_uint8 * size).from_address(address)
            content = np.ctypeslib.as_array(buffer)
            found = Range(address, address + size, name, content, is_settled=is_settled)
            if is_unknown:
                found.is_set = np.zeros(size + address % 4 + 3, np.bool_)
            self._ranges.append(found)

    def add_peer(self, address: int, memory: GlobalMemory, home: int) -> None:
        """Declare, at `address`, the memory that another device declared at address `home`."""
        peer = memory._range_of(home, home + 1)
        if peer is not None:
            stop = address + peer.stop - peer.start
            found = Range(address, stop, peer.name, peer.bytes, peer=peer)
            self._ranges.append(found)
            self._peers.append(found)
            self._peers.sort(key=lambda one: one.start)
            columns = [(one.start, one.stop, one.shift) for one in self._peers]
            self._starts, self._stops, self._shifts = np.array(columns, np.int64).T

    def at_home(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Return, for addresses [k] of this device, the addresses of the same places on the owning
        devices.
        """
        if not self._peers:
            return addresses
        number = self._starts.searchsorted(addresses, "right") - 1
        is_peer = (number >= 0) & (addresses < self._stops[number])
        return np.where(is_peer, addresses + self._shifts[number], addresses)

    # --- what is noted ----------------------------------------------------------------------------

    def note(
        self,
        f: Fragment,
        at: int,
        addresses: Integers,
        width: int,
        threads: NDArray[np.int64] | slice,
        kind: str,
        scope: Scope = Scope.SYS,
    ) -> None:
        """
        Note accesses of threads, through the generic proxy, that `load` or `store` have checked.

        Args:
            f: The fragment that executes the instruction.
            at: The instruction.
            addresses: The address that each thread accesses [k].
            width: Bytes of each access.
            threads: The threads [k], as indices 0..n-1 of the fragment's.
            kind: As of an `Access`, or CONSTANT_READ or UPDATE.
            scope: Of a relaxed access.
        """
        clocks = f.cluster.clocks
        if kind in WRITES:
            clocks.give_global_shadow(f.agents)
        agents: int | NDArray[np.int64] = int(f.agents[0])
        if len(f.agents) > 1:
            agents = f.agent_of[threads]
            if agents[0] == agents[-1]:  # of threads in their order
                agents = int(agents[0])
        epochs = clocks.now(agents) if isinstance(agents, int) else clocks.vector.diagonal()[agents]
        access = Access(kind, agents, epochs, agents, scope=scope, rank=f.cta.rank)
        wide = addresses.astype(np.int64)
        for found, chosen in self._by_range(f, at, wide, width):
            home = found.home
            place = Scattered(wide[chosen] + found.shift, width)
            home.is_settled &= kind not in WRITES
            self.history.access(f, at, home, place, access.part(chosen))

    def note_words(
        self, f: Fragment, at: int, addresses: NDArray[np.int64], access: Access
    ) -> None:
        """Note an access of one unit to words; those out of bounds are found when it is done."""
        for found in self._ranges:
            mine = addresses[(addresses >= found.start & -_WORD) & (addresses < found.stop)]
            if len(mine):
                place = Scattered(mine + found.shift, _WORD)
                self.history.access(f, at, found.home, place, access)

    def note_box(self, f: Fragment, at: int, box: Box, access: Access) -> None:
        """Note an access of a unit, through the async proxy, to bytes that are in bounds."""
        found = self._range_of(box.address, box.address + 1)
        if found is not None:
            home = found.home
            home.is_settled &= access.kind not in WRITES
            self.history.access(f, at, home, box.moved(found.shift), access)

    def check_map(self, f: Fragment, at: int, box: Box, row: int) -> None:
        """Report a tensor map that the kernel changed and agent `row` uses without the fences."""
        found = self._range_of(box.address, box.address + 1)
        if found is None:
            return
        for write in self.history.last_writes(found.home, box.moved(found.shift)):
            lacking = self.maps.lacking(write, f.cluster.clocks, row, box.address)
            if lacking:
                f.warn(
                    at,
                    "proxy",
                    f"no fence.proxy.tensormap::generic.{lacking} between the write of the tensor "
                    f"map at {box.address:#x} of {found.name} by {write.clocks.name(write.agent)} "
                    f"and its use\n  at {f.machine.program.place(write.at)}",
                )
                return

    def is_settled(self, addresses: NDArray[np.int64], size: int) -> bool:
        """Return whether `size` bytes at each address are settled, in all ranges that have them."""
        for start in np.unique(addresses).tolist():
            having = [x for x in self._ranges if x.start < start + size and start < x.stop]
            if not having or not all(found.home.is_settled for found in having):
                return False
        return True

    # --- what is done -----------------------------------------------------------------------------

    def bytes(self, address: int, size: int) -> NDArray[np.uint8]:
        """
        Return a view of `size` bytes.

        Raises:
            IndexError: The addresses are not all in one range; the message names the nearest one.
        """
        found = self._range_of(address, address + size)
        if found is None:
            raise IndexError(self._complaint(address, size))
        if found.peer is not None:
            self.settle()
        return found.bytes[address - found.start : address - found.start + size]

    def load(self, f: Fragment, at: int, addresses: Integers, width: int) -> NDArray[np.uint8]:
        """
        Return what threads read, uint8 [k, width].

        Args:
            f: The fragment that executes the instruction.
            at: The instruction.
            addresses: uint64 [k].
            width: Bytes that each reads, 1 to 32: a power of 2, which also is its alignment.

        Raises:
            MachineFault: Out of bounds or not aligned.
        """
        unit = _unit(width)
        data = np.empty((len(addresses), width // unit), f"u{unit}")
        for found, chosen, integers, index in self._parts(f, at, addresses, width, unit):
            if found.peer is not None:
                self.settle()
            data[chosen] = integers[index]
        return data.view(np.uint8)

    def store(
        self,
        f: Fragment,
        at: int,
        addresses: Integers,
        data: NDArray[np.uint8],
        element: int | None = None,
    ) -> None:
        """
        Write what threads write, uint8 `data` [k, width]; see `load`.

        With `element`, the bytes of an element of a vector, the data may arrive at peers later.
        """
        width = data.shape[1]
        unit = element or _unit(width)
        units = np.ascontiguousarray(data).view(f"u{unit}")
        for found, chosen, integers, index in self._parts(f, at, addresses, width, unit):
            if self.link is not None and found.peer is not None and element:
                first = found.peer.start + found.view(unit)[0] - found.start
                self.link.put_off(integers, index, units[chosen], first + unit * index)
            else:
                integers[index] = units[chosen]
        f.machine.timeline.events += 1

    def settle(self) -> None:
        """Deliver all stores to peers that have not arrived."""
        if self.link is not None:
            self.link.arrive()

    def _parts(
        self, f: Fragment, at: int, addresses: Integers, width: int, unit: int
    ) -> list[tuple[Range, NDArray[np.int64] | slice, Elements, NDArray[np.int64]]]:
        """
        Return for each range the accesses in it, its memory as integers, and the indices of the
        accessed ones.
        """
        wide = addresses.astype(np.int64)
        misaligned = wide & (width - 1)
        if misaligned.any():
            first = int(wide[misaligned.argmax()])
            f.fault(at, f"global address {first:#x} is not a multiple of {width}")
        steps = np.arange(width // unit)
        parts = []
        for found, chosen in self._by_range(f, at, wide, width):
            start, integers = found.view(unit)
            index = ((wide[chosen] - start) // unit)[:, None] + steps
            parts.append((found, chosen, integers, index))
        return parts

    def _by_range(
        self, f: Fragment, at: int, addresses: NDArray[np.int64], width: int
    ) -> list[tuple[Range, NDArray[np.int64] | slice]]:
        """Return each range that accesses lie in, with the indices of these accesses."""
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
        """Return a range that holds all of some bytes; None if there is none."""
        for found in self._ranges:
            if found.start <= start and stop <= found.stop:
                return found
        return None

    def _complaint(self, address: int, size: int) -> str:
        """Return a fault's text: bytes are out of bounds, and where the nearest range is."""
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
    """Return the bytes of the largest integers that accesses of `width` bytes consist of."""
    return next(unit for unit in _UNITS if width % unit == 0)
