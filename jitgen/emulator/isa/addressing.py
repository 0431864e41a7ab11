# SPDX-License-Identifier: Apache-2.0
"""
The memory of an address: global memory, a kernel parameter, a thread's local memory, or the shared
memory of a CTA.

The value of a generic address tells its space, as each space has its own range: shared memory,
parameters and local memory lie, in this order, above all memory of the host. In an instruction that
names its space a shared address has 32 bits and begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers
from jitgen.emulator.machine.cta import RANK_SHIFT
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.shared_memory import SharedMemory
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.parse import LOCAL_BASE, PARAM_BASE, SHARED_WINDOW

SHARED, GLOBAL, PARAM, LOCAL, GENERIC = "shared", "global", "param", "local", "generic"

_SPACES = {
    "shared": SHARED, "shared::cta": SHARED, "shared::cluster": SHARED, "global": GLOBAL,
    "param": PARAM, "param::entry": PARAM, "const": GLOBAL, "local": LOCAL,
}  # fmt: skip

SPACE_PARTS = frozenset(_SPACES)
"""Parts of an opcode that name a state space."""


@dataclass(frozen=True, slots=True)
class Part:
    """
    Accesses of one fragment to one shared memory.

    Attributes:
        shared: The memory.
        offsets: Offsets in that memory [k].
        positions: Numbers of these accesses among all [k].
        threads: The threads that make them [k], as indices 0..n-1.
    """

    shared: SharedMemory
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64] | slice
    threads: NDArray[np.int64] | slice


def space_of(instruction: Instruction) -> str:
    """Return the state space that an opcode names; GENERIC if it names none."""
    return next((_SPACES[part] for part in instruction.parts if part in _SPACES), GENERIC)


def resolve(f: Fragment, at: int, space: str, addresses: Integers) -> tuple[str, Integers]:
    """
    Return the state space of `addresses` [k], at least one, and the addresses in that space. If
    `space` is generic, the values of the addresses say which space it is.

    Raises:
        MachineFault: The addresses are in different spaces, which no kernel does on purpose.
    """
    if space != GENERIC:
        return space, addresses
    low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
    if high < SHARED_WINDOW:
        return GLOBAL, addresses
    if low >= PARAM_BASE:
        return PARAM if high < LOCAL_BASE else LOCAL, addresses
    if low >= SHARED_WINDOW and high < PARAM_BASE:
        return SHARED, addresses - addresses.dtype.type(SHARED_WINDOW)
    return f.fault(at, f"generic addresses {low:#x} and {high:#x} are in different state spaces")


def generic(f: Fragment, space: str, addresses: Integers) -> NDArray[np.int64]:
    """
    Return generic addresses for those of a state space; a place in a peer's memory gets the address
    that its owner uses.
    """
    found = addresses.astype(np.int64)
    return found + SHARED_WINDOW if space == SHARED else f.machine.memory.at_home(found)


def shared_parts(
    f: Fragment,
    at: int,
    addresses: Integers,
    width: int,
    threads: NDArray[np.int64] | slice,
) -> Iterator[Part]:
    """
    Yield the accesses to each CTA's shared memory, by rank.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        addresses: Shared addresses [k].
        width: Bytes of each access.
        threads: The threads that make them [k], as indices 0..n-1; a slice means all.

    Raises:
        MachineFault: No such CTA, out of bounds, or not aligned.
    """
    ranks = addresses >> addresses.dtype.type(RANK_SHIFT)
    if not np.count_nonzero(ranks != f.cta.rank):
        shared = f.cta.shared
        yield Part(shared, shared.offsets(f, at, addresses, width), slice(None), threads)
        return
    indices = np.arange(f.n) if isinstance(threads, slice) else threads
    for rank in np.unique(ranks).tolist():
        positions = np.flatnonzero(ranks == rank)
        shared = f.cluster.cta(f, at, int(addresses[positions[0]])).shared
        offsets = shared.offsets(f, at, addresses[positions], width)
        yield Part(shared, offsets, positions, indices[positions])
