# SPDX-License-Identifier: Apache-2.0
"""
The checked use of mbarriers: every instruction that initialises, signals, awaits or ends one gets
it from `use`.

So every rule about barriers as such holds for all instructions. Rules about counts and phases are
asked when a signal counts: `MBarrier.arrive`, `MBarrier.complete`, `Phases`.

PTX ISA, section "Parallel Synchronization and Communication Instructions: mbarrier", with "Size and
alignment of mbarrier object", "Contents of the mbarrier object", "Lifecycle of the mbarrier object"
and "mbarrier support with shared memory"; sections "mbarrier.init" and "mbarrier.inval".
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.barriers import MAX_COUNT, MBarrier
from jitgen.emulator.machine.cta import OFFSET_MASK, Cta
from jitgen.emulator.machine.live_barriers import MBARRIER_BYTES

if TYPE_CHECKING:
    from jitgen.emulator.machine.fragment import Fragment


class Use(Enum):
    """The use of a barrier by an instruction."""

    INIT = auto()
    """mbarrier.init"""

    INVAL = auto()
    """mbarrier.inval"""

    SIGNAL = auto()
    """Threads arrive, expect bytes or complete some."""

    WAIT = auto()
    """Threads test whether a phase is complete."""

    ARRIVE_LATER = auto()
    """Work through the async proxy will arrive."""

    COMPLETE_LATER = auto()
    """Work through the async proxy will complete bytes."""

    COPY_LATER = auto()
    """Copies of cp.async, through the generic proxy, will arrive."""


_FAR = frozenset({Use.SIGNAL, Use.ARRIVE_LATER, Use.COMPLETE_LATER})
"""The uses that are also allowed to threads of other CTAs."""

_WORDS = {Use.INIT: "initialisation", Use.INVAL: "end", Use.WAIT: "wait"}


def use(
    f: Fragment, at: int, address: int, agents: NDArray[np.int64], what: Use, count: int = 0
) -> MBarrier:
    """
    Return the barrier at a shared address, which warps use now.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        address: Address of the barrier.
        agents: The warps [k] of the threads that use it; one that initialises or ends it.
        what: Description of the use.
        count: Arrivals of a phase, of one that is initialised.

    Raises:
        MachineFault: Not aligned, of a CTA that is not in the cluster or whose barriers are not
            for this, a count out of range; or no barrier is there.
    """
    cta = f.cluster.cta(f, at, address)
    offset = int(address) & OFFSET_MASK
    if offset % MBARRIER_BYTES:
        f.fault(at, f"the mbarrier at {address:#x} is not at a multiple of {MBARRIER_BYTES}")
    if cta is not f.cta and what not in _FAR:
        words = _WORDS.get(what, "arrival by cp.async")
        f.fault(at, f"{words} for mbarrier {offset:#x} of {cta.name}, a barrier of another CTA")
    if what is Use.INIT:
        return _initialise(f, at, cta, offset, int(agents[0]), count)
    barrier = cta.guarded.by_offset.get(offset)
    if barrier is None:
        f.fault(at, _absent(f, cta, address))
    if not barrier.users.are_informed(agents):
        message = f"{barrier.name} is used by a warp that is not ordered after\n  {_start(barrier)}"
        f.warn(at, "race", message)
    if what is Use.INVAL:
        _end(f, at, barrier, int(agents[0]))
        return barrier
    barrier.users.note(agents)
    if what is Use.COMPLETE_LATER:
        barrier.users.note_work(barrier.agent, barrier.phase + 1)
        _check_fenced(f, at, barrier, agents)
    elif what is Use.ARRIVE_LATER:
        _check_fenced(f, at, barrier, agents)
    elif cta is not f.cta:
        cta.note_remote(agents, at)
    return barrier


def _start(barrier: MBarrier) -> str:
    """Return a text that says where in the program a barrier was initialised."""
    return barrier.cta.machine.program.place(barrier.at)


def _absent(f: Fragment, cta: Cta, address: int) -> str:
    """Return a fault's text: no barrier is at this address, and where the last one there ended."""
    ended = cta.guarded.ended.get(int(address) & OFFSET_MASK)
    if ended is None:
        return f"no mbarrier was initialised at {address:#x}"
    place = f.machine.program.place(ended)
    return f"no mbarrier was initialised at {address:#x} since the last one ended\n  at {place}"


def _initialise(f: Fragment, at: int, cta: Cta, offset: int, agent: int, count: int) -> MBarrier:
    """Make a barrier; one that is there already must have ended first."""
    if not 1 <= count <= MAX_COUNT:
        f.fault(at, f"an mbarrier of {count} arrivals")
    known = cta.guarded.by_offset.get(offset)
    if known is not None:
        message = f"{known.name} is initialised again without mbarrier.inval"
        f.warn(at, "mbarrier", f"{message}\n  at {_start(known)}")
        _check_over(f, at, known, agent)
    barrier = MBarrier(cta, offset, count, at, (agent, f.cluster.clocks.now(agent)))
    cta.guarded.add(barrier)
    return barrier


def _end(f: Fragment, at: int, barrier: MBarrier, agent: int) -> None:
    """
    End a barrier, so that its bytes are plain memory again; all of its uses must be ordered before.
    """
    _check_over(f, at, barrier, agent)
    barrier.cta.guarded.remove(barrier, at)


def _check_over(f: Fragment, at: int, barrier: MBarrier, agent: int) -> None:
    """
    Report uses of a barrier that its end is not ordered after: waits, signals and work to come.

    The end and another beginning write the object; each conflicts with all operations on it.
    """
    clocks = f.cluster.clocks
    user = barrier.users.unknown_to(agent)
    if user >= 0:
        f.warn(
            at,
            "race",
            f"{barrier.name} ends, and nothing orders that after its use by {clocks.name(user)}",
        )


def _check_fenced(f: Fragment, at: int, barrier: MBarrier, agents: NDArray[np.int64]) -> None:
    """
    Report warps whose asynchronous work signals a barrier, though no fence stands between.

    Initialisation is a write of the generic proxy. PTX ISA, sections "Proxies" and "membar,
    fence" (fence.mbarrier_init, fence.proxy.async).
    """
    for agent in agents.tolist():
        knows = f.cluster.clocks.vector[agent]
        if not any(knows[other] >= epoch for other, epoch in barrier.fences.items()):
            message = (
                f"no fence.mbarrier_init or fence.proxy.async between the initialisation of "
                f"{barrier.name} and its use by asynchronous work\n  at {_start(barrier)}"
            )
            f.warn(at, "proxy", message)
