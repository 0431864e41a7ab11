# SPDX-License-Identifier: Apache-2.0
"""
The accesses of global memory by all clusters of a launch: finds those that nothing orders.

Every access of one agent by one instruction in one epoch is a stamp with a number. Beside each
range of memory lie planes of such numbers: who wrote each word last, by an ordinary write and by a
relaxed one, and which two agents read it last. Words have 4 bytes; a range of which
single bytes are accessed is kept by bytes from then on. Memory that nobody touches costs nothing.

Memory that the host calls unknown holds nothing until the kernel has written it.

PTX ISA, sections "Memory Consistency Model" (data races, proxies), "ld" (.nc: the memory is read
only), "cp.async.bulk.wait_group" (.read: the sources have been read, no more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.history import (
    READ,
    RELAXED_READ,
    RELAXED_WRITE,
    WRITE,
    Access,
)
from jitgen.emulator.machine.regions import Box, Scattered

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.global_memory import Range

CONSTANT_READ = "non-coherent read"
"""A read by ld.global.nc, which nobody may write beside."""

Plane = NDArray[np.int32]
Place = Box | Scattered

_PLANES = {READ: "read", CONSTANT_READ: "read", WRITE: "wrote", RELAXED_READ: "polled",
           RELAXED_WRITE: "updated"}  # fmt: skip
_READ_BY_ANOTHER = "read by another"
_ALL_READS = ("read", _READ_BY_ANOTHER)
_EXCLUDES = {
    READ: ("wrote", "updated"),
    CONSTANT_READ: ("wrote", "updated"),
    RELAXED_READ: ("wrote",),
    RELAXED_WRITE: ("wrote", *_ALL_READS),
    WRITE: ("wrote", "updated", "polled", *_ALL_READS),
}
"""The planes of accesses that each kind must know of."""

_WORD = 4


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    One access.

    Attributes:
        kind: How.
        clocks: Those of the cluster.
        agent, epoch: Who and when.
        at: The instruction.
        is_async: Through the async proxy.
    """

    kind: str
    clocks: Clocks
    agent: int
    epoch: int
    at: int
    is_async: bool

    def __hash__(self) -> int:
        return hash((self.agent, self.epoch, self.at, id(self.clocks)))


