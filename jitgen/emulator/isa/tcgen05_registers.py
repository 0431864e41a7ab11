# SPDX-License-Identifier: Apache-2.0
"""
tcgen05.ld and tcgen05.st: tensor memory from and to registers, by warps.

Registers hold what is loaded at once, as a dependency through a register is respected.
`tcgen05_fence` says when other threads may know that a load or store is complete.

PTX ISA, sections "Data Movement Shape", "tcgen05.ld" and "tcgen05.st".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.formats.tensor_layouts import LANES_OF_WARP, REGISTERS_OF_REPEAT, pattern
from jitgen.emulator.isa.tcgen05_fence import (
    LOAD_UNIT,
    STORE_UNIT,
    refuse_guard,
)
from jitgen.emulator.isa.tcgen05_group import check_parts
from jitgen.emulator.isa.tcgen05_unit import issue_by_warps
from jitgen.emulator.machine.access import READ, WRITE, Access
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.tensor_memory import (
    Cells,
    Load,
    granule_at,
    granules_of,
    split_address,
)
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Registers = NDArray[np.uint32]

_REPEATS = [f"x{1 << power}" for power in range(8)]
_QUARTERS = 4
_HALF_BITS = np.uint32(16)
_HALF_MASK = np.uint32(0xFFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """
    A shape of tcgen05.ld and tcgen05.st; there is one object of each.

    Attributes:
        lanes, columns: Lanes and columns of the words that registers hold, relative to the address
            [registers, 32], or [2, registers, 32] if packed.
        is_packed: Whether a register holds two half words.
        is_half: Whether a warp accesses 16 lanes instead of 32.
        granules: The granules of these words, relative to the address.
    """

    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]
    is_packed: bool
    is_half: bool
    granules: NDArray[np.int64]


@lru_cache(maxsize=256)
def shape_of(name: str, registers: int, *, is_packed: bool, second: int = 0) -> Shape:
    """
    Return the shape of a tcgen05.ld or tcgen05.st.

    Args:
        name: ``"32x32b"``, ...
        registers: Registers of a thread.
        is_packed: Whether the instruction has ``.pack::16b`` or ``.unpack::16b``.
        second: Columns from the first address to the second, of the shape ``16x32bx2``.
    """
    found = pattern(name, registers, is_packed=is_packed)
    columns = found.columns + np.where(found.is_second, second, 0)
    is_half = name != "32x32b"
    granules = granules_of(found.lanes, columns)
    return Shape(found.lanes, columns, is_packed, is_half, granules)


def _parse(instruction: Instruction, vector: list[str], rest: list[str]) -> Shape:
    """Return the shape of an instruction with a vector of registers; `rest` holds its immediate."""
    names = [part for part in instruction.parts if part in REGISTERS_OF_REPEAT]
    repeats = [part for part in instruction.parts if part in _REPEATS]
    check_parts(instruction, " ".join(["sync aligned b32 pack::16b unpack::16b", *names, *repeats]))
    if len(names) != 1 or len(repeats) != 1:
        raise Unsupported("no shape")
    name, repeat = names[0], int(repeats[0][1:])
    if len(vector) != REGISTERS_OF_REPEAT[name] * repeat:
        raise Unsupported(f"{len(vector)} registers of .{name}.x{repeat}")
    if bool(rest) != (name == "16x32bx2"):
        raise Unsupported("operands")
    is_packed = instruction.has("pack::16b") or instruction.has("unpack::16b")
    second = int(rest[0], 0) if rest else 0
    return shape_of(name, len(vector), is_packed=is_packed, second=second)


@emits("tcgen05.ld", whole_warp=True)
def ld(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.ld.sync.aligned.32x32b.x4.b32 {r0, r1, r2, r3}, [address]``."""
    refuse_guard(instruction)
    target, address, *rest = instruction.operands
    registers = builder.names(target)
    shape = builder.constant(_parse(instruction, registers, rest), "tensor_shape")
    loaded = builder.temporary()
    builder.do(f"{loaded} = {builder.call(load, builder.address(address), shape)}")
    for number, register in enumerate(registers):
        builder.define(register, f"{loaded}[{number}]", "b32", instruction)


