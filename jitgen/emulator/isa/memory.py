# SPDX-License-Identifier: Apache-2.0
"""
Loads and stores of threads: ``ld``, ``ldu``, ``st``, and ``prefetch``, which does nothing.

Cache hints change nothing. If a load that synchronises through global memory finds the same value
as the last time, its threads wait until something is written to global memory: they spin.

PTX ISA, sections "ld", "ldu", "st", "prefetch, prefetchu".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread, Vector
from jitgen.emulator.isa import local_memory, ordering
from jitgen.emulator.isa.addressing import (
    GLOBAL,
    LOCAL,
    PARAM,
    SHARED,
    SPACE_PARTS,
    generic,
    resolve,
    shared_parts,
    space_of,
)
from jitgen.emulator.isa.modifiers import width
from jitgen.emulator.isa.ordering import ORDER_PARTS, WEAK, order_of, scope_of
from jitgen.emulator.machine.access import READ, RELAXED_READ, RELAXED_WRITE, WRITE
from jitgen.emulator.machine.agreement import check_agreement
from jitgen.emulator.machine.early_access import check_early_read, check_previous_grid
from jitgen.emulator.machine.fragment import Fragment, Wait, agree
from jitgen.emulator.machine.global_history import CONSTANT_READ
from jitgen.emulator.machine.scopes import Scope
from jitgen.emulator.program.builder import PARAM_BASE, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None
Threads = NDArray[np.int64] | slice
"""Threads of a fragment, as indices 0..n-1; a slice is all of them."""

_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HINTS = frozenset({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"})
_PARAM_SHIFT = 16


@dataclass(frozen=True)
class Transfer:
    """
    The modifiers of a load or store.

    Attributes:
        space: State space.
        width: Bytes of an element.
        count: Elements of each thread.
        order: Memory order and scope, as `ordering.order_of` returns them.
        is_constant: Whether the memory is read only, as .nc says.
    """

    space: str
    width: int
    count: int
    order: str
    is_constant: bool = False

    @property
    def bytes(self) -> int:
        """Bytes that each thread transfers."""
        return self.width * self.count

    @cached_property
    def scope(self) -> Scope:
        """Scope of the transfer's order; without meaning if that is weak."""
        return scope_of(self.order)


