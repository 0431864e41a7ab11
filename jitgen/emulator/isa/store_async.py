# SPDX-License-Identifier: Apache-2.0
"""
Asynchronous stores of threads to the shared memory of their cluster: ``st.async``.

The store signals an mbarrier of the CTA that it writes to, as a bulk copy does.

PTX ISA, section "st.async".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread, Vector
from jitgen.emulator.isa.memory import Mask
from jitgen.emulator.isa.modifiers import width
from jitgen.emulator.machine.barrier_use import Use, use
from jitgen.emulator.machine.cta import OFFSET_MASK
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.shared_memory import SharedMemory
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_PARTS = frozenset({"st", "async", "weak", "shared::cluster", "mbarrier::complete_tx::bytes"})
_VECTORS = {"v2": 2, "v4": 4}


@emits("st.async")
def emit(builder: Builder, instruction: Instruction) -> None:
    """``st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [a], {b, c}, [mbarrier]``."""
    *parts, kind = instruction.parts
    strange = sorted(set(parts) - _PARTS - _VECTORS.keys())
    if strange:
        raise Unsupported(f"modifier .{strange[0]}")
    address, source, barrier = instruction.operands
    values = builder.values(source, f"b{width(kind)}")
    arguments = (builder.address(address), builder.address(barrier), f"({', '.join(values)},)")
    builder.do(builder.call(store_async, builder.mask(instruction), *arguments))


def store_async(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, barriers: PerThread, values: Vector
) -> None:
    """
    Store, for each thread under the mask, its values where it says, and signal its barrier.

    Args:
        f: Who executes the instruction.
        at: The instruction.
        mask: Of the guard.
        addresses: Shared addresses, [n] or a scalar.
        barriers: Those of mbarriers, likewise.
        values: Unsigned, of one size, each [n] or a scalar.

    Raises:
        MachineFault: Out of bounds, not aligned, or no mbarrier is there.
    """
    addresses, barriers = f.spread(addresses), f.spread(barriers)
    data = np.stack([f.spread(value) for value in values], axis=1).view(np.uint8)
    for thread in f.selected(mask).tolist():
        address = int(addresses[thread])
        shared = f.cluster.cta(f, at, address).shared
        shared.offsets(f, at, addresses[thread], data.shape[1])
        row = int(f.agent_of[thread])
        barrier = use(f, at, int(barriers[thread]), np.array([row]), Use.COMPLETE_LATER)
        if barrier.cta is not shared.cta:
            f.fault(at, f"{barrier.name} is not in the CTA that is written to")
        first = address & OFFSET_MASK
        where = slice(first, first + data.shape[1])
        shared.note_async_write(f, at, where, barrier.agent, barrier.phase + 1, row)
        by = barrier.phases.signaller(row)
        signal = partial(barrier.complete, f, at, data.shape[1], by)
        f.cluster.queues.issue("load", partial(_finish, shared, where, data[thread], signal))


def _finish(
    shared: SharedMemory, where: slice, data: NDArray[np.uint8], signal: Callable[[], None]
) -> None:
    """Do one store, then signal."""
    shared.put(where, data)
    signal()
