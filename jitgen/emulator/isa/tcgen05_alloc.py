# SPDX-License-Identifier: Apache-2.0
"""
Allocation of tensor memory: tcgen05.alloc, dealloc and relinquish_alloc_permit.

An allocation blocks until the columns are free in the SM; if no warp can free them any more, that
is a deadlock. One warp of each CTA of a pair takes part in an allocation of the pair, and the first
waits here for the second, as it may on hardware ("could block"): a kernel that relies on the first
going on deadlocks. Before a pair frees its columns, no access to them by either CTA may be under
way.

PTX ISA, sections "tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit" and "Issue
Granularity", whose examples say what a pair must synchronise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread
from jitgen.emulator.isa.tcgen05_group import check_parts, group_of, num_ctas
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.fragment import Fragment, Wait
from jitgen.emulator.machine.tensor_columns import COLUMNS, choose, turn_of
from jitgen.emulator.machine.tensor_memory import MIN_COLUMNS, Request
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits

Mask = NDArray[np.bool_] | None

_WORD = 4


@emits("tcgen05.alloc", whole_warp=True, starts_block=True, is_wait=True)
def alloc(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], columns``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned shared::cta b32")
    address, columns = instruction.operands
    arguments = builder.address(address), builder.value(columns, "u32")
    ctas = str(num_ctas(builder, instruction))
    _call(builder, builder.call(allocate, builder.mask(instruction), *arguments, ctas))


@emits("tcgen05.dealloc", whole_warp=True, starts_block=True, is_wait=True)
def dealloc(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.dealloc.cta_group::1.sync.aligned.b32 address, columns``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned b32")
    arguments = [builder.value(operand, "u32") for operand in instruction.operands]
    ctas = str(num_ctas(builder, instruction))
    _call(builder, builder.call(deallocate, builder.mask(instruction), *arguments, ctas))


def _call(builder: Builder, call: str) -> None:
    """Write a call that may return a wait, to be executed again after it."""
    outcome = builder.temporary()
    builder.do(f"{outcome} = {call}")
    builder.do(f"if {outcome} is not None: return {outcome}")


@emits("tcgen05.relinquish_alloc_permit", whole_warp=True)
def relinquish(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned``."""
    check_parts(instruction, "cta_group::1 cta_group::2 sync aligned")
    num_ctas(builder, instruction)
    builder.do(builder.call(relinquish_permit, builder.mask(instruction)))


def relinquish_permit(f: Fragment, at: int, mask: Mask) -> None:
    """Give up the permit of this CTA to allocate tensor memory."""
    if mask is None or mask.any():
        f.cta.tensor.may_allocate = False


def _warps(f: Fragment, mask: Mask) -> list[tuple[int, NDArray[np.int64]]]:
    """Return each warp under the mask and its threads, as indices 0..n-1."""
    selected = f.selected(mask)
    warps = f.lanes[selected] // 32
    return [(warp, selected[warps == warp]) for warp in np.unique(warps).tolist()]


def _one(f: Fragment, at: int, values: Integers) -> int:
    """Return the one value that all threads of a warp have; fault if they differ."""
    if (values != values[0]).any():
        f.fault(at, "the threads of the warp disagree about an operand")
    return int(values[0])


def _until(at: int, requests: list[Request]) -> Wait | None:
    """Return a wait, at instruction `at`, for requests that are not done; None if all are."""
    waiting = [request for request in requests if not request.is_done]
    if not waiting:
        return None

    def is_over() -> bool:
        return any(request.is_done or request.may_go_on() for request in waiting)

    return Wait(at, is_over, describe=lambda: "; ".join(map(str, waiting)))


# --- allocation ----------------------------------------------------------------------------------


def allocate(
    f: Fragment, at: int, mask: Mask, address: PerThread, columns: PerThread, ctas: int
) -> Wait | None:
    """
    Allocate columns for each warp and write the address of the first to shared memory; return the
    wait of warps that cannot have them yet, or None.
    """
    tensor, asked = f.cta.tensor, []
    for warp, threads in _warps(f, mask):
        request = tensor.calls.get((warp, at))
        if request is None:
            number = _one(f, at, f.spread(columns)[threads])
            request = _ask(f, at, number, group_of(f, at, ctas), f.cta.agent0 + warp)
            tensor.calls[warp, at] = request
        _grant(f, at, request.group)
        asked.append((warp, threads, request))
    wait = _until(at, [request for _, _, request in asked])
    if wait is not None:
        return wait
    for warp, threads, request in asked:
        del tensor.calls[warp, at]
        target = np.uint32(_one(f, at, f.spread(address)[threads]))
        offsets = f.cta.shared.offsets(f, at, target, _WORD)
        data = np.array([[request.first]], np.uint32).view(np.uint8)
        f.cta.shared.generic_write(f, at, offsets, data, threads[:1])
        clocks = f.cluster.clocks
        clocks.lanes.wait(clocks.vector, np.array([f.cta.agent0 + warp]))
    return None