def transfer_of(instruction: Instruction, names: list[str]) -> Transfer:
    """
    Return the modifiers of a load or store.

    Args:
        instruction: A load or store.
        names: Its registers. One of 128 bits counts as two of 64.

    Raises:
        Unsupported: A modifier or type is not known, or the vector has another length.
    """
    *modifiers, kind = instruction.parts[1:]
    known = SPACE_PARTS | ORDER_PARTS | _HINTS | _VECTORS.keys()
    strange = [part for part in modifiers if part not in known and not part.startswith("L")]
    if strange:
        raise Unsupported(f"modifier .{strange[0]}")
    bits = width(kind)
    count = next((_VECTORS[part] for part in modifiers if part in _VECTORS), 1)
    if bits == 128:
        bits, count = 64, 2 * count
    if count != len(names) or bits not in {8, 16, 32, 64}:
        raise Unsupported(f"{len(names)} registers of type .{kind}")
    order, is_constant = order_of(instruction), "nc" in modifiers
    return Transfer(space_of(instruction), bits // 8, count, order, is_constant)


def _may_spin(instruction: Instruction) -> bool:
    return order_of(instruction) != WEAK and space_of(instruction) not in {SHARED, PARAM}


@emits("ld", "ldu", starts_block=_may_spin, is_wait=_may_spin)
def emit_load(builder: Builder, instruction: Instruction) -> None:
    """Translate ``ld.global.v4.b32 {d, ...}, [address]``."""
    names = builder.names(instruction.operands[0])
    transfer = builder.constant(transfer_of(instruction, names), "transfer")
    arguments = (builder.mask(instruction), builder.address(instruction.operands[1]), transfer)
    loaded = builder.temporary()
    if _may_spin(instruction):
        builder.do(f"{loaded} = {builder.call(load_and_wait, *arguments)}")
        builder.do(f"if not isinstance({loaded}, np.ndarray): return {loaded}")
    else:
        builder.do(f"{loaded} = {builder.call(load, *arguments)}")
    kind = instruction.parts[-1]
    for i, name in enumerate(names):
        define_loaded(builder, instruction, name, f"{loaded}[{i}]", kind)


def define_loaded(
    builder: Builder, instruction: Instruction, name: str, expression: str, kind: str
) -> None:
    """Assign an element, an unsigned array, to a register that may be wider than its type."""
    bits = min(width(kind), 64)
    if name == "_":
        return
    size = {"h": 16, "r": 32, "q": 64}.get(builder.register(name)[0], 0)
    if size < bits:
        raise Unsupported(f"register {name} for type .{kind}")
    if kind.startswith("s") and size > bits:
        expression = f"{expression}.view('i{bits // 8}').astype('i{size // 8}')"
        builder.define(name, expression, f"s{size}", instruction)
    else:
        builder.define(name, expression, f"b{bits}", instruction)


def load(f: Fragment, at: int, mask: Mask, addresses: PerThread, transfer: Transfer) -> Integers:
    """
    Return what threads load, unsigned [count, n]; zeros for threads that are not under the mask.

    Raises:
        MachineFault: Out of bounds or not aligned.
    """
    spread = f.spread(addresses)
    dtype = f"u{transfer.width}"
    if mask is None:
        return _fetch(f, at, spread, slice(None), transfer).view(dtype).T
    loaded = np.zeros((f.n, transfer.count), dtype)
    chosen = np.flatnonzero(mask)
    if len(chosen):
        loaded[chosen] = _fetch(f, at, spread[chosen], chosen, transfer).view(dtype)
    return loaded.T


def load_and_wait(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, transfer: Transfer
) -> Integers | Wait:
    """
    Return what `load` returns; or, if threads only loop until the loaded values change, their wait.
    """
    loaded = load(f, at, mask, addresses, transfer)
    return wait_if_spinning(f, at, loaded.tobytes()) or loaded


def wait_if_spinning(f: Fragment, at: int, found: bytes) -> Wait | None:
    """
    Return the wait of threads that loaded the same values twice with no write to global memory in
    between; None if they did not.

    Args:
        f: The fragment that executes the instruction.
        at: The instruction, at which its block starts.
        found: The bytes that were loaded.
    """
    machine, stamp = f.machine, f.machine.timeline.events
    if not f.is_spinning(at, stamp, found):
        return None
    return Wait(
        at,
        is_over=lambda: machine.timeline.events != stamp,
        describe=lambda: "another value in global memory",
    )


def _fetch(
    f: Fragment, at: int, addresses: Integers, threads: Threads, transfer: Transfer
) -> NDArray[np.uint8]:
    """Return the bytes that threads load [k, bytes]."""
    space, addresses = resolve(f, at, transfer.space, addresses)
    return _FETCHES[space](f, at, addresses, threads, transfer)


def _fetch_shared(
    f: Fragment, at: int, addresses: Integers, threads: Threads, transfer: Transfer
) -> NDArray[np.uint8]:
    kind = READ if transfer.order == WEAK else RELAXED_READ
    parts = list(shared_parts(f, at, addresses, transfer.bytes, threads))
    found = [
        part.shared.generic_read(
            f, at, part.offsets, transfer.bytes, part.threads, kind, scope=transfer.scope
        )
        for part in parts
    ]
    data = found[0]
    if len(parts) > 1:
        data = np.empty((len(addresses), transfer.bytes), np.uint8)
        for part, values in zip(parts, found, strict=True):
            data[part.positions] = values
    _acquire(f, at, SHARED, addresses, threads, data, transfer)
    return data


def _fetch_global(
    f: Fragment, at: int, addresses: Integers, threads: Threads, transfer: Transfer
) -> NDArray[np.uint8]:
    check_early_read(f, at, threads, addresses.astype(np.int64), transfer.bytes)
    data = f.machine.memory.load(f, at, addresses, transfer.bytes)
    kind = CONSTANT_READ if transfer.is_constant else READ
    kind = kind if transfer.order == WEAK else RELAXED_READ
    _acquire(f, at, GLOBAL, addresses, threads, data, transfer)
    f.machine.memory.note(f, at, addresses, transfer.bytes, threads, kind, transfer.scope)
    return data


def _fetch_param(
    f: Fragment, at: int, addresses: Integers, threads: Threads, transfer: Transfer
) -> NDArray[np.uint8]:
    """Return bytes of parameters; nearly always all threads load the same."""
    del threads
    if agree(addresses):
        data = param_bytes(f, at, int(addresses[0]), transfer.bytes)
        return np.frombuffer(data * len(addresses), np.uint8).reshape(len(addresses), -1)
    distinct, each = np.unique(addresses, return_inverse=True)
    rows = [param_bytes(f, at, address, transfer.bytes) for address in distinct.tolist()]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)[each]


def _fetch_local(
    f: Fragment, at: int, addresses: Integers, threads: Threads, transfer: Transfer
) -> NDArray[np.uint8]:
    return local_memory.fetch(f, at, addresses, transfer.bytes, threads)


_FETCHES = {
    SHARED: _fetch_shared, GLOBAL: _fetch_global, PARAM: _fetch_param, LOCAL: _fetch_local,
}  # fmt: skip


def param_bytes(f: Fragment, at: int, address: int, size: int) -> bytes:
    """
    Return bytes of a kernel parameter.

    Raises:
        MachineFault: The parameter does not have as many.
    """
    number, offset = divmod(address - PARAM_BASE, 1 << _PARAM_SHIFT)
    params = f.machine.launch.params
    found = params[number][offset : offset + size] if 0 <= number < len(params) else b""
    if len(found) < size:
        f.fault(at, f"parameter {number} does not have the bytes {offset}..{offset + size}")
    return found


