# SPDX-License-Identifier: Apache-2.0
"""
The common part of all bulk copies: their targets, the accesses noted at issue, their completion.

A copy completes in one of two ways. One that signals an mbarrier acts as that barrier's agent in
the barrier's current phase. One of a bulk group acts as the bulk unit of its thread in the group
that is open. Either is noted when it is issued and done then or later, as the mode says.

PTX ISA, section "Data Movement and Conversion Instructions: Asynchronous copy operations", with
"Completion mechanisms" and "async proxy".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread, Vector
from jitgen.emulator.formats.swizzle import Placement
from jitgen.emulator.machine.access import READ, WRITE, Access
from jitgen.emulator.machine.barrier_use import Use, use
from jitgen.emulator.machine.barriers import MBarrier
from jitgen.emulator.machine.clocks import AsyncUnit
from jitgen.emulator.machine.cta import OFFSET_MASK, RANK_SHIFT, Cta
from jitgen.emulator.machine.early_access import check_early_read, check_previous_grid
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.global_history import UPDATE
from jitgen.emulator.machine.phases import Signaller
from jitgen.emulator.machine.regions import Box
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported

Mask = NDArray[np.bool_] | None
Bytes = NDArray[np.uint8]

UNIT = "bulk"
"""The kind of asynchronous unit that bulk groups belong to."""


def check_parts(instruction: Instruction, known: str) -> None:
    """Raise Unsupported for a part of the opcode that is not in `known`, blanks in between."""
    unknown = set(instruction.parts).difference(known.split())
    if unknown:
        raise Unsupported(f"modifier .{min(unknown)}")


@dataclass(frozen=True, slots=True)
class Target:
    """
    The place to which a copy that signals an mbarrier writes its data.

    Attributes:
        cta: The CTA to whose shared memory it writes.
        barrier: The barrier that it signals; for a pair of CTAs perhaps the other CTA's.
        by: The `Signaller` of the issuing agent at the issue.
    """

    cta: Cta
    barrier: MBarrier
    by: Signaller


@dataclass(frozen=True, slots=True)
class Issue:
    """
    One copy that one thread issues.

    Attributes:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        thread: The thread, as an index 0..n-1 of the fragment's.
        agent: Clock agent of its warp.
    """

    f: Fragment
    at: int
    thread: int
    agent: int

    def of(self, operand: PerThread) -> int:
        """Return the thread's value of an operand, a scalar or an array [n]."""
        return int(operand[self.thread] if isinstance(operand, np.ndarray) else operand)

    @property
    def lane(self) -> int:
        """The thread's number in its warp."""
        return int(self.f.threads.lane_ids[self.thread])

    def fault(self, message: str) -> NoReturn:
        """Raise MachineFault."""
        self.f.fault(self.at, message)

    def check_aligned(self, what: str, number: int, to: int) -> None:
        """Fault, if an address or a size is not a multiple of `to`."""
        if number % to:
            self.fault(f"{what} {number:#x} of a bulk copy is not a multiple of {to}")

    def check_early_read(self, address: int, size: int) -> None:
        """
        Report a read before the previous grid is known to have ended, unless no earlier grid can
        still be writing that memory.
        """
        thread = np.array([self.thread])
        check_early_read(self.f, self.at, thread, np.array([address]), size)

    def global_bytes(self, address: int, size: int) -> Bytes:
        """Return a view of global memory; fault where it is out of bounds."""
        try:
            return self.f.machine.memory.bytes(address, size)
        except IndexError as error:
            self.fault(str(error))

    def note_map(self, box: Box, agent: int, epoch: int) -> None:
        """Note that a unit reads a tensor map in global memory, through the tensor map proxy."""
        access = Access(READ, agent, epoch, self.agent)
        memory = self.f.machine.memory
        memory.note_box(self.f, self.at, box, access)
        memory.check_map(self.f, self.at, box, self.agent)

    def note_load(self, targets: list[Target], box: Box | None, of_map: Box | None = None) -> None:
        """Note what a copy that signals mbarriers reads in global memory."""
        agent, epoch = targets[0].barrier.agent, targets[0].barrier.phase + 1
        if of_map is not None:
            self.note_map(of_map, agent, epoch)
        if box is not None:
            access = Access(READ, agent, epoch, self.agent, is_async=True)
            self.f.machine.memory.note_box(self.f, self.at, box, access)

    def note_store(self, box: Box | None, of_map: Box | None = None, *, is_atomic: bool) -> None:
        """Note what a copy of the thread's open bulk group writes, and its tensor map."""
        unit = unit_of(self.f, self.agent, self.lane)
        if of_map is not None:
            self.note_map(of_map, unit.agent, unit.epoch())
        if box is None:
            return
        if not unit.writer:
            clocks = self.f.cluster.clocks
            unit.writer = clocks.agent(f"{clocks.name(unit.agent)} writes")
        kind = UPDATE if is_atomic else WRITE  # each reduction is relaxed, at .gpu
        access = Access(
            kind,
            unit.writer,
            unit.epoch(),
            self.agent,
            is_async=True,
            scope=Scope.GPU,
            rank=self.f.cta.rank,
        )
        self.f.machine.memory.note_box(self.f, self.at, box, access)

    # --- where ------------------------------------------------------------------------------------

    def targets(
        self, address: int, barrier: int, ctas: int | None, *, is_pair: bool = False
    ) -> list[Target]:
        """
        Return where a copy to shared memory goes.

        Args:
            address: Its destination; with `ctas` the rank in it does not count.
            barrier: Address of what it signals; with `ctas` at the same offset in each CTA.
            ctas: For a multicast, a bit for each CTA of the cluster.
            is_pair: Whether CTAs 2i and 2i + 1 work as one (cta_group::2); then `barrier` says in
                which of each pair the barrier lies.
        """
        f, at = self.f, self.at
        if ctas is None:
            pairs = [(address >> RANK_SHIFT, barrier >> RANK_SHIFT)]
            if pairs[0][0] != pairs[0][1] and not is_pair:
                self.fault(f"the copy to {address:#x} signals an mbarrier of another CTA")
        else:
            ranks = [rank for rank in range(ctas.bit_length()) if ctas >> rank & 1]
            side = barrier >> RANK_SHIFT & 1
            pairs = [(rank, rank & ~1 | side if is_pair else rank) for rank in ranks]
        targets = []
        for rank, home in pairs:
            cta = f.cluster.cta(f, at, rank << RANK_SHIFT)
            where = home << RANK_SHIFT | barrier & OFFSET_MASK
            found = use(f, at, where, np.array([self.agent]), Use.COMPLETE_LATER)
            targets.append(Target(cta, found, found.phases.signaller(self.agent)))
        return targets

    # --- when -------------------------------------------------------------------------------------

    def load(
        self, targets: list[Target], place: Placement, size: int, fetch: Callable[[], Bytes]
    ) -> None:
        """
        Copy to shared memory and signal mbarriers.

        Args:
            targets: CTAs that the data is copied to, each with the mbarrier that it signals.
            place: Place of the data in the shared memory of each target.
            size: Bytes that each barrier counts.
            fetch: Returns the bytes to copy; called when the copy is done.
        """
        f, at = self.f, self.at
        for target in targets:
            agent, epoch = target.barrier.agent, target.barrier.phase + 1
            target.cta.shared.note_async_write(
                f, at, place.where, agent, epoch, self.agent, lane=self.lane
            )

        def act() -> None:
            data = place.arranged(fetch())
            for target in targets:
                target.cta.shared.put(place.where, data)
                target.barrier.complete(f, at, size, target.by)

        f.machine.counts["bulk_loads"] += 1
        f.machine.counts["bulk_load_bytes"] += size
        f.cluster.queues.issue("load", act)

    def store(self, place: Placement, size: int, write: Callable[[Bytes], None]) -> None:
        """
        Copy from the CTA's shared memory to global memory, in the thread's open bulk group.

        Args:
            place: Place of the data in shared memory.
            size: Bytes that are copied.
            write: Takes these bytes when the copy is done.
        """
        f, at = self.f, self.at
        shared = f.cta.shared
        unit = unit_of(f, self.agent, self.lane)
        unit.used = unit.epoch()
        shared.note_async_read(
            f, at, place.where, unit.agent, unit.epoch(), self.agent, lane=self.lane
        )

        def act() -> None:
            write(place.arranged(shared.take(f, at, place.where)))
            f.machine.timeline.events += 1

        f.machine.counts["bulk_stores"] += 1
        f.machine.counts["bulk_store_bytes"] += size
        if f.machine.mode.defers("store"):
            unit.defer(act)
        else:
            act()