def _ask(f: Fragment, at: int, columns: int, group: list[Cta], agent: int) -> Request:
    """
    Return a request for columns of tensor memory, added to the queue of the fragment's CTA.

    Args:
        f: The requesting fragment.
        at: Number of its instruction.
        columns: Number of columns.
        group: The CTA, or both CTAs of its pair, which all get the same columns.
        agent: Number of the requesting warp.
    """
    tensor = f.cta.tensor
    if columns & (columns - 1) or not MIN_COLUMNS <= columns <= COLUMNS:
        f.fault(at, f"{columns} columns, which is not a power of two from 32 to 512")
    if not tensor.may_allocate:
        f.fault(at, "this CTA has relinquished its permit to allocate tensor memory")
    if columns > tensor.last_allocated:
        f.warn(
            at,
            "allocation",
            f"{columns} columns after {tensor.last_allocated}: the number should not increase "
            "between two allocations of a CTA",
        )
    tensor.last_allocated = columns
    request = Request("tcgen05.alloc", columns, agent, group, f.cta)
    tensor.asking.append(request)
    return request


def _grant(f: Fragment, at: int, group: list[Cta]) -> None:
    """Allocate the same columns in every CTA of the group, as long as all ask and can have them."""
    while all(cta.tensor.asking for cta in group):
        heads = [cta.tensor.asking[0] for cta in group]
        columns = heads[0].columns
        if columns != heads[-1].columns:
            f.fault(at, f"the CTAs of a pair allocate {columns} and {heads[-1].columns} columns")
        is_taken = np.logical_or.reduce([cta.tensor.sm.is_taken for cta in group])
        first = choose(is_taken, columns, turn_of(group[0], len(group)))
        for request in heads:
            request.versions = [cta.tensor.sm.version for cta in group]
        if first is None:
            return
        for cta, request in zip(group, heads, strict=True):
            cta.tensor.asking.popleft()
            cta.tensor.allocate(first, columns)
            cta.tensor.has_peer = len(group) > 1
            cta.tensor.note_owner(f, at, first, columns, request.agent)
            request.first, request.is_done = first, True
        _introduce(f, heads)


def _introduce(f: Fragment, heads: list[Request]) -> None:
    """
    Order the warps of a pair after what both did so far, as neither goes on without the other.
    """
    clocks = f.cluster.clocks
    epochs = [clocks.now(request.agent) for request in heads]
    for request in heads:
        clocks.release(np.array([request.agent]))
    for request in heads:
        for other, epoch in zip(heads, epochs, strict=True):
            clocks.learn(request.agent, other.agent, epoch)
    f.cluster.events += 1


# --- deallocation --------------------------------------------------------------------------------


def deallocate(
    f: Fragment, at: int, mask: Mask, address: PerThread, columns: PerThread, ctas: int
) -> Wait | None:
    """
    Free columns; in a pair, those of both CTAs when both have executed the instruction. Return the
    wait for the other CTA, or None.
    """
    tensor, calls = f.cta.tensor, []
    for warp, threads in _warps(f, mask):
        request = tensor.calls.get((warp, at))
        if request is None:
            number, group = _one(f, at, f.spread(columns)[threads]), group_of(f, at, ctas)
            request = Request("tcgen05.dealloc", number, f.cta.agent0 + warp, group, f.cta)
            request.first = _one(f, at, f.spread(address)[threads])
            _give_back(f, at, request)
            tensor.calls[warp, at] = request
        calls.append((warp, request))
    wait = _until(at, [request for _, request in calls])
    if wait is None:
        for warp, _ in calls:
            del tensor.calls[warp, at]
    return wait


def _give_back(f: Fragment, at: int, request: Request) -> None:
    """Note that a CTA frees its columns; free them if it was the last one of its group."""
    tensor, first, columns = f.cta.tensor, request.first, request.columns
    if tensor.allocations.get(first) != columns or first in tensor.closing:
        f.fault(at, f"{columns} columns from column {first} on are not an allocation")
    others = [cta.tensor.closing[first] for cta in request.group if first in cta.tensor.closing]
    for other in others:
        f.cluster.clocks.learn(request.agent, other.agent, other.epoch)
    for unit, epoch in tensor.completed.get(request.agent, {}).items():
        f.cluster.clocks.learn(request.agent, unit, epoch)
    for cta in request.group:
        _end_loads(f, at, cta, request.agent)
        cta.tensor.note_owner(f, at, first, columns, request.agent)
    request.epoch = f.cluster.clocks.now(request.agent)
    f.cluster.clocks.release(np.array([request.agent]))
    tensor.closing[first] = request
    if len(others) + 1 < len(request.group):
        return
    for cta in request.group:
        cta.tensor.closing.pop(first).is_done = True
        cta.tensor.free(first)
    f.cluster.events += 1
    f.machine.timeline.events += 1


def _end_loads(f: Fragment, at: int, cta: Cta, agent: int) -> None:
    """
    Count loads before the deallocation as complete, though their warps did not wait for them, with
    a warning.

    Only a wait orders *memory accesses* after a load. The PTX ISA does not say what else must be
    complete before memory is freed, and there are kernels that load, use the registers, meet at a
    barrier and free without a wait.
    """
    clocks = f.cluster.clocks
    knows = clocks.vector[agent]
    for unit, load in cta.tensor.loads.items():
        if knows[unit] < load.epoch and knows[load.agent] >= load.issued:
            f.warn(
                at,
                "tensor load",
                f"no tcgen05.wait::ld of {clocks.name(load.agent)} between its last load and the "
                f"deallocation\n  at {f.machine.program.place(load.at)}",
            )
            clocks.learn(agent, unit, load.epoch)