def _acquire(
    f: Fragment,
    at: int,
    space: str,
    addresses: Integers,
    threads: Threads,
    data: NDArray[np.uint8],
    transfer: Transfer,
) -> None:
    """
    Join the clocks that were released at the loaded addresses to the threads' clocks, if anything
    depends on the value.
    """
    if transfer.order == WEAK or f.machine.observed.ignores(at):
        return
    met, agents = generic(f, space, addresses), f.agent_of[threads]
    elements = np.ascontiguousarray(data).view(f"u{transfer.width}")
    for number in range(transfer.count):
        where = met + transfer.width * number
        f.machine.observed.read(f, at, where, agents, elements[:, number])
    ordering.acquire(f, met, agents, transfer.order)


def warps_of(f: Fragment, threads: Threads) -> NDArray[np.int64]:
    """Return the agents of the warps that some threads belong to."""
    return f.agents if isinstance(threads, slice) else f.agents_of(threads)


@emits("st")
def emit_store(builder: Builder, instruction: Instruction) -> None:
    """Translate ``st.shared.v4.b32 [address], {a, ...}``."""
    names = builder.names(instruction.operands[1])
    transfer = transfer_of(instruction, names)
    values = builder.values(instruction.operands[1], f"b{8 * transfer.width}")
    call = builder.call(
        store,
        builder.mask(instruction),
        builder.address(instruction.operands[0]),
        builder.constant(transfer, "transfer"),
        f"({', '.join(values)},)",
    )
    builder.do(call)


def store(
    f: Fragment, at: int, mask: Mask, addresses: PerThread, transfer: Transfer, values: Vector
) -> None:
    """
    Store a tuple of unsigned values, each [n] or a scalar, for the threads under the mask.

    Args:
        f: The fragment that stores.
        at: Number of its instruction.
        mask: Threads that store; None: all.
        addresses: The address to which each thread stores.
        transfer: State space, sizes and memory order.
        values: The stored values.

    Raises:
        MachineFault: An address is out of bounds, not aligned, or that of a parameter.
    """
    spread = f.spread(addresses)
    data = np.stack([f.spread(value) for value in values], axis=1).view(np.uint8)
    threads: Threads = slice(None)
    if mask is not None:
        threads = np.flatnonzero(mask)
        if not len(threads):
            return
        spread, data = spread[threads], data[threads]
    space, spread = resolve(f, at, transfer.space, spread)
    if space == SHARED:
        _store_shared(f, at, spread, threads, data, transfer)
    elif space == GLOBAL:
        check_previous_grid(f, at, warps_of(f, threads))
        if transfer.order != WEAK and f.machine.observed.watches:
            before = f.machine.memory.load(f, at, spread, transfer.bytes)
            met = generic(f, space, spread)
            _note_relaxed(f, at, met, threads, before, data, transfer.width)
        ordering.settle(f, transfer.order)
        f.machine.memory.store(f, at, spread, data, transfer.width)
        kind = WRITE if transfer.order == WEAK else RELAXED_WRITE
        f.machine.memory.note(f, at, spread, transfer.bytes, threads, kind, transfer.scope)
        if kind == WRITE:
            check_agreement(f, at, spread.astype(np.int64), data, threads, "global memory")
    elif space == LOCAL:
        local_memory.put(f, at, spread, data, threads)
    else:
        f.fault(at, "a store to a kernel parameter")
    if transfer.order != WEAK:
        agents = f.agent_of[threads]
        ordering.release(f, generic(f, space, spread), agents, transfer.order, adds=False)


def _note_relaxed(
    f: Fragment,
    at: int,
    addresses: NDArray[np.int64],
    threads: Threads,
    before: NDArray[np.uint8],
    data: NDArray[np.uint8],
    width_: int,
) -> None:
    """Note relaxed stores of `data` [k, bytes] over `before` [k, bytes], at generic addresses."""
    old, new = (np.ascontiguousarray(x).view(f"u{width_}") for x in (before, data))
    for number in range(new.shape[1]):
        f.machine.observed.update(
            f,
            at,
            addresses + width_ * number,
            f.agent_of[threads],
            old[:, number],
            new[:, number],
        )


def _store_shared(
    f: Fragment,
    at: int,
    addresses: Integers,
    threads: Threads,
    data: NDArray[np.uint8],
    transfer: Transfer,
) -> None:
    kind = WRITE if transfer.order == WEAK else RELAXED_WRITE
    for part in shared_parts(f, at, addresses, transfer.bytes, threads):
        if kind == RELAXED_WRITE:
            met = generic(f, SHARED, addresses[part.positions])
            before = part.shared.peek(part.offsets, transfer.bytes)
            _note_relaxed(f, at, met, part.threads, before, data[part.positions], transfer.width)
        part.shared.generic_write(
            f,
            at,
            part.offsets,
            data[part.positions],
            part.threads,
            kind,
            scope=transfer.scope,
        )


@emits("prefetch", "prefetchu")
def prefetch(builder: Builder, instruction: Instruction) -> None:
    """Do nothing for ``prefetch.global.L2 [address]``, as there is no cache."""
