# SPDX-License-Identifier: Apache-2.0
"""
mbarrier objects: how they are made and end, arrivals and transactions.

From mbarrier.init to mbarrier.inval the eight bytes are a barrier: another init of it is undefined,
and so is any other access to them (`jitgen.emulator.machine.live_barriers`).

PTX ISA, section "Parallel Synchronization and Communication Instructions: mbarrier". All threads of
a fragment that name one barrier arrive there at once. The state that an arrival returns is opaque
in PTX; here it is the number of completed phases from bit 20 on, pending arrivals below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.machine.barrier_use import Use, use
from jitgen.emulator.machine.barriers import MAX_COUNT, MBarrier
from jitgen.emulator.machine.fragment import Fragment, agree
from jitgen.emulator.machine.lanes import EVERYONE
from jitgen.emulator.machine.live_barriers import MBARRIER_BYTES
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

PHASE_SHIFT = 20
"""First bit of the number of completed phases in the state that an arrival returns."""

_MODIFIERS = (
    "mbarrier init inval arrive arrive_drop expect_tx complete_tx try_wait test_wait parity "
    "noComplete release acquire relaxed cta cluster shared shared::cta shared::cluster b64"
)


def check_parts(instruction: Instruction) -> None:
    """Raise Unsupported for a modifier that no mbarrier instruction has."""
    unknown = set(instruction.parts).difference(_MODIFIERS.split())
    if unknown:
        raise Unsupported(f"modifier .{min(unknown)}")


@emits("mbarrier.init")
def init(builder: Builder, instruction: Instruction) -> None:
    """Translate ``mbarrier.init.shared.b64 [address], count``."""
    check_parts(instruction)
    address = builder.address(instruction.operands[0])
    count = builder.value(instruction.operands[1], "u32")
    builder.do(builder.call(initialise, builder.mask(instruction), address, count))


def initialise(f: Fragment, at: int, mask: Mask, addresses: PerThread, counts: PerThread) -> None:
    """Make barrier objects of shared memory of this CTA."""
    indices = f.selected(mask)
    if not len(indices):
        return
    asked = f.spread(counts)[indices].tolist()
    offsets = f.cta.shared.offsets(f, at, f.spread(addresses)[indices], MBARRIER_BYTES)
    agents = f.agent_of[indices]
    for i, (offset, count) in enumerate(zip(offsets.tolist(), asked, strict=True)):
        use(f, at, f.cta.base | offset, agents[i : i + 1], Use.INIT, count)
    f.cta.shared.note_mbarriers(f, at, offsets, indices)


@emits("mbarrier.inval")
def inval(builder: Builder, instruction: Instruction) -> None:
    """Translate ``mbarrier.inval.shared.b64 [address]``."""
    check_parts(instruction)
    address = builder.address(instruction.operands[0])
    builder.do(builder.call(invalidate, builder.mask(instruction), address))


def invalidate(f: Fragment, at: int, mask: Mask, addresses: PerThread) -> None:
    """End barrier objects: their bytes are plain shared memory again."""
    for group in group_threads(f, at, mask, addresses, Use.INVAL):
        indices = np.arange(f.n)[group.indices][:1]
        f.cta.shared.note_mbarriers(f, at, np.array([group.barrier.offset]), indices)


@dataclass(frozen=True, slots=True)
class Group:
    """
    Threads of a fragment that name one barrier.

    Attributes:
        barrier: The barrier.
        indices: The threads, 0..n-1, or a slice where it is all of them.
        number: Number of the threads.
        agents: Clock agents of their warps.
    """

    barrier: MBarrier
    indices: NDArray[np.int64] | slice
    number: int
    agents: NDArray[np.int64]


def group_threads(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, what: Use = Use.SIGNAL
) -> Iterator[Group]:
    """
    Yield the threads under the mask in groups that name one barrier, which all use as `what` says.

    Raises:
        MachineFault: As `use` does.
    """
    addresses = f.spread(addresses)
    if mask is None and agree(addresses):
        barrier = use(f, at, int(addresses[0]), f.agents, what)
        yield Group(barrier, slice(None), f.n, f.agents)
        return
    chosen = f.selected(mask)
    named = addresses[chosen]
    for address in sorted(set(named.tolist())):
        indices = chosen[named == address]
        agents = f.agents_of(indices)
        barrier = use(f, at, address, agents, what)
        yield Group(barrier, indices, len(indices), agents)


@emits("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``mbarrier.arrive`` with a count, ``.expect_tx`` with bytes, ``.noComplete``.

    ``mbarrier.arrive_drop`` is the same and takes the arrival off the count of the phases to come.
    """
    check_parts(instruction)
    operands = list(instruction.operands)
    state = "_" if operands[0].startswith("[") else operands.pop(0)
    address = builder.address(operands[0])
    extra = builder.value(operands[1], "u32") if len(operands) > 1 else "1"
    how = builder.constant(
        Arrival(
            has_bytes=instruction.has("expect_tx"),
            is_relaxed=instruction.has("relaxed"),
            may_complete=not instruction.has("noComplete"),
            is_dropped=instruction.has("arrive_drop"),
        ),
        "arrival",
    )
    call = builder.call(arrive_at, builder.mask(instruction), address, extra, how)
    if state == "_":
        builder.do(call)
    else:
        builder.define(state, call, "b64", instruction)


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    The modifiers of an arrival.

    Attributes:
        has_bytes: Whether the operand is the number of bytes that the phase expects more (and the
            arrivals are 1); else it is the number of arrivals.
        is_relaxed: Whether it releases only accesses before the last fence.
        may_complete: Whether the arrival may complete the phase; not with .noComplete.
        is_dropped: Whether later phases expect one arrival less.
    """

    has_bytes: bool = False
    is_relaxed: bool = False
    may_complete: bool = True
    is_dropped: bool = False


def arrive_at(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, extra: PerThread, how: Arrival
) -> NDArray[np.uint64]:
    """Arrive for each thread under the mask; return the states [n]."""
    extra = f.spread(extra)
    states = np.zeros(f.n, np.uint64)
    for group in group_threads(f, at, mask, addresses):
        barrier, total = group.barrier, int(np.add.reduce(extra[group.indices]))
        phases = barrier.phases
        by = (phases.signaller if how.is_relaxed else phases.releaser)(group.agents)
        states[group.indices] = barrier.phase << PHASE_SHIFT | barrier.pending
        if how.has_bytes:
            barrier.expect(f, at, total)
        arrivals = group.number if how.has_bytes else total
        if not how.may_complete and arrivals >= barrier.pending:
            f.fault(at, f"mbarrier.arrive.noComplete completes the phase of {barrier.name}")
        if how.is_dropped:
            barrier.count -= arrivals
        clocks = f.cluster.clocks
        if how.is_relaxed:
            reach = Scope.CTA if barrier.cta is f.cta else Scope.CLUSTER
            clock = clocks.released_by_fence(group.agents, reach)
        elif group.number < f.n or not f.is_whole():
            clock = clocks.release_alone(group.agents, _members(f, group))
        else:
            clock = clocks.release(group.agents)
        barrier.arrive(f, at, arrivals, clock, by, None if how.is_relaxed else group.agents)
    return states


def _members(f: Fragment, group: Group) -> list[int]:
    """
    Return for each warp of a group the mask of its lanes in the group; EVERYONE if it has all
    living lanes.
    """
    indices = np.arange(f.n)[group.indices] if isinstance(group.indices, slice) else group.indices
    starts = np.searchsorted(f.agent_of[indices], group.agents)
    bits = np.add.reduceat(np.left_shift(1, f.threads.lane_ids[indices]), starts)
    counts = np.diff(starts, append=len(indices))
    is_all = counts == f.cta.live[group.agents - f.cta.agent0]
    members: list[int] = np.where(is_all, EVERYONE, bits).tolist()
    return members


@emits("mbarrier.expect_tx", "mbarrier.complete_tx")
def transact(builder: Builder, instruction: Instruction) -> None:
    """Translate ``mbarrier.expect_tx [address], bytes`` and ``mbarrier.complete_tx``."""
    check_parts(instruction)
    address, count = instruction.operands
    does_expect = instruction.has("expect_tx")
    function: Callable[..., None] = expect_bytes if does_expect else complete_bytes
    arguments = (builder.mask(instruction), builder.address(address), builder.value(count, "u32"))
    builder.do(builder.call(function, *arguments))


def expect_bytes(f: Fragment, at: int, mask: Mask, addresses: PerThread, bytes_: PerThread) -> None:
    """Add to the bytes that the phase of each thread's barrier expects."""
    for group in group_threads(f, at, mask, addresses):
        group.barrier.expect(f, at, int(f.spread(bytes_)[group.indices].sum()))


def complete_bytes(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, bytes_: PerThread
) -> None:
    """Count bytes of each thread's barrier as arrived, without a copy."""
    for group in group_threads(f, at, mask, addresses):
        by = group.barrier.phases.signaller(group.agents)
        group.barrier.complete(f, at, int(f.spread(bytes_)[group.indices].sum()), by)


@emits("mbarrier.pending_count")
def pending(builder: Builder, instruction: Instruction) -> None:
    """Translate ``mbarrier.pending_count.b64 count, state``."""
    count, state = instruction.operands
    shown = f"({builder.value(state, 'b64')} & {builder.literal(MAX_COUNT, 'b64')})"
    builder.define(
        count, f"f.spread({shown}).astype({builder.constant(np.uint32)})", "b32", instruction
    )
