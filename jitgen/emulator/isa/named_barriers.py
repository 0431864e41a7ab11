# SPDX-License-Identifier: Apache-2.0
"""
bar.sync and its kin, and the barrier of the cluster.

PTX ISA, sections "bar, barrier", "bar.warp.sync" and "barrier.cluster". ``bar`` is
``barrier.aligned``: all threads of a warp execute it together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.isa.warp import is_whole_warp, meet, members_of
from jitgen.emulator.machine.barriers import NamedBarrier
from jitgen.emulator.machine.cta import NOT_ARRIVED
from jitgen.emulator.machine.fragment import WARP, Fragment, Outcome, Split, Wait
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_NUM_BARRIERS = 16

_REDUCTIONS = {"popc": np.count_nonzero, "and": np.all, "or": np.any}


def _is_aligned(instruction: Instruction) -> bool:
    return instruction.parts[0] == "bar" or instruction.has("aligned")


def _refuse_reduction(instruction: Instruction) -> None:
    unknown = set(instruction.parts) - {"bar", "barrier", "cta", "sync", "arrive", "aligned"}
    if unknown:
        raise Unsupported(f"modifier .{min(unknown)}")


def _barrier_operands(builder: Builder, instruction: Instruction, first: int = 0) -> list[str]:
    """Return number, count ("None": all threads) and whether whole warps arrive, as source text."""
    number, *count = instruction.operands[first : first + 2]
    return [
        builder.value(number, "u32"),
        builder.value(count[0], "u32") if count else "None",
        str(_is_aligned(instruction)),
    ]


@emits(
    "bar.sync",
    "bar.cta.sync",
    "barrier.sync",
    "barrier.cta.sync",
    whole_warp=_is_aligned,
    ends_block=True,
)
def sync(builder: Builder, instruction: Instruction) -> None:
    """Translate ``bar.sync a, b``: arrive and wait for the others."""
    _refuse_reduction(instruction)
    operands = _barrier_operands(builder, instruction)
    then = str(builder.next_block)
    builder.leave(builder.call(arrive_and_wait, builder.mask(instruction), *operands, then))


@emits(
    "bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", whole_warp=_is_aligned
)
def arrive(builder: Builder, instruction: Instruction) -> None:
    """Translate ``bar.arrive a, b``: arrive and go on."""
    _refuse_reduction(instruction)
    operands = _barrier_operands(builder, instruction)
    builder.do(builder.call(arrive_only, builder.mask(instruction), *operands))


@emits("bar.warp.sync", whole_warp=is_whole_warp, members=members_of)
def sync_warp(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``bar.warp.sync mask``: orders the memory accesses of the lanes that the mask names.
    """
    members = builder.value(instruction.operands[0], "b32")
    builder.do(builder.call(meet, builder.mask(instruction), members, "True"))


def _groups(f: Fragment, mask: Mask, numbers: PerThread) -> list[tuple[int, NDArray[np.bool_]]]:
    """Return each barrier number and the threads [n] that name it."""
    chosen = np.ones(f.n, np.bool_) if mask is None else mask
    numbers = f.spread(numbers)
    return [
        (number, chosen & (numbers == number)) for number in np.unique(numbers[chosen]).tolist()
    ]


def _named(f: Fragment, at: int, number: int) -> NamedBarrier:
    if number >= _NUM_BARRIERS:
        f.fault(at, f"barrier {number}: a CTA has {_NUM_BARRIERS}")
    barrier = f.cta.named.get(number)
    if barrier is None:
        barrier = f.cta.named[number] = NamedBarrier(f.cta, number)
    return barrier


def _expected(
    f: Fragment, at: int, counts: PerThread | None, chosen: NDArray[np.bool_]
) -> int | None:
    """
    Return the number of threads that complete a barrier, as the threads state it; None if they
    state none.
    """
    if counts is None:
        return None
    distinct = np.unique(f.spread(counts)[chosen]).tolist()
    if len(distinct) > 1 or distinct[0] % WARP or not distinct[0]:
        f.fault(at, f"thread counts {distinct} of a barrier, which must be one multiple of {WARP}")
    return int(distinct[0])


