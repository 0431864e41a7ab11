# SPDX-License-Identifier: Apache-2.0
"""
Asynchronous stores and reductions of threads in the shared memory of their cluster: ``st.async``,
``red.async``.

They signal an mbarrier of the CTA that they write to, as a bulk copy does.

PTX ISA, sections "st.async" and "red.async".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread, Vector, Where
from jitgen.emulator.isa.atomic_updates import OPERATIONS, Update, update_of
from jitgen.emulator.isa.memory import Mask
from jitgen.emulator.isa.modifiers import width
from jitgen.emulator.machine.agreement import check_agreement
from jitgen.emulator.machine.barrier_use import Use, use
from jitgen.emulator.machine.cta import RANK_SHIFT
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.shared_memory import SharedMemory
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_PARTS = frozenset({"async", "shared::cluster", "mbarrier::complete_tx::bytes"})
_VECTORS = {"v2": 2, "v4": 4}


@emits("st.async")
def emit(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [a], {b, c},
    [mbarrier]``.
    """
    _refuse(instruction, {"st", "weak", *_VECTORS})
    _emit(builder, instruction, "None")


@emits("red.async")
def emit_reduce(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``red.async.relaxed.cluster...mbarrier::complete_tx::bytes.add.u32 [a], b,
    [mbarrier]``.
    """
    operation = next((part for part in instruction.parts if part in OPERATIONS), "")
    _refuse(instruction, {"red", "relaxed", "cluster", operation})
    if not operation:
        raise Unsupported("no operation")
    update = update_of(operation, instruction.parts[-1])
    _emit(builder, instruction, builder.constant(update, "update"))


def _refuse(instruction: Instruction, known: set[str]) -> None:
    """
    Raise Unsupported for a modifier that is neither in `known` nor one that both instructions have.
    """
    strange = sorted(set(instruction.parts[:-1]) - _PARTS - known)
    if strange:
        raise Unsupported(f"modifier .{strange[0]}")


def _emit(builder: Builder, instruction: Instruction, update: str) -> None:
    address, source, barrier = instruction.operands
    values = builder.values(source, f"b{width(instruction.parts[-1])}")
    places = f"({builder.address(address)}, {builder.address(barrier)})"
    arguments = (places, f"({', '.join(values)},)", update)
    builder.do(builder.call(store_async, builder.mask(instruction), *arguments))


def store_async(
    f: Fragment,
    at: int,
    mask: Mask,
    places: tuple[PerThread, PerThread],
    values: Vector,
    update: Update | None,
) -> None:
    """
    Store, for each thread under the mask, its values where it says, and signal its barrier.

    Stores of a warp that signal one barrier are done at once, unless two overlap or the barrier's
    phase ends with one of them.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        places: Shared addresses, and those of mbarriers, each [n] or a scalar.
        values: Unsigned, of one size, each [n] or a scalar.
        update: Of a reduction, of one value: how memory is updated by it.

    Raises:
        MachineFault: Out of bounds, not aligned, or no mbarrier is there.
    """
    addresses, barriers = (f.spread(place) for place in places)
    units = np.stack([f.spread(value) for value in values], axis=1)
    data, size = units.view(np.uint8), units.itemsize * len(values)
    threads = f.selected(mask)
    if update is None:
        wide = addresses[threads].astype(np.int64)
        check_agreement(f, at, wide, data[threads], threads, "shared memory")
    agents = f.agent_of

    def goal(thread: int) -> tuple[int, int, int]:
        """Return the warp, the CTA that it writes to, and the barrier that it signals."""
        return int(agents[thread]), int(addresses[thread]) >> RANK_SHIFT, int(barriers[thread])

    for (row, rank, place), alike in groupby(threads.tolist(), goal):
        chosen = np.array(list(alike))
        shared = f.cluster.cta(f, at, rank << RANK_SHIFT).shared
        offsets = shared.offsets(f, at, addresses[chosen], size)
        barrier = use(f, at, place, np.array([row]), Use.COMPLETE_LATER)
        if barrier.cta is not shared.cta:
            f.fault(at, f"{barrier.name} is not in the CTA that is written to")
        by = barrier.phases.signaller(row)
        are_one = update is None and _are_apart(offsets, size)
        if are_one and not barrier.ends_within(size, len(chosen)):
            parts = [slice(None)]
        else:
            parts = [slice(number, number + 1) for number in range(len(chosen))]
        for part in parts:
            where, some = _bytes(offsets[part], size), chosen[part]
            is_atomic, epoch = update is not None, barrier.phase + 1
            shared.note_async_write(
                f, at, where, barrier.agent, epoch, row, is_atomic=is_atomic, is_generic=True
            )
            put = partial(_put, shared, where, data[some])
            if update is not None:
                put = partial(_reduce, f, at, shared, where, units[some[0]], update)
            signal = partial(barrier.complete, f, at, size, by, times=len(some))
            f.cluster.queues.issue("load", partial(_finish, put, signal))


def _are_apart(offsets: NDArray[np.int64], size: int) -> bool:
    """Return whether no two stores of `size` bytes at `offsets` [k] overlap."""
    ascending = np.sort(offsets)
    return not np.count_nonzero(ascending[1:] - ascending[:-1] < size)


def _bytes(offsets: NDArray[np.int64], size: int) -> Where:
    """Return the offsets [k, size] of `size` bytes from each of `offsets`; a slice if adjacent."""
    first, number = int(offsets[0]), len(offsets)
    if number == 1 or not np.count_nonzero(offsets != first + size * np.arange(number)):
        return slice(first, first + size * number)
    return offsets[:, None] + np.arange(size)


def _put(shared: SharedMemory, where: Where, data: NDArray[np.uint8]) -> None:
    """Write what threads store, uint8 [k, size]."""
    shared.put(where, data.reshape(-1) if isinstance(where, slice) else data)


def _reduce(
    f: Fragment,
    at: int,
    shared: SharedMemory,
    where: Where,
    value: Integers,
    update: Update,
) -> None:
    """Update memory by one value."""
    before = shared.take(f, at, where).view(value.dtype)
    shared.put(where, update(before, value, value).view(np.uint8))


def _finish(put: Callable[[], None], signal: Callable[[], None]) -> None:
    """Do stores or a reduction, then signal."""
    put()
    signal()
