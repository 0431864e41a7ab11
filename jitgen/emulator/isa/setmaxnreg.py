# SPDX-License-Identifier: Apache-2.0
"""
``setmaxnreg``: warps give registers back, or wait until they can have more.

PTX ISA, section "setmaxnreg". An increase blocks until the CTA's pool has the registers; a decrease
to more, or an increase to less, than the warp has is undefined, and so is a second setmaxnreg
before the warps of the warpgroup synchronised after the first. Whether the four warps execute the
same is checked when the CTA ends. Where the launch says no number of registers the instruction "may
have no effect": a warning, and no pool. The same holds if ptxas has removed the instruction, as it
does when it cannot apply it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.fragment import WARP, Fragment, Split, Wait
from jitgen.emulator.machine.registers import Step
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_FEWEST, _MOST, _UNIT = 24, 256, 8


@emits("setmaxnreg", whole_warp=True, starts_block=True, is_wait=True)
def set_registers(builder: Builder, instruction: Instruction) -> None:
    """Translate ``setmaxnreg.inc.sync.aligned.u32 n`` and ``.dec``."""
    number = int(instruction.operands[0], 0)
    if number % _UNIT or not _FEWEST <= number <= _MOST:
        raise Unsupported(
            f"{number} registers; a multiple of {_UNIT} from {_FEWEST} to {_MOST} is allowed"
        )
    outcome = builder.temporary()
    arguments = (builder.mask(instruction), str(number), str(instruction.has("inc")))
    builder.do(f"{outcome} = {builder.call(change, *arguments)}")
    builder.do(f"if {outcome} is not None: return {outcome}")


def change(f: Fragment, at: int, mask: Mask, number: int, is_increase: bool) -> Split | Wait | None:
    """
    Change the registers of the warps under the mask to `number`.

    Returns:
        None, or what the block function is to return at once as warps wait for registers.
    """
    pool = f.cta.registers
    if f.machine.launch.ignores_setmaxnreg:
        f.warn(at, "setmaxnreg open", "the compiler left setmaxnreg out of the machine code")
        return None
    if not pool.at_launch:
        f.warn(
            at,
            "setmaxnreg open",
            "nothing says how many registers the kernel is launched with (.maxnreg, .reqntid, "
            "...), so that setmaxnreg may have no effect",
        )
    waiting = []
    warps = (f.selected_warps(mask) - f.cta.agent0).tolist()
    for warp in warps:
        if warp in pool.served:
            pool.served.discard(warp)
        elif not _serve(f, at, warp, number, is_increase):
            waiting.append(warp)
    if not is_increase:
        f.cluster.events += 1
    if not waiting:
        return None
    pool.served.update(warp for warp in warps if warp not in waiting)
    first = waiting[0]
    wait = Wait(
        at,
        is_over=lambda: not pool.lacks(first, number),
        describe=lambda: (
            f"{pool.lacks(first, number)} registers more for each thread of warp {first}: "
            f"setmaxnreg asks for {number}, it has {pool.limits[first]}, and the pool of "
            f"{f.cta.name} holds {pool.free}"
        ),
    )
    stays = np.isin(f.lanes // WARP, waiting)
    return wait if stays.all() else [(~stays, f.block), (stays, wait)]


def _serve(f: Fragment, at: int, warp: int, number: int, is_increase: bool) -> bool:
    """Give a warp `number` registers; return False if it has to wait."""
    pool = f.cta.registers
    has = pool.limits[warp]
    if pool.at_launch:
        if is_increase and pool.lacks(warp, number):
            return False
        if number != has and is_increase != (number > has):
            word = "increases" if is_increase else "decreases"
            f.warn(at, "setmaxnreg", f"it {word} the registers of a warp to {number}; it has {has}")
        else:
            pool.set(warp, number)
    _check_synchronised(f, at, warp)
    agent = f.cta.agent0 + warp
    pool.steps[warp].append(Step(number, agent, f.cluster.clocks.now(agent)))
    return True


def _check_synchronised(f: Fragment, at: int, warp: int) -> None:
    """
    Report a setmaxnreg of a warp that has not synchronised with its warpgroup since their last one.
    """
    pool = f.cta.registers
    done = len(pool.steps[warp])
    if not done:
        return
    knows = f.cluster.clocks.vector[f.cta.agent0 + warp]
    for other in pool.group_of(warp):
        steps = pool.steps[other]
        if len(steps) < done or knows[steps[done - 1].agent] < steps[done - 1].epoch:
            f.warn(
                at,
                "setmaxnreg",
                f"warp {warp} executes another setmaxnreg before its warpgroup synchronised after "
                "the last one",
            )
            return