def _arrive(
    f: Fragment,
    at: int,
    place: tuple[int, NDArray[np.bool_]],
    how: tuple[PerThread | None, bool, bool],
) -> tuple[NamedBarrier, int]:
    """Arrive for some threads; return the barrier and the generation of the arrival."""
    number, chosen = place
    counts, is_aligned, waits = how
    barrier = _named(f, at, number)
    part = f if chosen.all() else f.part(chosen)
    expected = _expected(f, at, counts, chosen)
    arriving = len(part.warps) * WARP if is_aligned and expected is not None else part.n
    return barrier, barrier.arrive(part, at, arriving, expected, waits=waits)


def arrive_only(
    f: Fragment, at: int, mask: Mask, numbers: PerThread, counts: PerThread | None, is_aligned: bool
) -> None:
    """Arrive for the threads under the mask, which do not wait."""
    for group in _groups(f, mask, numbers):
        _arrive(f, at, group, (counts, is_aligned, False))


def arrive_and_wait(
    f: Fragment,
    at: int,
    mask: Mask,
    numbers: PerThread,
    counts: PerThread | None,
    is_aligned: bool,
    then: int,
) -> Outcome | Split:
    """
    Arrive for the threads under the mask; they continue at `then` when the barrier is complete.
    """
    parts: Split = []
    left_out = np.zeros(f.n, np.bool_) if mask is None else ~mask
    if left_out.any():
        parts.append((left_out, then))
    for group in _groups(f, mask, numbers):
        barrier, generation = _arrive(f, at, group, (counts, is_aligned, True))
        parts.append((group[1], _until(at, barrier, generation, then)))
    return parts[0][1] if len(parts) == 1 else parts


def _until(at: int, barrier: NamedBarrier, generation: int, then: int) -> Outcome:
    """Return the wait for the end of a generation, or `then` if it has ended."""
    if barrier.generation > generation:
        return then
    return Wait(
        at,
        is_over=lambda: barrier.generation > generation,
        describe=lambda: f"{barrier.name}: {barrier.state}",
        retry=False,
        then=then,
    )


