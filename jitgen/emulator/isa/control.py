# SPDX-License-Identifier: Apache-2.0
"""
Branches, exits, fences, and instructions without an effect that the emulator models.

PTX ISA, sections "Control Flow Instructions", "membar, fence", "griddepcontrol",
"nanosleep".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.scopes import Scope, scope_in
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Mask = NDArray[np.bool_] | None

_EXIT = -1

_FENCE_PARTS = (
    "fence membar sc acq_rel acquire release cta cluster gpu sys gl sync_restrict shared::cta "
    "shared::cluster sync_restrict::shared::cta sync_restrict::shared::cluster proxy mbarrier_init "
    "alias async async::generic tensormap::generic global"
)


@emits("bra", ends_block=True)
def branch(builder: Builder, instruction: Instruction) -> None:
    """Translate ``@p bra label``."""
    _leave(builder, instruction, builder.block_of(instruction.operands[0]))


@emits("ret", "exit", ends_block=True)
def leave(builder: Builder, instruction: Instruction) -> None:
    """Translate ``exit``, and ``ret`` of the kernel, as functions are not called."""
    _leave(builder, instruction, _EXIT)


def _leave(builder: Builder, instruction: Instruction, target: int) -> None:
    """Go to block `target` under the guard, else to the next."""
    if instruction.guard is None:
        builder.leave(str(target))
    else:
        builder.leave(f"({builder.mask(instruction)}, {target}, {builder.next_block})")


@emits("trap")
def trap(builder: Builder, instruction: Instruction) -> None:
    """Translate ``trap``: the program itself found an error."""
    builder.do(builder.call(stop, builder.mask(instruction)))


def stop(f: Fragment, at: int, mask: Mask) -> None:
    """Fault, if any thread is under the mask."""
    if mask is None or mask.any():
        f.fault(at, "the kernel executed a trap")


@emits("fence", "membar")
def fence(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``fence``, ``membar``.

    A fence orders nothing for threads that its scope does not include. Orderings are not told
    apart: what a thread did before any fence is released by its later relaxed arrivals.
    """
    unknown = set(instruction.parts).difference(_FENCE_PARTS.split())
    if unknown:
        raise Unsupported(f"modifier .{min(unknown)}")
    mask = builder.mask(instruction)
    if instruction.has("mbarrier_init"):
        builder.do(builder.call(fence_initialised, mask))
    if not instruction.has("proxy"):
        scope = builder.constant(scope_in(instruction.parts), "scope")
        builder.do(builder.call(fence_memory, mask, scope))
    elif instruction.has("tensormap::generic"):
        _emit_map_fence(builder, instruction)
    elif not instruction.has("alias"):
        is_global = instruction.has("global")
        if not is_global:
            builder.do(builder.call(fence_async, mask))
        if is_global or instruction.parts[-1] == "async":
            builder.do(builder.call(fence_async_global, mask))


def fence_memory(f: Fragment, at: int, mask: Mask, scope: Scope) -> None:
    """Execute a memory fence in the warps; from ``.gpu`` on it also delivers stores to peers."""
    f.cluster.clocks.fence(f.selected_warps(mask), scope)
    if scope >= Scope.GPU:
        f.machine.memory.settle()


def _emit_map_fence(builder: Builder, instruction: Instruction) -> None:
    """``fence.proxy.tensormap::generic.acquire.gpu [map], 128`` and ``.release.gpu``."""
    mask = builder.mask(instruction)
    if instruction.has("acquire"):
        builder.do(builder.call(acquire_map, mask, builder.address(instruction.operands[0])))
    else:
        builder.do(builder.call(release_maps, mask))


def acquire_map(f: Fragment, at: int, mask: Mask, addresses: PerThread) -> None:
    """
    Execute an acquire of each thread's tensor map in its warp, for later copies through the map;
    threads of a warp with the same map execute one together.
    """
    threads = f.selected(mask)
    pairs = zip(f.agent_of[threads].tolist(), f.spread(addresses)[threads].tolist(), strict=True)
    for agent, address in dict.fromkeys(pairs):
        f.machine.memory.maps.acquire(f.cluster.clocks, agent, address)


def release_maps(f: Fragment, at: int, mask: Mask) -> None:
    """Execute a release of the tensor map proxy in the warps, for threads that acquire maps."""
    for agent in f.selected_warps(mask).tolist():
        f.machine.memory.maps.release(f.cluster.clocks, agent)


def fence_async_global(f: Fragment, at: int, mask: Mask) -> None:
    """Make the threads' writes to global memory visible to the async proxy."""
    f.cluster.clocks.fence_global_proxy(f.selected_warps(mask))
    f.machine.memory.settle()


def fence_async(f: Fragment, at: int, mask: Mask) -> None:
    """Make the threads' writes to shared memory visible to the async proxy."""
    for agent in f.selected_warps(mask).tolist():
        f.cta.guarded.fence(agent)
    f.cta.shared.fence_async(f.lanes if mask is None else f.lanes[mask])


@emits("griddepcontrol.wait")
def wait_for_grid(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``griddepcontrol.wait``: the grids before this one have ended and their writes are
    seen.
    """
    builder.do(builder.call(learn_grid, builder.mask(instruction)))


def learn_grid(f: Fragment, at: int, mask: Mask) -> None:
    """Order the warps after the previous grid."""
    f.cluster.clocks.learn(f.selected_warps(mask), f.cluster.previous_grid, 1)


@emits("griddepcontrol.launch_dependents", "nanosleep", "pmevent", "applypriority")
def ignore(builder: Builder, instruction: Instruction) -> None:
    """
    Do nothing: the instruction changes only how long kernels take, or when the next grid starts.
    """


def fence_initialised(f: Fragment, at: int, mask: Mask) -> None:
    """Make the barriers that the warps initialised visible to the async proxy."""
    for agent in f.selected_warps(mask).tolist():
        f.cta.guarded.fence(agent, own_only=True)