class Track:
    """
    The planes of one range.

    Attributes:
        unit: Bytes of a granule: 4, or 1.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start & -_WORD, stop
        self.unit = _WORD
        self._planes: dict[str, Plane] = {}

    def plane(self, name: str) -> Plane:
        """Return a plane, made on first use: a number for each granule."""
        found = self._planes.get(name)
        if found is None:
            size = -(-(self.stop - self.start) // _WORD) * _WORD // self.unit
            found = self._planes[name] = np.zeros(size, np.int32)
        return found

    def known(self, name: str) -> Plane | None:
        """Return a plane, if there is one."""
        return self._planes.get(name)

    def split(self) -> None:
        """Keep single bytes from now on."""
        if self.unit == _WORD:
            self._planes = {name: np.repeat(x, _WORD) for name, x in self._planes.items()}
            self.unit = 1


class GlobalHistory:
    """
    What was accessed in one launch.

    Attributes:
        is_checked: Off: nothing is noted and nothing found.
    """

    def __init__(self) -> None:
        self.is_checked = True
        self._stamps: list[Stamp | None] = [None]
        self._numbers: dict[Stamp, int] = {}
        self._agent_of: NDArray[np.int32] = np.zeros(1024, np.int32)
        self._agents: dict[tuple[int, int], int] = {}
        self._tracks: dict[int, Track] = {}

    def access(self, f: Fragment, at: int, found: Range, place: Place, access: Access) -> None:
        """
        Note an access, and report what it is not ordered after.

        Args:
            f: Who executes the instruction.
            at: The instruction.
            found: The range.
            place: Which bytes of it.
            access: Who and how; not joint. Arrays in it are one for each of a scattered place.
        """
        if not self.is_checked:
            return
        track = self._tracks.get(found.start)
        if track is None:
            track = self._tracks[found.start] = Track(found.start, found.stop)
        if not place.is_whole:
            track.split()
        where = place.within(track.start, track.unit)
        if isinstance(place, Scattered) and isinstance(access.agents, np.ndarray):
            count = len(where.addresses) // len(place.addresses)
            access = access.part(np.repeat(np.arange(len(place.addresses)), count))
        if found.is_set is not None:
            self._check_set(f, at, found, where, access)
        for name in _EXCLUDES[access.kind]:
            plane = track.known(name)
            if plane is not None:
                ids = where.get(plane)
                if np.count_nonzero(ids) and self._check(f, at, found, track, where, ids, access):
                    break
        self._record(at, track, where, f.cluster.clocks, access)

    def last_writes(self, found: Range, place: Place) -> list[Stamp]:
        """Return the last writes of the bytes of a range, each once."""
        track = self._tracks.get(found.start)
        if track is None:
            return []
        where = place.within(track.start, track.unit)
        planes = (track.known(name) for name in ("wrote", "updated"))
        numbers = {
            number
            for plane in planes
            if plane is not None
            for number in np.unique(where.get(plane)).tolist()
        }
        stamps = (self._stamps[number] for number in sorted(numbers))
        return [stamp for stamp in stamps if stamp is not None]

    # --- finding ----------------------------------------------------------------------------------

    def _check(
        self,
        f: Fragment,
        at: int,
        found: Range,
        track: Track,
        where: Place,
        ids: Plane,
        access: Access,
    ) -> bool:
        """Report one of earlier accesses that is not known; return whether there is one."""
        flat = ids.reshape(-1)
        first = int(flat[0])
        numbers = [first] if not np.count_nonzero(flat != first) else np.unique(flat).tolist()
        for number in numbers:
            stamp = self._stamps[number]
            if stamp is None:
                continue
            for row in _rows(access, flat, number):
                fault = _grade(f.cluster.clocks, row, stamp, access)
                if fault:
                    position = int((flat == number).argmax())
                    address = track.start + where.offset(position, track.unit)
                    _report(f, at, fault, f"{address:#x} of {found.name}", row, stamp, access)
                    return True
        return False

    def _check_set(self, f: Fragment, at: int, found: Range, where: Place, access: Access) -> None:
        """Find bytes that are read and hold nothing yet, and remember what is written."""
        assert found.is_set is not None  # noqa: S101
        bytes_ = where.in_bytes()
        if access.kind != WRITE:
            is_set = bytes_.get(found.is_set).reshape(-1)
            if np.count_nonzero(is_set) < is_set.size:
                address = (found.start & -_WORD) + bytes_.offset(int(is_set.argmin()), 1)
                f.warn(
                    at,
                    "uninitialised",
                    f"global memory {address:#x} of {found.name} is read; its contents were "
                    "declared unknown and nobody wrote them",
                )
        if access.kind in {WRITE, RELAXED_WRITE}:
            bytes_.put(found.is_set, True)

    # --- recording --------------------------------------------------------------------------------

    def _record(self, at: int, track: Track, where: Place, clocks: Clocks, access: Access) -> None:
        numbers = self._numbers_of(at, clocks, access)
        plane = track.plane(_PLANES[access.kind])
        if _PLANES[access.kind] == "read":
            before = where.get(plane)
            is_other = (self._agent_of[before] != self._agent_of[numbers]) & (before > 0)
            if np.count_nonzero(is_other):
                others = track.plane(_READ_BY_ANOTHER)
                where.put(others, np.where(is_other, before, where.get(others)))
        where.put(plane, numbers)
        if access.kind == WRITE:
            for name in ("updated", "polled", *_ALL_READS):
                old = track.known(name)
                if old is not None:
                    where.put(old, 0)

    def _numbers_of(self, at: int, clocks: Clocks, access: Access) -> int | Plane:
        """Return the numbers of the stamps of an access: one, or one for each granule."""
        agents, epochs = access.agents, access.epochs
        if not isinstance(agents, np.ndarray):
            return self._number(
                Stamp(access.kind, clocks, agents, int(epochs), at, access.is_async)
            )
        assert isinstance(epochs, np.ndarray)  # noqa: S101
        numbers = np.zeros(len(agents), np.int32)
        for agent in sorted(set(agents.tolist())):
            mine = agents == agent
            epoch = int(epochs[mine.argmax()])
            stamp = Stamp(access.kind, clocks, agent, epoch, at, access.is_async)
            numbers[mine] = self._number(stamp)
        return numbers

    def _number(self, stamp: Stamp) -> int:
        """Return the number of a stamp."""
        number = self._numbers.get(stamp)
        if number is None:
            number = self._numbers[stamp] = len(self._stamps)
            self._stamps.append(stamp)
            if number == len(self._agent_of):
                self._agent_of = np.pad(self._agent_of, (0, number))
            who = (id(stamp.clocks), stamp.agent)
            self._agent_of[number] = self._agents.setdefault(who, len(self._agents) + 1)
        return number


def _rows(access: Access, flat: NDArray[Any], number: int) -> list[int]:
    """Return the agents that must know of the accesses with a number."""
    if isinstance(access.rows, np.ndarray):
        return sorted(set(access.rows[flat == number].tolist()))
    return [access.rows]


def _grade(own: Clocks, row: int, stamp: Stamp, access: Access) -> str:
    """Return what is wrong with an earlier access: "race", "proxy", "constant" or nothing."""
    if CONSTANT_READ in {access.kind, stamp.kind}:
        return "constant"
    other, agent, epoch = stamp.clocks, stamp.agent, stamp.epoch
    is_own = other is own
    if is_own:
        is_known = bool(own.vector[row, agent] >= epoch)
    else:
        is_known = own.foreign.knows(own, row, other, agent, epoch)
    if not is_known:
        return "race"
    shadow = int(other.global_shadow_of[agent])
    if not access.is_async or stamp.is_async or not shadow or stamp.kind not in _WRITES:
        return ""
    if is_own:
        is_fenced = bool(own.vector[row, shadow] >= epoch)
    else:
        is_fenced = own.foreign.is_fenced(own, row, other, agent, epoch, shadow)
    return "" if is_fenced else "proxy"


_WRITES = frozenset({WRITE, RELAXED_WRITE})


def _report(
    f: Fragment, at: int, fault: str, place: str, row: int, stamp: Stamp, access: Access
) -> None:
    who, earlier = f.cluster.clocks.name(row), stamp.clocks.name(stamp.agent)
    where = f"\n  at {f.machine.program.place(stamp.at)}"
    if fault == "proxy":
        message = (
            f"no fence.proxy.async between the write of global memory {place} by {earlier} and its "
            f"asynchronous read"
        )
    elif fault == "constant":
        message = (
            f"{access.kind} of global memory {place} by {who}, and a {stamp.kind} by {earlier}: "
            "what ld.global.nc reads must not change while the kernel runs"
        )
    else:
        message = (
            f"{access.kind} of global memory {place} by {who} is not ordered after the "
            f"{stamp.kind} by {earlier}"
        )
    f.warn(at, "proxy" if fault == "proxy" else "race", message + where)