@emits("tcgen05.st", whole_warp=True)
def st(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.st.sync.aligned.32x32b.x4.b32 [address], {r0, r1, r2, r3}``."""
    refuse_guard(instruction)
    address, *rest, source = instruction.operands
    shape = builder.constant(_parse(instruction, builder.names(source), rest), "tensor_shape")
    values = ", ".join(builder.values(source, "b32"))
    builder.do(builder.call(store, builder.address(address), shape, f"[{values}]"))


@dataclass(frozen=True, slots=True)
class Part:
    """
    Warps of one warpgroup, each of which accesses different lanes.

    Attributes:
        threads: Threads of the warps, as indices 0..n-1 of the fragment's [k].
        cells: The words [registers, k], or [2, registers, k] if packed.
        is_turned: Whether the words are [k, registers] instead, as slices of tensor memory are.
        warps: The warp of each granule, as an index of the fragment's warps.
    """

    threads: slice
    cells: Cells
    is_turned: bool
    warps: NDArray[np.int64]

    def turned(self, registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return registers or words, transposed to the order of the other if `is_turned`."""
        return registers.T.copy() if self.is_turned else registers


def _parts(f: Fragment, at: int, addresses: PerThread, shape: Shape) -> tuple[Part, ...]:
    """Return what the fragment accesses, so that no two warps of a part share lanes."""
    bases = _bases(f, at, addresses, shape.is_half)
    return _parts_at(f.lanes.tobytes(), bases.tobytes(), shape)


@lru_cache(maxsize=256)
def _parts_at(numbers: bytes, of_warps: bytes, shape: Shape) -> tuple[Part, ...]:
    """
    Return the parts of a fragment, from its threads and the addresses of its warps.

    Args:
        numbers: Numbers of the threads, ascending, int64 [n].
        of_warps: Lane and column of the address of each warp, int64 [warps, 2].
        shape: The lanes and columns that each warp accesses.
    """
    lanes = np.frombuffer(numbers, np.int64)
    bases = np.frombuffer(of_warps, np.int64).reshape(-1, 2)
    names, starts, counts = np.unique(lanes // LANES_OF_WARP, return_index=True, return_counts=True)
    groups, parts = names // _QUARTERS, []
    for group in np.unique(groups).tolist():
        warps = np.flatnonzero(groups == group)
        first, last = int(warps[0]), int(warps[-1])
        threads = slice(int(starts[first]), int(starts[last] + counts[last]))
        lane_ids = lanes[threads] % LANES_OF_WARP
        index = tuple(
            relative[..., lane_ids] + np.repeat(bases[warps, axis], counts[warps])
            for axis, relative in enumerate((shape.lanes, shape.columns))
        )
        granules = [shape.granules + granule_at(*bases[warp].tolist()) for warp in warps]
        rows = np.repeat(warps, len(shape.granules))
        box = None if shape.is_packed else _box(*index)
        cells = Cells(box or index, np.concatenate(granules))
        parts.append(Part(threads, cells, box is not None, rows))
    return tuple(parts)


def _box(lanes: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[slice, slice] | None:
    """
    Return the slices of lanes and columns with the words [registers, k]; None if these are not
    adjacent.
    """
    lane, column = int(lanes[0, 0]), int(columns[0, 0])
    is_box = (lanes == lane + np.arange(lanes.shape[1])).all() and (
        columns == column + np.arange(len(columns))[:, None]
    ).all()
    if not is_box:
        return None
    return slice(lane, lane + lanes.shape[1]), slice(column, column + len(columns))


def _bases(f: Fragment, at: int, addresses: PerThread, is_half: bool) -> NDArray[np.int64]:
    """Return lane and column of each warp's address, [warps, 2]; fault for another warp's lanes."""
    addresses = f.spread(addresses)
    firsts = addresses[f.warp_starts]
    if (np.repeat(firsts, f.threads.counts) != addresses).any():
        f.fault(at, "the threads of a warp disagree about the address")
    bases = np.array([split_address(int(address)) for address in firsts], np.int64)
    allowed = LANES_OF_WARP * (f.warps % _QUARTERS)
    lanes = bases[:, 0] & ~16 if is_half else bases[:, 0]
    if (lanes != allowed).any():
        warp = int((lanes != allowed).argmax())
        f.fault(
            at,
            f"warp {f.warps[warp]} accesses lanes from {bases[warp, 0]} on; its own begin at "
            f"{allowed[warp]}",
        )
    return bases


def _started(f: Fragment, at: int, kind: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start work of a unit for each warp; return the units' agents and epochs [warps]."""
    started = issue_by_warps(f, at, kind)
    return np.array([unit.agent for unit in started]), np.array([unit.epoch() for unit in started])


def load(f: Fragment, at: int, addresses: PerThread, shape: Shape) -> Registers:
    """Load from tensor memory; return the registers, uint32 [registers, n]."""
    found = []
    agents, epochs = _started(f, at, LOAD_UNIT)
    for agent, unit, epoch in zip(f.agents.tolist(), agents.tolist(), epochs.tolist(), strict=True):
        issued = f.cluster.clocks.now(agent) - 1
        f.cta.tensor.loads[unit] = Load(agent, issued, epoch, at)
    for part in _parts(f, at, addresses, shape):
        units, when = agents[part.warps], epochs[part.warps]
        f.cta.tensor.note(f, at, part.cells, Access(READ, units, when, units))
        words = part.turned(f.cta.tensor.take(f, at, part.cells))
        if shape.is_packed:
            words = words[0] & _HALF_MASK | words[1] << _HALF_BITS
        found.append(words)
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def store(
    f: Fragment, at: int, addresses: PerThread, shape: Shape, values: list[PerThread]
) -> None:
    """Write registers, each a scalar or [n], to tensor memory."""
    registers = np.stack([f.spread(value) for value in values])
    if shape.is_packed:
        registers = np.stack([registers & _HALF_MASK, registers >> _HALF_BITS])
    agents, epochs = _started(f, at, STORE_UNIT)
    for part in _parts(f, at, addresses, shape):
        units, when = agents[part.warps], epochs[part.warps]
        f.cta.tensor.note(f, at, part.cells, Access(WRITE, units, when, units))
        f.cta.tensor.put(part.cells, part.turned(registers[..., part.threads]))
