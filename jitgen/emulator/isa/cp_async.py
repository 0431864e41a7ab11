# SPDX-License-Identifier: Apache-2.0
"""
Asynchronous copies of single threads, from global to shared memory: ``cp.async``.

They are not bulk copies: each thread copies 4, 8 or 16 bytes, through the generic proxy, and waits
for groups of its copies or lets them arrive at an mbarrier. Threads of a warp that copy together
share a unit: a wait counts for it if all of them wait, and then each sees what it copied itself.

PTX ISA, sections "cp.async", "cp.async.commit_group", "cp.async.wait_group, cp.async.wait_all",
"cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.isa.mbarrier import group_threads
from jitgen.emulator.isa.memory import Mask
from jitgen.emulator.machine.access import READ, WRITE, Access
from jitgen.emulator.machine.barrier_use import Use
from jitgen.emulator.machine.clocks import AsyncUnit
from jitgen.emulator.machine.early_access import check_early_read
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.lanes import MANY
from jitgen.emulator.machine.shared_history import WORD
from jitgen.emulator.machine.shared_memory import SharedMemory
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

UNIT = "cp.async"

_PARTS = frozenset({"cp", "async", "ca", "cg", "shared", "shared::cta", "global"})
_SIZES = (4, 8, 16)


@emits("cp.async.ca", "cp.async.cg")
def emit_copy(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.async.cg.shared.global [to], [from], 16{, bytes that are read |
    ignore-predicate}``.
    """
    unknown = (part for part in instruction.parts if part not in _PARTS and part[:2] != "L2")
    for part in unknown:
        raise Unsupported(f"modifier .{part}")
    target, source, size, *rest = instruction.operands
    if int(size) not in _SIZES:
        raise Unsupported(f"{size} bytes")
    if instruction.has("L2::cache_hint"):
        rest.pop()
    read = size
    if rest:
        is_predicate = rest[0].startswith(("%p", "!"))
        value = builder.value(rest[0], "pred" if is_predicate else "b32")
        read = f"np.where({value}, 0, {size})" if is_predicate else value
    arguments = (builder.address(target), builder.address(source), size, read)
    builder.do(builder.call(copy, builder.mask(instruction), *arguments))


def copy(
    f: Fragment,
    at: int,
    mask: Mask,
    targets: PerThread,
    sources: PerThread,
    size: int,
    read: PerThread,
) -> None:
    """
    Start the copies of the threads under the mask.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        targets: Shared addresses, [n] or a scalar.
        sources: Global addresses, likewise.
        size: Bytes that are written.
        read: Bytes of them that are read, likewise; zeros are written for the others.

    Raises:
        MachineFault: Out of bounds or not aligned.
    """
    threads = f.selected(mask)
    if not len(threads):
        return
    shared = f.cta.shared
    offsets = shared.offsets(f, at, f.spread(targets)[threads], size)
    origins = f.spread(sources)[threads].astype(np.int64)
    sizes = np.minimum(f.spread(read)[threads].astype(np.int64), size)
    has_any = sizes > 0
    check_early_read(f, at, threads[has_any], origins[has_any], int(sizes.max()))
    agents = f.agent_of[threads]
    lanes = f.threads.lane_ids[threads]
    for agent in np.unique(agents).tolist():
        mine = agents == agent
        unit = _unit_of(f, agent, lanes[mine])
        f.cluster.clocks.give_shadow(unit.agent)
        _note_sources(
            f, at, origins[mine], sizes[mine], Access(READ, unit.agent, unit.epoch(), agent)
        )
        access = Access(WRITE, unit.agent, unit.epoch(), agent, lanes=lanes[mine])
        shared.history.access(f, at, offsets[mine], size, access)
        job = partial(_copy, f, at, shared, offsets[mine], origins[mine], size, sizes[mine])
        if f.machine.mode.defers("load"):
            unit.defer(job)
        else:
            job()


def _note_sources(
    f: Fragment, at: int, sources: NDArray[np.int64], read: NDArray[np.int64], access: Access
) -> None:
    """Note reads of the bytes of global memory that are copied, word by word."""
    whole = sources[read > 0] & -WORD
    for first in range(0, int(read.max(initial=0)), WORD):
        addresses = whole[read[read > 0] > first] + first
        f.machine.memory.note_words(f, at, addresses, access)


