# SPDX-License-Identifier: Apache-2.0
"""
How memory accesses of threads are ordered, and what they hand on when they synchronise.

Whoever acquires at an address learns what was released there, also by another cluster. Scopes are
not told apart. The threads of one instruction that synchronise at one address count as if each came
before the others.

PTX ISA, section "Memory Consistency Model": release and acquire patterns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.isa.addressing import SHARED_END
from jitgen.emulator.machine.clocks import join
from jitgen.emulator.machine.foreign import united
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.instruction import Instruction

WEAK, RELAXED = "weak", "relaxed"

_ORDERS = {
    "volatile": RELAXED, "mmio": RELAXED, "relaxed": RELAXED,
    "acquire": "acquire", "release": "release", "acq_rel": "acq_rel", "sc": "acq_rel",
}  # fmt: skip
"""Modifiers, and which order is meant; volatile accesses are relaxed ones of the whole system."""

ORDER_PARTS = frozenset({WEAK, *_ORDERS, "cta", "cluster", "gpu", "sys"})
"""Parts of an opcode that say how it is ordered, and with whom."""

_ACQUIRES = frozenset({"acquire", "acq_rel"})
_RELEASES = frozenset({"release", "acq_rel"})


def order_of(instruction: Instruction, default: str = WEAK) -> str:
    """Return ``"weak"``, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``."""
    found = (_ORDERS[part] for part in instruction.parts if part in _ORDERS)
    return next(found, default)


def release(
    f: Fragment, addresses: NDArray[np.int64], agents: NDArray[np.int64], order: str, *, adds: bool
) -> None:
    """
    Let threads release what they know at addresses.

    Args:
        f: Who executes the instruction.
        addresses: Where each thread writes [k].
        agents: The warp of each thread [k].
        order: Not weak. A relaxed write releases what its warp knew at its last fence.
        adds: The write is an update, which hands on what was released there before.
    """
    clocks, flags = f.cluster.clocks, f.machine.memory.flags if _is_global(addresses) else {}
    if order not in _RELEASES and not any(map(clocks.has_fenced, f.agents.tolist())):
        if not adds and (clocks.flags or flags):
            for address in addresses.tolist():
                clocks.flags.pop(address, None)
                flags.pop(address, None)
        return
    give = clocks.release if order in _RELEASES else clocks.released_by_fence
    for address in np.unique(addresses).tolist():
        who = np.unique(agents[addresses == address])
        clock = give(who)
        before = clocks.flags.get(address) if adds else None
        clocks.flags[address] = clock if before is None else join(before, clock)
        released = clocks.foreign.released(clocks, who, clock)
        flags[address] = united(flags.get(address) if adds else None, released)


def _is_global(addresses: NDArray[np.int64]) -> bool:
    """Return whether threads synchronise in global memory."""
    return int(addresses[0]) >= SHARED_END


def acquire(
    f: Fragment, addresses: NDArray[np.int64], agents: NDArray[np.int64], order: str
) -> None:
    """Let threads learn what was released where they read; see `release`."""
    clocks, flags = f.cluster.clocks, f.machine.memory.flags if _is_global(addresses) else {}
    if not clocks.flags and not flags:
        return
    is_acquire = order in _ACQUIRES
    for address in np.unique(addresses).tolist():
        clock, released = clocks.flags.get(address), flags.get(address)
        who = agents[addresses == address]
        if clock is not None:
            (clocks.acquire if is_acquire else clocks.observe)(np.unique(who), clock)
        if released is not None and is_acquire:
            clocks.foreign.acquire(clocks, who, released)
        elif released is not None:
            clocks.foreign.observe(who, released)
