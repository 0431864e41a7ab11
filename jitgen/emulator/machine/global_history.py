# SPDX-License-Identifier: Apache-2.0
"""
The accesses of global memory by all clusters of a launch: finds those that nothing orders.

Every access of one agent by one instruction in one epoch is a stamp with a number. Beside each
range of memory lie planes of such numbers: for each word the last ordinary write, the last relaxed
accesses, and the last reads of two agents. Words have 4 bytes; once single bytes of a range are
accessed its planes have a number for each byte. Memory that is not accessed costs nothing.

Memory that the host calls unknown holds nothing until the kernel has written it.

PTX ISA, sections "Memory Consistency Model" (data races, proxies), "ld" (.nc: the memory is read
only), "cp.async.bulk.wait_group" (.read: the sources have been read, no more).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Elements
from jitgen.emulator.machine.access import READ, RELAXED_READ, RELAXED_WRITE, WRITE, Access
from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.remote_clocks import covers
from jitgen.emulator.machine.scopes import Scope, are_morally_strong
from jitgen.emulator.machine.track import WORD, Place, Plane, Stamp, Track

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.global_memory import Range

CONSTANT_READ = "non-coherent read"
"""A read by ld.global.nc, of memory that must not be written during the kernel."""

UPDATE = "update"
"""A relaxed write that reads what was there: an atomic operation, a reduction."""

_PLANES = {
    READ: "read", CONSTANT_READ: "read", WRITE: "wrote", RELAXED_READ: "polled",
    RELAXED_WRITE: "updated", UPDATE: "updated",
}  # fmt: skip
_NARROWLY = " narrowly"
"""Behind the name of a plane: for relaxed accesses at a scope that does not include all threads."""

_READ_BY_ANOTHER = "read by another"
_ALL_READS = ("read", _READ_BY_ANOTHER)
_UPDATED_ELSEWHERE = "updated elsewhere"
_UPDATES = ("updated", f"updated{_NARROWLY}")
_POLLS = ("polled", f"polled{_NARROWLY}")
_EXCLUDES = {
    READ: ("wrote", *_UPDATES),
    CONSTANT_READ: ("wrote", *_UPDATES),
    RELAXED_READ: ("wrote",),
    RELAXED_WRITE: ("wrote", *_ALL_READS),
    UPDATE: ("wrote", *_ALL_READS),
    WRITE: ("wrote", *_UPDATES, *_POLLS, *_ALL_READS),
}
"""For each kind of access, the planes of accesses that it must be ordered after."""

_MUST_INCLUDE = {
    RELAXED_READ: (*_UPDATES, _UPDATED_ELSEWHERE),
    RELAXED_WRITE: (*_UPDATES, _UPDATED_ELSEWHERE, *_POLLS),
    UPDATE: (*_UPDATES, _UPDATED_ELSEWHERE, *_POLLS),
}
"""The planes of relaxed accesses that each kind must know of, or be morally strong with."""

WRITES = frozenset({WRITE, RELAXED_WRITE, UPDATE})
_UPDATING = WRITES - {WRITE}
_PLAIN_READS = frozenset({READ, CONSTANT_READ})


class GlobalHistory:
    """
    The accesses to global memory in one launch, or in all launches of devices that run together.

    Attributes:
        is_checked: Whether accesses are checked: if not, nothing is noted and nothing found.
        widest: The scope that includes all threads that access the memory.
    """

    def __init__(self) -> None:
        self.is_checked = True
        self.widest = Scope.GPU
        self._stamps: list[Stamp | None] = [None]
        self._numbers: dict[Stamp, int] = {}
        self._agent_of: NDArray[np.int32] = np.zeros(1024, np.int32)
        self._agents: dict[tuple[int, int], int] = {}
        self._cta_of: NDArray[np.int32] = np.zeros(1024, np.int32)
        self._ctas: dict[tuple[int, int], int] = {}
        self._tracks: dict[int, Track] = {}

    def access(self, f: Fragment, at: int, found: Range, place: Place, access: Access) -> None:
        """
        Note an access, and report what it is not ordered after.

        Args:
            f: The fragment that executes the instruction.
            at: Index of the instruction.
            found: The range of memory that is accessed.
            place: The bytes of it that are accessed.
            access: The agents and the kind of access; not joint. Arrays in it have an element for
                each access of a scattered place.
        """
        if not self.is_checked:
            return
        track = self._track(found)
        if not place.is_whole:
            track.split()
        where = place.within(track.start, track.unit)
        if isinstance(access.agents, np.ndarray):
            number = len(access.agents)
            access = access.part(np.repeat(np.arange(number), where.number // number))
        if found.is_set is not None:
            self._check_set(f, at, found, where, access)
        if track.is_only_read and access.kind in _PLAIN_READS:
            track.keep(where, self._numbers_of(at, f.cluster.clocks, access))
            if not track.is_full:
                return
        self._catch_up(track)
        self._check(f, at, found, track, where, access)
        self._record(at, track, where, f.cluster.clocks, access)

    def _track(self, found: Range) -> Track:
        """Return the planes of a range, made on first use."""
        track = self._tracks.get(found.start)
        if track is None:
            track = self._tracks[found.start] = Track(found.start, found.stop)
        return track

    def _catch_up(self, track: Track) -> None:
        """Put the kept reads of a range into its planes, and keep none from now on."""
        track.is_only_read = False
        for where, numbers in track.kept:
            self._put_read(track, where, numbers)
        track.kept.clear()

    def last_writes(self, found: Range, place: Place) -> list[Stamp]:
        """Return the last writes of the bytes of a range, each once."""
        track = self._tracks.get(found.start)
        if track is None:
            return []
        where = place.within(track.start, track.unit)
        planes = (track.known(name) for name in ("wrote", *_UPDATES))
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
        self, f: Fragment, at: int, found: Range, track: Track, where: Place, access: Access
    ) -> None:
        """Report an earlier access that must be ordered before this one and is not."""
        for name in _EXCLUDES[access.kind]:
            plane = track.known(name)
            if plane is not None:
                ids = where.get(plane)
                if np.count_nonzero(ids) and self._find(f, at, found, track, where, ids, access):
                    return
        for name in _MUST_INCLUDE.get(access.kind, ()):
            plane = track.known(name)
            if plane is not None and (access.scope < self.widest or name.endswith(_NARROWLY)):
                ids = where.get(plane)
                if np.count_nonzero(ids) and self._find(f, at, found, track, where, ids, access):
                    return

    def _find(
        self,
        f: Fragment,
        at: int,
        found: Range,
        track: Track,
        where: Place,
        ids: Plane,
        access: Access,
    ) -> bool:
        """
        Report one of the earlier accesses with the numbers `ids` if `_grade` finds a fault in it;
        return whether there is one.
        """
        flat = ids.reshape(-1)
        first = int(flat[0])
        numbers = [first] if not np.count_nonzero(flat != first) else np.unique(flat).tolist()
        for number in numbers:
            stamp = self._stamps[number]
            if stamp is None:
                continue
            if _may_meet(f.cluster.clocks, stamp, access):
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
        """Report bytes that are read before they were written, and remember what is written."""
        assert found.is_set is not None
        bytes_ = where.in_bytes()
        if access.kind not in {WRITE, RELAXED_WRITE}:
            is_set = bytes_.get(found.is_set).reshape(-1)
            if np.count_nonzero(is_set) < is_set.size:
                address = (found.start & -WORD) + bytes_.offset(int(is_set.argmin()), 1)
                f.warn(
                    at,
                    "uninitialised",
                    f"global memory {address:#x} of {found.name} is read; its contents were "
                    "declared unknown and were never written",
                )
        if access.kind in WRITES:
            bytes_.put(found.is_set, True)

    # --- recording --------------------------------------------------------------------------------

    def _record(self, at: int, track: Track, where: Place, clocks: Clocks, access: Access) -> None:
        numbers = self._numbers_of(at, clocks, access)
        if access.kind in _PLAIN_READS:
            self._put_read(track, where, numbers)
            return
        name = _PLANES[access.kind]
        if access.kind != WRITE and access.scope < self.widest:
            name += _NARROWLY
        elif access.kind in _UPDATING:
            self._keep_elsewhere(track, where, numbers)
        where.put(track.plane(name), numbers)
        if access.kind == WRITE:
            for name in (*_UPDATES, _UPDATED_ELSEWHERE, *_POLLS, *_ALL_READS):
                old = track.known(name)
                if old is not None:
                    where.put(old, 0)

    def _keep_elsewhere(self, track: Track, where: Place, numbers: int | Plane) -> None:
        """Keep the last updates that an update replaces, where those are of another CTA."""
        plane = track.known("updated")
        if plane is None:
            return
        before = where.get(plane)
        is_other = (self._cta_of[before] != self._cta_of[numbers]) & (before > 0)
        if np.count_nonzero(is_other):
            others = track.plane(_UPDATED_ELSEWHERE)
            where.put(others, np.where(is_other, before, where.get(others)))

    def _put_read(self, track: Track, where: Place, numbers: int | Plane) -> None:
        """Note the numbers of a read; those of another agent that it replaces are kept, too."""
        plane = track.plane("read")
        before = where.get(plane)
        is_other = (self._agent_of[before] != self._agent_of[numbers]) & (before > 0)
        if np.count_nonzero(is_other):
            others = track.plane(_READ_BY_ANOTHER)
            where.put(others, np.where(is_other, before, where.get(others)))
        where.put(plane, numbers)

    def _numbers_of(self, at: int, clocks: Clocks, access: Access) -> int | Plane:
        """Return the numbers of the stamps of an access: one, or one for each granule."""
        agents, epochs = access.agents, access.epochs
        how = (at, access.is_async, access.scope, access.rank)
        if not isinstance(agents, np.ndarray):
            return self._number(Stamp(access.kind, clocks, agents, int(epochs), *how))
        assert isinstance(epochs, np.ndarray)
        numbers = np.zeros(len(agents), np.int32)
        for agent in sorted(set(agents.tolist())):
            mine = agents == agent
            epoch = int(epochs[mine.argmax()])
            stamp = Stamp(access.kind, clocks, agent, epoch, *how)
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
                self._cta_of = np.pad(self._cta_of, (0, number))
            who, place = (id(stamp.clocks), stamp.agent), (id(stamp.clocks), stamp.rank)
            self._agent_of[number] = self._agents.setdefault(who, len(self._agents) + 1)
            self._cta_of[number] = self._ctas.setdefault(place, len(self._ctas) + 1)
        return number


def _rows(access: Access, flat: Elements, number: int) -> list[int]:
    """Return the agents that must be ordered after the accesses with the stamp `number`."""
    if isinstance(access.rows, np.ndarray):
        return sorted(set(access.rows[flat == number].tolist()))
    return [access.rows]


def _may_meet(own: Clocks, stamp: Stamp, access: Access) -> bool:
    """Return whether two accesses need no order: both are relaxed, and they are morally strong."""
    if access.kind not in _MUST_INCLUDE or stamp.kind not in _MUST_INCLUDE:
        return False
    is_near = stamp.clocks is own
    return are_morally_strong(
        access.scope,
        stamp.scope,
        same_cta=is_near and stamp.rank == access.rank,
        same_cluster=is_near,
        same_device=stamp.clocks.grid.stream.device == own.grid.stream.device,
    )


def _grade(own: Clocks, row: int, stamp: Stamp, access: Access) -> str:
    """Return what is wrong with an earlier access: "race", "proxy", "constant" or nothing."""
    is_constant = CONSTANT_READ in {access.kind, stamp.kind}
    other, agent, epoch = stamp.clocks, stamp.agent, stamp.epoch
    if is_constant and other.grid is own.grid:
        return "constant"
    is_own = other is own
    if is_own:
        is_known = bool(own.vector[row, agent] >= epoch)
    else:
        is_known = own.remote.knows(own, row, other, agent, epoch)
    if not is_known:
        return "race"
    if is_constant:
        return "" if _is_apart(own, row, stamp, access) else "constant"
    shadow = int(other.global_shadow_of[agent])
    if not access.is_async or stamp.is_async or not shadow or stamp.kind not in WRITES:
        return ""
    if is_own:
        is_fenced = bool(own.vector[row, shadow] >= epoch)
    else:
        is_fenced = own.remote.is_fenced(own, row, other, agent, epoch, shadow)
    return "" if is_fenced else "proxy"


def _is_apart(own: Clocks, row: int, stamp: Stamp, access: Access) -> bool:
    """Return whether one of two ordered accesses is outside of the other's launch."""
    other = stamp.clocks
    if access.kind == CONSTANT_READ:
        return covers(own.grid.before, other, stamp.agent, stamp.epoch)
    return any(other.grid.is_over_by(x.released) for x in own.remote.known(own, row))


def _report(
    f: Fragment, at: int, fault: str, place: str, row: int, stamp: Stamp, access: Access
) -> None:
    who, earlier = f.cluster.clocks.name(row), stamp.clocks.name(stamp.agent)
    program = stamp.clocks.grid.program or f.machine.program
    where = f"\n  at {program.place(stamp.at)}"
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
        if access.kind in _MUST_INCLUDE and stamp.kind in _MUST_INCLUDE:
            message += f": at {access.scope} and {stamp.scope} neither makes the other atomic"
    kind = "proxy" if fault == "proxy" else "race"
    f.warn(at, kind, message + where)
