# SPDX-License-Identifier: Apache-2.0
"""
Bulk copies of adjacent bytes, and the groups that stores belong to.

PTX ISA, sections "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.commit_group" and
"cp.async.bulk.wait_group". Each thread has separate groups: a lane only commits and waits for its
own copies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.formats.swizzle import Placement, placement
from jitgen.emulator.isa.bulk_reduce import Reduction, reduction_of
from jitgen.emulator.isa.bulk_transfer import (
    UNIT,
    Bytes,
    Issue,
    Mask,
    Target,
    check_global,
    check_parts,
    issues,
)
from jitgen.emulator.machine.clocks import AsyncUnit
from jitgen.emulator.machine.cta import OFFSET_MASK
from jitgen.emulator.machine.fragment import WARP, Fragment
from jitgen.emulator.machine.regions import Box
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

ALIGNMENT = 16
"""Addresses and sizes are multiples of it."""

_PARTS = (
    "cp async reduce bulk shared::cluster shared::cta global bulk_group "
    "mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint"
)


@emits("cp.async.bulk.prefetch")
def prefetch(builder: Builder, instruction: Instruction) -> None:
    """Do nothing, as there is no cache."""


@emits("cp.async.bulk")
def copy(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``[to], [from], size, [mbarrier] {, ctas}``, or ``[to], [from], size`` of a bulk
    group.
    """
    check_parts(instruction, _PARTS)
    _emit(builder, instruction, None)