def issues(f: Fragment, at: int, mask: Mask, operands: Vector = ()) -> Iterator[Issue]:
    """
    Yield the copies that the threads under the mask issue.

    Args:
        f: The fragment.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        operands: Values that distinguish the copies of one warp: threads with equal values issue
            one copy together. Compilers let all lanes execute a store, and the hardware does it
            once for a warp. Without operands every thread issues its own copy, as if one lane is
            elected.
    """
    chosen = f.selected(mask)
    agents = f.agent_of[chosen].tolist()
    values = (f.spread(operand)[chosen].tolist() for operand in operands)
    told_apart = zip(agents, *values, strict=True)
    seen = set()
    for thread, agent, key in zip(chosen.tolist(), agents, told_apart, strict=True):
        if not operands or key not in seen:
            seen.add(key)
            yield Issue(f, at, thread, agent)


def check_global(f: Fragment, at: int, mask: Mask) -> None:
    """Report warps that copy to global memory before the previous grid is known to end."""
    if f.machine.is_early:
        check_previous_grid(f, at, f.selected_warps(mask))


def unit_of(f: Fragment, agent: int, lane: int) -> AsyncUnit:
    """Return the bulk unit of a lane; `agent` is the clock agent of its warp."""
    warp = agent - f.cta.agent0
    found = f.cta.units.get((UNIT, warp, lane))
    if found is None:
        found = f.cta.unit(UNIT, warp, lane)
        f.cluster.clocks.lanes.own(found.agent, agent, lane)
    return found
