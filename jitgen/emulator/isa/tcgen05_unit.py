# SPDX-License-Identifier: Apache-2.0
"""
The tensor core as an agent: the work of a thread, in the order of issue.

Matrix instructions, copies into tensor memory and commits of one thread are executed one after the
other, as far as they form pipelines: see `machine.tensor_pipelines`. Other agents, also threads of
the same warp, know their results only after a commit, which tracks the work of its own thread. All
accesses are noted when the instruction is issued, with what the warp knows then, and done when the
mode says so.

PTX ISA, sections "tcgen05 Memory Consistency Model", "Pipelined tcgen05 Instructions", "Issue
Granularity" and "tcgen05.commit".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.formats import descriptors
from jitgen.emulator.isa.tcgen05_fence import AFTER, BEFORE, known
from jitgen.emulator.machine.access import READ, WRITE, Access
from jitgen.emulator.machine.clocks import AsyncUnit, Clock
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.fragment import WARP, Fragment
from jitgen.emulator.machine.lanes import ALL_LANES
from jitgen.emulator.machine.tensor_memory import Cells
from jitgen.emulator.machine.tensor_pipelines import Product

KIND = "tcgen05"


@dataclass(frozen=True, slots=True)
class Issue:
    """
    One instruction for the tensor core, issued by one thread.

    Attributes:
        f: The fragment of that thread.
        at: Index of the instruction.
        unit: The unit that executes it.
        done: The epoch up to which the thread is ordered after the unit's work.
    """

    f: Fragment
    at: int
    unit: AsyncUnit
    done: int

    def note_shared_read(self, cta: Cta, where: NDArray[np.int64]) -> None:
        """Note that bytes of a CTA's shared memory are read."""
        unit = self.unit
        cta.shared.note_async_read(self.f, self.at, where, unit.agent, unit.epoch(), unit.agent)
        self.note_remote(cta)

    def note_read(self, cta: Cta, cells: Cells) -> None:
        """Note that words of a CTA's tensor memory are read."""
        self._note(cta, cells, READ)

    def note_write(self, cta: Cta, cells: Cells, product: Product | None = None) -> None:
        """Note that words of a CTA's tensor memory are written, by a product or by a copy."""
        self._note(cta, cells, WRITE, product)
        if product is not None:
            cta.tensor.pipelines.note(cells.granules, product)

    def _note(self, cta: Cta, cells: Cells, kind: str, product: Product | None = None) -> None:
        unit = self.unit
        access = Access(kind, unit.agent, unit.epoch(), unit.agent)
        cta.tensor.note(self.f, self.at, cells, access)
        pipelines = cta.tensor.pipelines
        earlier = pipelines.unordered(cells.granules, unit.agent, self.done, product)
        if earlier is not None:
            self.f.warn(
                self.at,
                "race",
                f"{kind} of tensor memory of {cta.name} is not ordered after a product of the same "
                "thread, whose accumulator or shape is another\n"
                f"  at {self.f.machine.program.place(earlier.at)}",
            )

    def product(self, accumulator: int, shape: tuple[int, int, int]) -> Product:
        """Return the record of a product that pipelines compare with earlier ones."""
        return Product(accumulator, shape, self.unit.agent, self.unit.epoch(), self.at)

    def note_remote(self, cta: Cta) -> None:
        """Note that another CTA than the issuing one must not exit before the work is done."""
        if cta is not self.f.cta:
            cta.note_remote(np.array([self.unit.agent]), self.at)

    def commit(self) -> Clock:
        """Close the open group and return the clock that a thread which waits for it gets."""
        clock = self.f.cluster.clocks.release_one(self.unit.agent)
        self.unit.commit()
        return clock


def issue(f: Fragment, at: int, thread: int, kind: str = KIND) -> Issue:
    """
    Return an issue by a thread, 0..n-1 of the fragment's; its unit acquires the clock that `known`
    returns.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        thread: The thread.
        kind: Name of the unit: the thread's tensor core, or another one of its warp.
    """
    warp, lane = divmod(int(f.lanes[thread]), WARP)
    clocks, agent = f.cluster.clocks, f.cta.agent0 + warp
    unit = f.cta.unit(kind, warp, lane if kind == KIND else ALL_LANES)
    clock = known(f.cta, agent, clocks.release_one(agent))
    clocks.acquire(unit.agent, clock)
    clocks.learn(unit.agent, unit.agent, unit.epoch())
    return Issue(f, at, unit, int(clock[unit.agent]))


def issue_by_warps(f: Fragment, at: int, kind: str) -> list[AsyncUnit]:
    """Let each warp issue work of its own unit, as `issue` does; return the units."""
    if f.machine.tensor_opcodes & {BEFORE, AFTER}:
        return [issue(f, at, thread, kind).unit for thread in f.warp_starts.tolist()]
    units = [f.cta.unit(kind, warp) for warp in f.warps.tolist()]
    agents = np.array([unit.agent for unit in units])
    epochs = np.array([unit.epoch() for unit in units])
    f.cluster.clocks.hand_over(f.agents, agents, epochs)
    return units


def operand_offsets(
    f: Fragment, at: int, bits: int, operand: descriptors.Operand
) -> NDArray[np.int64]:
    """
    Return the shared-memory offset of each byte, [rows, row_bytes], of what a descriptor names.

    Raises:
        MachineFault: The descriptor is not valid.
    """
    try:
        found = descriptors.offsets(descriptors.of_tcgen05(bits), operand)
    except ValueError as error:
        f.fault(at, str(error))
    found.flags.writeable = False  # so that it is known by its identity
    return found
