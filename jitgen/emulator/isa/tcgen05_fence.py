# SPDX-License-Identifier: Apache-2.0
"""
Order between tcgen05 instructions of different threads: tcgen05.fence and tcgen05.wait.

Loads, stores, copies and products are asynchronous, so that a barrier alone does not order them. A
load or store counts as complete after ``tcgen05.wait``. It is ordered before later instructions of
another warp in three steps: ``tcgen05.fence::before_thread_sync`` of the first warp, which
tcgen05.commit implies; a synchronisation of both warps; and ``fence::after_thread_sync`` of the
other warp, before its asynchronous instructions.

``tcgen05.wait`` is always required: without it the next write where a load read, and the next
access where a store wrote, race with it. Only the registers of a load may be used before, as a true
dependency through a register is respected; such a dependency does not imply that the memory was
read. Memory that is only freed after such loads is a warning, see `tcgen05_alloc`.

Compilers leave the fences out: NVIDIA's CuTeDSL emits none in any kernel. So each of the two is
required only in kernels that have it somewhere; there a missing one is a race.

PTX ISA, sections "Memory Consistency Model for 5th generation of TensorCore operations" (in it
"Register dependencies, same thread"), "tcgen05.wait" and "tcgen05.fence".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import AsyncUnit, Clock
from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.lanes import ALL_LANES
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

LOAD_UNIT, STORE_UNIT = "tcgen05.ld", "tcgen05.st"
"""Units whose work a warp's tcgen05.wait waits for."""

BEFORE, AFTER = "fence::before_thread_sync", "fence::after_thread_sync"

_UNITS = frozenset({"tcgen05", LOAD_UNIT, STORE_UNIT})


@emits("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.fence::before_thread_sync`` and ``::after_thread_sync``."""
    function = hand_on if instruction.has(BEFORE) else take_up
    builder.do(builder.call(function, builder.mask(instruction)))


def hand_on(f: Fragment, at: int, mask: Mask) -> None:
    """
    Order agents that synchronise with these warps from now on after the work that the warps waited
    for.
    """
    for agent in f.selected_warps(mask).tolist():
        for unit, epoch in f.cta.tensor.completed.get(agent, {}).items():
            f.cluster.clocks.learn(agent, unit, epoch)


def take_up(f: Fragment, at: int, mask: Mask) -> None:
    """
    Order the later asynchronous instructions of the warps after everything that the warps are
    ordered after.
    """
    for agent in f.selected_warps(mask).tolist():
        f.cta.tensor.taken_up[agent] = f.cluster.clocks.vector[agent].copy()


@emits("tcgen05.wait::ld", "tcgen05.wait::st", whole_warp=True)
def wait(builder: Builder, instruction: Instruction) -> None:
    """Translate ``tcgen05.wait::ld.sync.aligned`` and ``tcgen05.wait::st.sync.aligned``."""
    refuse_guard(instruction)
    kind = LOAD_UNIT if instruction.has("wait::ld") else STORE_UNIT
    builder.do(builder.call(wait_for, repr(kind)))


def refuse_guard(instruction: Instruction) -> None:
    """
    Refuse a guard: all threads of a warp execute the instruction, so compilers branch around it.
    """
    if instruction.guard is not None:
        raise Unsupported("a guard")


def wait_for(f: Fragment, at: int, kind: str) -> None:
    """Record for each warp that its loads or stores are complete."""
    for warp, agent in zip(f.warps.tolist(), f.agents.tolist(), strict=True):
        complete(f.cta, agent, f.cta.unit(kind, warp))
    f.cluster.clocks.representatives.meet(f.agents)


def complete(cta: Cta, agent: int, unit: AsyncUnit) -> None:
    """
    Order a warp after its own work in a unit. Other warps are ordered after it by a fence, in
    kernels that have fences.
    """
    unit.commit()
    if BEFORE in cta.machine.tensor_opcodes:
        cta.tensor.completed.setdefault(agent, {})[unit.agent] = unit.epoch() - 1
    else:
        unit.complete(cta.cluster.clocks, agent, 0)


def known(cta: Cta, agent: int, clock: Clock) -> Clock:
    """
    Return the clock of an asynchronous instruction of a warp.

    Args:
        cta: The warp's CTA.
        agent: The warp.
        clock: Its own clock, which fences change.
    """
    opcodes = cta.machine.tensor_opcodes
    if AFTER in opcodes:
        units = [
            unit.agent
            for other in cta.cluster.ctas
            for (kind, *_), unit in other.units.items()
            if kind in _UNITS
        ]
        taken_up = cta.tensor.taken_up.get(agent)
        kept = clock[units]
        clock[units] = 0 if taken_up is None else _padded(taken_up, len(clock))[units]
        own = [
            cta.units.get((kind, agent - cta.agent0, ALL_LANES)) for kind in (LOAD_UNIT, STORE_UNIT)
        ]
        for unit in own:
            if unit is not None:
                clock[unit.agent] = kept[units.index(unit.agent)]
    if BEFORE in opcodes:
        for unit_agent, epoch in cta.tensor.completed.get(agent, {}).items():
            clock[unit_agent] = max(clock[unit_agent], epoch)
    return clock


def _padded(clock: Clock, length: int) -> Clock:
    """Return a clock with `length` entries; those of agents that were added later are 0."""
    return np.pad(clock, (0, length - len(clock)))
