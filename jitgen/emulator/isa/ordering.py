# SPDX-License-Identifier: Apache-2.0
"""
How memory accesses of threads are ordered, and what threads learn when they synchronise.

A thread that acquires at an address learns what was released there, also by another cluster, if the
scope of each of the two includes the other: threads of other CTAs do not learn what is released at
``.cta``, nor those of other clusters what is released at ``.cluster``, nor those of other devices
what is released at ``.gpu``. The threads of one instruction that synchronise at one address count
as if each came before the others.

PTX ISA, sections "Scope", "Morally strong operations" and "Release and Acquire Patterns" of the
memory consistency model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Released
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.remote_clocks import Given
from jitgen.emulator.machine.scopes import Scope, scope_in
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.parse import SHARED_WINDOW

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


def order_of(instruction: Instruction, default: str = WEAK, scope: Scope = Scope.SYS) -> str:
    """
    Return ``"weak"``, or ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"`` with a scope.

    Args:
        instruction: A load, store or atomic operation.
        default: Its order if it names none.
        scope: Its scope if it names none: that of volatile accesses.
    """
    found = (_ORDERS[part] for part in instruction.parts if part in _ORDERS)
    order = next(found, default)
    return order if order == WEAK else f"{order}{scope_in(instruction.parts, scope)}"


def scope_of(order: str) -> Scope:
    """Return the scope of an order that is not weak; one without a scope has the widest."""
    return scope_in(order.split("."))


def settle(f: Fragment, order: str) -> None:
    """Let stores to peers arrive before a write that releases them to other clusters."""
    if order.partition(".")[0] in _RELEASES and scope_of(order) >= Scope.GPU:
        f.machine.memory.settle()


def release(
    f: Fragment, addresses: NDArray[np.int64], agents: NDArray[np.int64], order: str, *, adds: bool
) -> None:
    """
    Release the clocks of the threads' warps at addresses.

    Args:
        f: The fragment that executes the instruction.
        addresses: The address to which each thread writes [k].
        agents: The warp of each thread [k].
        order: Not weak. A relaxed write releases the clock that its warp had at its last fence.
        adds: Whether the write is an update, which hands on what was released there before.
    """
    clocks, scope, order = f.cluster.clocks, scope_of(order), order.partition(".")[0]
    others = _between_clusters(f, addresses)
    if order not in _RELEASES and not any(map(clocks.has_fenced, f.agents.tolist())):
        if not adds and (clocks.flags or others):
            for address in addresses.tolist():
                clocks.flags.pop(address, None)
                others.pop(address, None)
        return
    for address in np.unique(addresses).tolist():
        givers = np.unique(agents[addresses == address])
        if order in _RELEASES:
            near = far = wide = clocks.release(givers)
        else:
            near = clocks.released_by_fence(givers)
            far = clocks.released_by_fence(givers, Scope.CLUSTER)
            wide = clocks.released_by_fence(givers, Scope.GPU)
        made = Released(f.cta.rank, near, None if scope < Scope.CLUSTER else far)
        before = clocks.flags.get(address) if adds else None
        clocks.flags[address] = made if before is None else before.followed_by(made)
        if scope < Scope.GPU:
            others.pop(address, None)
        else:
            given = clocks.remote.released(clocks, wide)
            widest = given
            if order not in _RELEASES and clocks.grid.stream.has_peers:
                clock = clocks.released_by_fence(givers, Scope.SYS)
                widest = clocks.remote.released(clocks, clock)
            device = clocks.grid.stream.device
            now = Given(device, given, None if scope < Scope.SYS else widest)
            earlier = others.get(address) if adds else None
            others[address] = now if earlier is None else earlier.followed_by(now)


def _between_clusters(f: Fragment, addresses: NDArray[np.int64]) -> dict[int, Given]:
    """Return the table of releases between clusters; empty for addresses in shared memory."""
    return f.machine.memory.flags if int(addresses[0]) < SHARED_WINDOW else {}


def acquire(
    f: Fragment, addresses: NDArray[np.int64], agents: NDArray[np.int64], order: str
) -> None:
    """
    Join the clocks that were released at the read addresses to the threads' clocks; see `release`.
    """
    clocks, scope, order = f.cluster.clocks, scope_of(order), order.partition(".")[0]
    others, is_acquire = _between_clusters(f, addresses), order in _ACQUIRES
    if not clocks.flags and not others:
        return
    for address in np.unique(addresses).tolist():
        takers = np.unique(agents[addresses == address])
        flag, given = clocks.flags.get(address), others.get(address)
        if flag is not None:
            is_near = flag.rank == f.cta.rank
            clock = flag.near if is_near else None if scope < Scope.CLUSTER else flag.far
            if clock is not None and is_acquire:
                clocks.acquire(takers, clock)
            elif clock is not None:
                clocks.observe(takers, clock, Scope.CTA if is_near else Scope.CLUSTER)
        if given is None:
            continue
        device = clocks.grid.stream.device
        released = given.to(device, scope)
        if released is not None and is_acquire:
            clocks.remote.acquire(clocks, takers, released)
        elif released is not None:
            reach = Scope.GPU if given.device == device else Scope.SYS
            clocks.remote.observe(takers, released, reach)