@emits("cp.reduce.async.bulk")
def reduce(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [to], [from], size``.
    """
    operation, kind = reduction_of(instruction), instruction.parts[-1]
    check_parts(instruction, f"{_PARTS} {operation} noftz {kind}")
    try:
        _emit(builder, instruction, Reduction(operation, kind))
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _emit(builder: Builder, instruction: Instruction, reduction: Reduction | None) -> None:
    destination, source, size, *rest = instruction.operands
    to, origin = (part for part in instruction.parts if part.startswith(("global", "shared")))
    places = (builder.address(destination), builder.address(source), builder.value(size, "u32"))
    arguments = [builder.mask(instruction), f"({', '.join(places)})"]
    function: Callable[..., None]
    if to == "global":
        function = store_bytes
    else:
        function = load_bytes if origin == "global" else share_bytes
        arguments.append(builder.address(rest[0]))
    if function is load_bytes:
        is_multicast = instruction.has("multicast::cluster")
        arguments.append(builder.value(rest[1], "u16") if is_multicast else "None")
    else:
        arguments.append(builder.constant(reduction, "reduction"))
    builder.do(builder.call(function, *arguments))


@emits("cp.async.bulk.commit_group")
def commit(builder: Builder, instruction: Instruction) -> None:
    """Translate ``cp.async.bulk.commit_group``."""
    builder.do(builder.call(commit_group, builder.mask(instruction)))


@emits("cp.async.bulk.wait_group")
def wait(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``cp.async.bulk.wait_group{.read} n``: at most the latest n groups may be unfinished.

    With .read their sources have been read; their writes need not be visible yet.
    """
    keep, is_read = str(int(instruction.operands[0], 0)), str(instruction.has("read"))
    builder.do(builder.call(wait_group, builder.mask(instruction), keep, is_read))


# --- what they do ---------------------------------------------------------------------------------


def _operands(issue: Issue, places: tuple[PerThread, PerThread, PerThread]) -> tuple[int, int, int]:
    """Return destination, source and size of a thread's copy; fault if one is no multiple of 16."""
    to, origin, size = (issue.of(operand) for operand in places)
    for what, number in (("destination", to), ("source", origin), ("size", size)):
        issue.check_aligned(what, number, ALIGNMENT)
    return to, origin, size


def load_bytes(
    f: Fragment,
    at: int,
    mask: Mask,
    places: tuple[PerThread, PerThread, PerThread],
    barriers: PerThread,
    ctas: PerThread,
) -> None:
    """
    Copy from global to shared memory for each thread under the mask.

    Args:
        f: The fragment.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        places: Destinations, sources and sizes.
        barriers: Addresses of mbarriers that are signalled.
        ctas: For a multicast, a bit for each CTA that gets the data; else None.
    """
    for issue in issues(f, at, mask):
        to, origin, size = _operands(issue, places)
        chosen = None if ctas is None else issue.of(ctas)
        targets = issue.targets(to, issue.of(barriers), chosen)
        if size:
            source = issue.global_bytes(origin, size)
            issue.check_early_read(origin, size)
            issue.note_load(targets, Box(origin, (size,), (1,)))
            issue.load(targets, placement(to & OFFSET_MASK, size, 0), size, source.copy)


def share_bytes(
    f: Fragment,
    at: int,
    mask: Mask,
    places: tuple[PerThread, PerThread, PerThread],
    barriers: PerThread,
    reduction: Reduction | None,
) -> None:
    """Copy or reduce from shared memory to that of a CTA of the cluster; see `load_bytes`."""
    for issue in issues(f, at, mask):
        to, origin, size = _operands(issue, places)
        if f.cluster.cta(f, at, origin) is not f.cta:
            issue.fault(f"the source {origin:#x} is not in the CTA's own shared memory")
        (target,) = issue.targets(to, issue.of(barriers), None)
        if size:
            _share(issue, target, placement(to & OFFSET_MASK, size, 0), origin, reduction)


def _share(
    issue: Issue, target: Target, place: Placement, origin: int, reduction: Reduction | None
) -> None:
    """Copy or reduce between shared memories, as accesses of the barrier's agent."""
    f, at, barrier = issue.f, issue.at, target.barrier
    shared, own = target.cta.shared, f.cta.shared
    assert isinstance(place.where, slice)
    size = place.where.stop - place.where.start
    source = placement(origin & OFFSET_MASK, size, 0).where
    epoch = barrier.phase + 1
    own.note_async_read(f, at, source, barrier.agent, epoch, issue.agent, lane=issue.lane)
    is_atomic = reduction is not None
    shared.note_async_write(
        f, at, place.where, barrier.agent, epoch, issue.agent, is_atomic=is_atomic, lane=issue.lane
    )

    def act() -> None:
        data = own.take(f, at, source)
        if reduction is not None:
            data = _reduced(reduction, shared.take(f, at, place.where), data)
        shared.put(place.where, data)
        barrier.complete(f, at, size, target.by)

    f.machine.counts["bulk_shared_copies"] += 1
    f.machine.counts["bulk_shared_bytes"] += size
    f.cluster.queues.issue("load", act)


def store_bytes(
    f: Fragment,
    at: int,
    mask: Mask,
    places: tuple[PerThread, PerThread, PerThread],
    reduction: Reduction | None,
) -> None:
    """Copy or reduce from shared to global memory, in the thread's bulk group; see `load_bytes`."""
    check_global(f, at, mask)
    for issue in issues(f, at, mask, places):
        to, origin, size = _operands(issue, places)
        if f.cluster.cta(f, at, origin) is not f.cta:
            issue.fault(f"the source {origin:#x} is not in the CTA's own shared memory")
        if size:
            place = placement(origin & OFFSET_MASK, size, 0)
            write = _writer(issue, to, size, reduction)
            issue.note_store(Box(to, (size,), (1,)), is_atomic=reduction is not None)
            issue.store(place, size, write)


def _writer(
    issue: Issue, address: int, size: int, reduction: Reduction | None
) -> Callable[[Bytes], None]:
    """Return a function that writes or reduces bytes to global memory."""
    target = issue.global_bytes(address, size)

    def write(data: Bytes) -> None:
        target[:] = data if reduction is None else _reduced(reduction, target, data)

    return write


def _reduced(reduction: Reduction, old: Bytes, new: Bytes) -> Bytes:
    """Return the bytes `old` after a reduction with `new`."""
    first, second = (np.ascontiguousarray(data).view(reduction.dtype) for data in (old, new))
    return reduction.combine(first, second).view(np.uint8)


def commit_group(f: Fragment, at: int, mask: Mask) -> None:
    """Close the open group of each thread under the mask that ever issued a copy of a group."""
    for _, unit in _units(f, mask):
        unit.commit()


def wait_group(
    f: Fragment,
    at: int,
    mask: Mask,
    keep: int,
    is_read: bool = False,
) -> None:
    """
    Complete all groups of each thread except the latest `keep`; with `is_read` the thread is
    ordered only after the reads of their sources.
    """
    clocks = f.cluster.clocks
    for agent, unit in _units(f, mask):
        unit.complete(clocks, agent, keep, is_read=is_read)
        clocks.lanes.complete(clocks.vector, unit.agent)


def _units(f: Fragment, mask: Mask) -> list[tuple[int, AsyncUnit]]:
    """Return the agent of its warp, and the unit, for each bulk unit of threads under the mask."""
    units = f.cta.lane_units(UNIT)
    if not units:
        return []
    here = set(f.lanes.tolist() if mask is None else f.lanes[mask].tolist())
    first = f.cta.agent0
    return [
        (first + warp, unit) for (warp, lane), unit in units.items() if warp * WARP + lane in here
    ]
