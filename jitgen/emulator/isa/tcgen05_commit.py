# SPDX-License-Identifier: Apache-2.0
"""
tcgen05.commit: an mbarrier is signalled when work of the tensor core has ended.

PTX ISA, section "tcgen05.commit".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.isa.tcgen05_group import check_parts, num_ctas
from jitgen.emulator.isa.tcgen05_unit import Issue, issue
from jitgen.emulator.machine.barrier_use import Use, use
from jitgen.emulator.machine.barriers import MBarrier
from jitgen.emulator.machine.clocks import Clock
from jitgen.emulator.machine.cta import OFFSET_MASK, RANK_SHIFT
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.phases import Signaller
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits

Mask = NDArray[np.bool_] | None


@emits("tcgen05.commit")
def commit(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [barrier],
    ctas``.
    """
    check_parts(
        instruction,
        "cta_group::1 cta_group::2 mbarrier::arrive::one shared::cluster multicast::cluster b64",
    )
    num_ctas(builder, instruction)
    address, *ctas = instruction.operands
    bits = builder.value(ctas[0], "u16") if ctas else "None"
    mask = builder.mask(instruction)
    builder.do(builder.call(arrive, mask, builder.address(address), bits))


def arrive(f: Fragment, at: int, mask: Mask, address: PerThread, ctas: PerThread) -> None:
    """
    For each thread under the mask, arrive at a barrier when the work that it issued is done.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        address: Address of the barrier.
        ctas: A bit for each CTA of the cluster at whose barrier of the same offset it arrives;
            None: at the one of the address.
    """
    for thread in f.selected(mask).tolist():
        where = int(f.spread(address)[thread])
        wheres = [where] if ctas is None else _targets(where, int(f.spread(ctas)[thread]))
        issued = issue(f, at, thread)
        agent = f.agent_of[thread : thread + 1]
        barriers = [use(f, at, target, agent, Use.ARRIVE_LATER) for target in wheres]
        by = [barrier.phases.signaller(agent) for barrier in barriers]
        for barrier in barriers:
            issued.note_remote(barrier.cta)
        clock = issued.commit()
        for barrier in barriers:
            barrier.users.note_work(issued.unit.agent, int(clock[issued.unit.agent]))
        signals = list(zip(barriers, by, strict=True))
        f.cluster.queues.issue("matrix", _arrival(issued, signals, clock))


def _targets(address: int, ctas: int) -> list[int]:
    """Return the addresses of a barrier in the CTAs of a mask."""
    offset = address & OFFSET_MASK
    return [rank << RANK_SHIFT | offset for rank in range(ctas.bit_length()) if ctas >> rank & 1]


def _arrival(
    issued: Issue, signals: list[tuple[MBarrier, Signaller]], clock: Clock
) -> Callable[[], None]:
    def run() -> None:
        for barrier, by in signals:
            barrier.arrive(issued.f, issued.at, 1, clock, by)

    return run