@emits("barrier.cluster.arrive", whole_warp=_is_aligned)
def arrive_cluster(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``barrier.cluster.arrive``; the relaxed form releases only accesses before the last
    fence.
    """
    is_relaxed = str(instruction.has("relaxed"))
    builder.do(builder.call(arrive_at_cluster, builder.mask(instruction), is_relaxed))


def arrive_at_cluster(f: Fragment, at: int, mask: Mask, is_relaxed: bool) -> None:
    """Arrive at the cluster's barrier for the threads under the mask."""
    lanes = f.lanes if mask is None else f.lanes[mask]
    if not len(lanes):
        return
    if (f.cta.cluster_arrivals[lanes] != NOT_ARRIVED).any():
        f.fault(at, "barrier.cluster.arrive twice without a wait in between")
    clocks, barrier, agents = f.cluster.clocks, f.cluster.barrier, f.selected_warps(mask)
    if not is_relaxed:
        for agent in agents.tolist():
            f.cta.guarded.fence(agent)
    if is_relaxed:
        far = clocks.released_by_fence(agents, Scope.CLUSTER)
        clock = clocks.order.added(far, clocks.order.times(agents))
    else:
        clock = clocks.release(agents)
    f.cta.cluster_arrivals[lanes] = barrier.phase
    barrier.arrive(len(lanes), clock)


@emits("barrier.cluster.wait", whole_warp=_is_aligned, starts_block=True, is_wait=True)
def wait_cluster(builder: Builder, instruction: Instruction) -> None:
    """Translate ``barrier.cluster.wait``."""
    outcome = builder.temporary()
    builder.do(f"{outcome} = {builder.call(wait_for_cluster, builder.mask(instruction))}")
    builder.do(f"if {outcome} is not None: return {outcome}")


def wait_for_cluster(f: Fragment, at: int, mask: Mask) -> Wait | None:
    """Return None if every thread of the cluster has arrived, else the wait for them."""
    lanes = f.lanes if mask is None else f.lanes[mask]
    barrier, arrivals = f.cluster.barrier, f.cta.cluster_arrivals
    mine = arrivals[lanes]
    if (mine == NOT_ARRIVED).any():
        f.fault(at, "barrier.cluster.wait without a barrier.cluster.arrive before it")
    if (mine == barrier.phase).any():
        phase = barrier.phase
        return Wait(
            at,
            is_over=lambda: barrier.phase > phase,
            describe=lambda: f"barrier.cluster: {barrier.state}",
        )
    if barrier.clock is not None:
        f.cluster.clocks.acquire(f.selected_warps(mask), barrier.clock)
    arrivals[lanes] = NOT_ARRIVED
    for cta in f.cluster.ctas:
        cta.known_to.add(f.cta.rank)  # it runs, whatever is known of its memory
    return None


@emits(
    "bar.red",
    "bar.cta.red",
    "barrier.red",
    "barrier.cta.red",
    whole_warp=_is_aligned,
    starts_block=True,
    is_wait=True,
)
def reduce(builder: Builder, instruction: Instruction) -> None:
    """Translate ``bar.red.popc.u32 d, a, b, p`` and ``bar.red.and.pred p, a, b, q``."""
    kind = next((part for part in instruction.parts if part in _REDUCTIONS), None)
    if kind is None or instruction.guard is not None:
        raise Unsupported("form of bar.red")
    destination, *rest, value = instruction.operands
    number, count, is_aligned = _barrier_operands(builder, instruction, first=1)
    if len(rest) == 1:
        count = "None"
    outcome, result = builder.temporary(), builder.temporary()
    arguments = (number, count, is_aligned, builder.value(value, "pred"))
    builder.do(f"{outcome}, {result} = {builder.call(arrive_with_value, *arguments)}")
    builder.do(f"if {outcome} is not None: return {outcome}")
    reduction = builder.constant(_REDUCTIONS[kind], f"reduce_{kind}")
    result_type = "u32" if kind == "popc" else "pred"
    expression = f"f.spread({reduction}({result})).astype({builder.constant(_dtype(kind))})"
    builder.define(destination, expression, result_type, instruction)


def _dtype(kind: str) -> type[np.generic]:
    return np.uint32 if kind == "popc" else np.bool_


def arrive_with_value(
    f: Fragment,
    at: int,
    numbers: PerThread,
    counts: PerThread | None,
    is_aligned: bool,
    values: PerThread,
) -> tuple[Split | None, NDArray[np.bool_]]:
    """
    Arrive with a value, and execute this again when the barrier is complete.

    Returns:
        What the block function is to return at once, None when the barrier is complete; and then
        the values of all threads that arrived.
    """
    groups = _groups(f, None, numbers)
    if len(groups) > 1:
        f.fault(at, "warps that run together reduce at different barriers, which is not modelled")
    number = groups[0][0]
    barrier, arrived_in = _named(f, at, number), f.cta.reductions
    is_new = arrived_in[f.s] == NOT_ARRIVED
    if is_new.any():
        barrier.values.append(f.spread(values)[is_new])
        how = (counts, is_aligned, True)
        arrived_in[f.lanes[is_new]] = _arrive(f, at, (number, is_new), how)[1]
    is_done = arrived_in[f.s] < barrier.generation
    if is_done.all():
        arrived_in[f.s] = NOT_ARRIVED
        return None, barrier.result
    generation = barrier.generation
    wait = Wait(
        at,
        is_over=lambda: barrier.generation > generation,
        describe=lambda: f"{barrier.name}: {barrier.state}",
    )
    return [(is_done, f.block), (~is_done, wait)], barrier.result