def _copy(
    f: Fragment,
    at: int,
    shared: SharedMemory,
    offsets: NDArray[np.int64],
    sources: NDArray[np.int64],
    size: int,
    read: NDArray[np.int64],
) -> None:
    """Do the copies of one warp."""
    data = np.zeros((len(offsets), size), np.uint8)
    whole = read == size
    if whole.any():
        data[whole] = f.machine.memory.load(f, at, sources[whole], size)
    for i in np.flatnonzero(~whole & (read > 0)).tolist():
        addresses = sources[i] + np.arange(read[i])
        data[i, : read[i]] = f.machine.memory.load(f, at, addresses, 1)[:, 0]
    shared.put(offsets[:, None] + np.arange(size), data)


@emits("cp.async.commit_group")
def emit_commit(builder: Builder, instruction: Instruction) -> None:
    """Translate ``cp.async.commit_group``."""
    builder.do(builder.call(commit, builder.mask(instruction)))


def commit(f: Fragment, at: int, mask: Mask) -> None:
    """Close the open groups of the threads under the mask."""
    del at
    for _, unit, _ in _units(f, mask):
        unit.commit()


@emits("cp.async.wait_group", "cp.async.wait_all")
def emit_wait(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.async.wait_group n`` and ``cp.async.wait_all``, which also waits for the open
    group.
    """
    keep = instruction.operands[0] if instruction.operands else "-1"
    builder.do(builder.call(wait, builder.mask(instruction), keep))


def wait(f: Fragment, at: int, mask: Mask, keep: int) -> None:
    """Complete all groups of each thread except the last `keep`; -1: also the open one."""
    del at
    clocks = f.cluster.clocks
    for agent, unit, is_whole in _units(f, mask):
        if keep < 0:
            unit.commit()
        if is_whole:
            unit.complete(clocks, agent, max(keep, 0))
            clocks.lanes.complete(clocks.vector, unit.agent)


@emits("cp.async.mbarrier.arrive")
def emit_arrive(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.async.mbarrier.arrive.noinc [address]``.

    Without ``.noinc`` the arrival is one more than the barrier's count foresees.
    """
    call = builder.call(
        arrive,
        builder.mask(instruction),
        builder.address(instruction.operands[0]),
        str(instruction.has("noinc")),
    )
    builder.do(call)


def arrive(f: Fragment, at: int, mask: Mask, addresses: PerThread, is_counted: bool) -> None:
    """For each thread under the mask, arrive at its barrier when its copies so far are done."""
    clocks = f.cluster.clocks
    for group in group_threads(f, at, mask, addresses, Use.COPY_LATER):
        barrier, by = group.barrier, group.barrier.phases.signaller(group.agents)
        clock = np.zeros(len(clocks.vector), np.int64)
        arriving = np.zeros(f.n, np.bool_)
        arriving[group.indices] = True
        units = [unit for _, unit, is_whole in _units(f, arriving) if is_whole]
        for unit in units:
            clock[unit.agent] = unit.epoch()
            barrier.users.note_work(unit.agent, unit.epoch())
            unit.split()
        if not is_counted:
            barrier.expect_arrivals(f, at, group.number)
        signal = partial(barrier.arrive, f, at, group.number, clock, by)
        f.cluster.queues.issue("load", partial(_finish, units, signal))


def _finish(units: list[AsyncUnit], signal: Callable[[], None]) -> None:
    """Do what units have started, then signal."""
    for unit in units:
        unit.drain()
    signal()


def _unit_of(f: Fragment, agent: int, lanes: NDArray[np.int64]) -> AsyncUnit:
    """Return the unit of some lanes of a warp that copy together."""
    warp, members = agent - f.cta.agent0, int(np.left_shift(1, lanes).sum())
    found = f.cta.units.get((UNIT, warp, members))
    if found is None:
        found = f.cta.unit(UNIT, warp, members)
        lane = int(lanes[0]) if len(lanes) == 1 else MANY
        f.cluster.clocks.lanes.own(found.agent, agent, lane, writes=True)
    return found


def _units(f: Fragment, mask: Mask) -> list[tuple[int, AsyncUnit, bool]]:
    """
    Return each unit that has threads under the mask: its warp's agent, the unit, and whether all of
    its threads are under the mask.
    """
    found = []
    for (warp, members), unit in f.cta.lane_units(UNIT).items():
        mine = f.threads.members(warp, mask) & members
        if mine:
            found.append((f.cta.agent0 + warp, unit, mine == members))
    return found
