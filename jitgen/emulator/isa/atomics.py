# SPDX-License-Identifier: Apache-2.0
"""
Atomic updates of memory: ``atom``, which returns what was there, and ``red``, which does not.

Threads of one instruction that update the same place do so one after another, in the order of their
numbers, in the reverse order or, in random modes, in any. Floating-point sums are rounded after
each.

PTX ISA, sections "atom" and "red".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread, Vector
from jitgen.emulator.isa import ordering
from jitgen.emulator.isa.addressing import (
    SHARED,
    SPACE_PARTS,
    generic,
    resolve,
    shared_parts,
    space_of,
)
from jitgen.emulator.isa.atomic_updates import OPERATIONS, Update, update_of
from jitgen.emulator.isa.memory import Mask, Threads, define_loaded, wait_if_spinning, warps_of
from jitgen.emulator.isa.modifiers import width
from jitgen.emulator.isa.ordering import ORDER_PARTS, RELAXED, order_of, scope_of
from jitgen.emulator.machine.access import RELAXED_READ, RELAXED_WRITE
from jitgen.emulator.machine.early_access import check_previous_grid
from jitgen.emulator.machine.fragment import Fragment, Wait
from jitgen.emulator.machine.global_history import UPDATE
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HINTS = frozenset({"noftz", "L2::cache_hint"})


@dataclass(frozen=True, slots=True)
class Atomic:
    """
    The modifiers of an atomic update.

    Attributes:
        space: State space.
        width: Bytes of an element.
        order: Memory order and scope, as `ordering.order_of` returns them.
        update: Computes the new values.
        returns: Whether the instruction returns the old values.
    """

    space: str
    width: int
    order: str
    update: Update
    returns: bool


def atomic_of(instruction: Instruction) -> Atomic:
    """
    Return the modifiers of an ``atom`` or ``red``.

    Raises:
        Unsupported: A modifier, operation or type is not known.
    """
    base, *modifiers, kind = instruction.parts
    operation = next((part for part in modifiers if part in OPERATIONS), "")
    known = SPACE_PARTS | ORDER_PARTS | _HINTS | _VECTORS.keys() | {operation}
    strange = [part for part in modifiers if part not in known]
    if strange or not operation:
        raise Unsupported(f"modifier .{strange[0]}" if strange else "no operation")
    order = order_of(instruction, RELAXED, Scope.GPU)
    size = width(kind.removesuffix("x2")) // 8 * (2 if kind.endswith("x2") else 1)
    update = update_of(operation, kind)
    return Atomic(space_of(instruction), size, order, update, returns=base == "atom")


def _may_spin(instruction: Instruction) -> bool:
    return space_of(instruction) != SHARED


@emits("atom", starts_block=_may_spin, is_wait=_may_spin)
def emit_atom(builder: Builder, instruction: Instruction) -> None:
    """Translate ``atom.global.add.u32 old, [address], value``; ``.cas`` has two values."""
    old, address, *values = instruction.operands
    atomic = atomic_of(instruction)
    result = builder.temporary()
    builder.do(f"{result} = {_call(builder, instruction, atomic, address, values)}")
    if _may_spin(instruction):
        builder.do(f"if not isinstance({result}, np.ndarray): return {result}")
    for i, name in enumerate(builder.names(old)):
        define_loaded(builder, instruction, name, f"{result}[{i}]", f"b{8 * atomic.width}")


@emits("red")
def emit_reduce(builder: Builder, instruction: Instruction) -> None:
    """Translate ``red.global.add.f32 [address], value``."""
    address, *values = instruction.operands
    builder.do(_call(builder, instruction, atomic_of(instruction), address, values))


def _call(
    builder: Builder, instruction: Instruction, atomic: Atomic, address: str, values: list[str]
) -> str:
    """Return the call of `apply`; a cache policy after the values is left out."""
    kind = f"b{8 * atomic.width}"
    wanted = values[: 2 if instruction.has("cas") else 1]
    operands = [f"({', '.join(builder.values(value, kind))},)" for value in wanted]
    return builder.call(
        apply,
        builder.mask(instruction),
        builder.address(address),
        builder.constant(atomic, "atomic"),
        *operands,
    )


def apply(
    f: Fragment,
    at: int,
    mask: Mask,
    addresses: PerThread,
    atomic: Atomic,
    first: Vector,
    second: Vector | None = None,
) -> Integers | Wait:
    """
    Update memory for the threads under the mask.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        addresses: [n] or a scalar.
        atomic: The operation.
        first: For each element of a vector the operand, unsigned [n] or a scalar.
        second: Of ``.cas`` the values to store, in the form of `first`; else None.

    Returns:
        The old values, unsigned [elements, n], or the wait of threads that spin.

    Raises:
        MachineFault: Out of bounds or not aligned.
    """
    count, n = len(first), f.n
    old = np.zeros((n, count), f"u{atomic.width}")
    threads = f.selected(mask)
    if not len(threads):
        return old.T
    step = atomic.width * np.arange(count)
    job = _Job(
        atomic=atomic,
        threads=np.repeat(threads, count),
        addresses=(f.spread(addresses)[threads].astype(np.int64)[:, None] + step).reshape(-1),
        first=_flat(f, first, threads),
        second=_flat(f, first if second is None else second, threads),
    )
    space, addresses = resolve(f, at, atomic.space, job.addresses)
    job = replace(job, addresses=addresses)
    agents, met = f.agent_of[job.threads], generic(f, space, addresses)
    if space == SHARED:
        seen, before, after = _update_shared(f, at, job)
    else:
        check_previous_grid(f, at, warps_of(f, threads))
        ordering.settle(f, atomic.order)
        seen, before, after = _update_global(f, at, job)
        if atomic.returns and not (after != before).any():
            wait = wait_if_spinning(f, at, seen.tobytes())
            if wait is not None:
                return wait
    f.machine.observed.read(f, at, met, agents, seen)
    f.machine.observed.update(f, at, met, agents, before, after)
    ordering.release(f, met, agents, atomic.order, adds=True)
    if atomic.returns and not f.machine.observed.ignores(at):
        ordering.acquire(f, met, agents, atomic.order)
    old[threads] = seen.reshape(-1, count)
    return old.T


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """
    Updates of single elements, [k] of each.

    Attributes:
        atomic: The operation.
        threads: The threads that execute it, as indices 0..n-1.
        addresses: The address that each updates.
        first, second: The operands, unsigned.
    """

    atomic: Atomic
    threads: NDArray[np.int64]
    addresses: Integers
    first: Integers
    second: Integers


def _flat(f: Fragment, values: Vector, threads: NDArray[np.int64]) -> Integers:
    """Return the operands of `threads`, the elements of each thread adjacent."""
    return np.stack([f.spread(value)[threads] for value in values], axis=1).reshape(-1)


def _update_shared(f: Fragment, at: int, job: _Job) -> tuple[Integers, Integers, Integers]:
    """
    Update shared memory.

    Returns:
        The value that each update reads [k], and the values of its place before and after all
        updates [k].
    """
    width_, scope = job.atomic.width, scope_of(job.atomic.order)
    seen, found, left = (np.empty_like(job.first) for _ in range(3))
    for part in shared_parts(f, at, job.addresses, width_, job.threads):
        before = part.shared.generic_read(
            f, at, part.offsets, width_, part.threads, RELAXED_READ, scope=scope
        )
        found[part.positions] = before.view(seen.dtype)[:, 0]
        seen[part.positions], after = _in_turn(f, job, part.positions, found[part.positions])
        left[part.positions] = after
        data = after[:, None].view(np.uint8)
        part.shared.generic_write(
            f, at, part.offsets, data, part.threads, RELAXED_WRITE, scope=scope
        )
    return seen, found, left


def _update_global(f: Fragment, at: int, job: _Job) -> tuple[Integers, Integers, Integers]:
    """
    Update global memory.

    Returns:
        The value that each update reads [k], and the values of its place before and after all
        updates [k].
    """
    memory, scope = f.machine.memory, scope_of(job.atomic.order)
    before = memory.load(f, at, job.addresses, job.atomic.width).view(job.first.dtype)[:, 0]
    seen, after = _in_turn(f, job, slice(None), before)
    if (after != before).any():
        memory.store(f, at, job.addresses, after[:, None].view(np.uint8))
    memory.note(f, at, job.addresses, job.atomic.width, job.threads, UPDATE, scope)
    return seen, before, after


def _in_turn(
    f: Fragment, job: _Job, positions: Threads, before: Integers
) -> tuple[Integers, Integers]:
    """
    Return what each of some updates finds, and what its place holds after all of them.

    Args:
        f: The fragment that executes the instruction.
        job: The updates.
        positions: Indices of the updates that are done [m].
        before: Values of their places before [m].
    """
    first, second = job.first[positions], job.second[positions]
    update = job.atomic.update
    _, where, place = np.unique(job.addresses[positions], return_index=True, return_inverse=True)
    values = before[where]
    seen = before.copy()
    for turn in _turns(f, place):
        seen[turn] = values[place[turn]]
        values[place[turn]] = update(seen[turn], first[turn], second[turn])
    return seen, values[place]


def _turns(f: Fragment, place: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return updates in groups to be done one after another, in none of which two share a place."""
    order = np.arange(len(place))
    if f.machine.chance is not None:
        order = np.array(f.machine.chance.sample(range(len(place)), len(place)))
    elif f.machine.mode.is_reversed:
        order = order[::-1]
    by_place = order[np.argsort(place[order], kind="stable")]
    starts = np.searchsorted(place[by_place], place[by_place])
    rank = np.arange(len(place)) - starts
    return [by_place[rank == turn] for turn in range(int(rank.max()) + 1)]
