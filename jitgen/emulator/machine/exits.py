# SPDX-License-Identifier: Apache-2.0
"""
Reports what a cluster has not finished when it ends: that may break the next kernel, or this one in
another run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.faults import warn_at_exit

if TYPE_CHECKING:
    from jitgen.emulator.machine.cluster import Cluster
    from jitgen.emulator.machine.cta import Cta

_WAITED_UNITS = {
    "wgmma": "wgmma.wait_group",
    "bulk": "cp.async.bulk.wait_group",
    "cp.async": "cp.async.wait_group",
}
"""Units whose work ends with a wait of the warp that issued it."""


def check(cluster: Cluster) -> None:
    """Report what a cluster leaves undone."""
    for cta in cluster.ctas:
        _check_mbarriers(cta)
        _check_named(cta)
        _check_units(cta)
        _check_registers(cta)
        if cta.has_tensor_memory:
            cta.tensor.check_exit()
            _check_permit(cta)


def check_remote(cta: Cta) -> None:
    """
    Report CTAs that may still access a CTA's shared memory when its last thread exits.

    Hardware gives that memory to another CTA then. So the CTA must wait for all remote accesses, in
    the end by a barrier of the cluster.
    """
    knows = _knowledge(cta)
    name = cta.cluster.clocks.name
    for agent, (epoch, at) in cta.remote_accesses.items():
        if knows[agent] < epoch:
            message = f"{cta.name} may exit before {name(agent)} accesses its shared memory"
            warn_at_exit(cta, "remote", message, at)


def _knowledge(cta: Cta) -> NDArray[np.int64]:
    """Return the join of the clocks of a CTA's warps."""
    known: NDArray[np.int64] = cta.cluster.clocks.vector[cta.agents].max(axis=0)
    return known


def _check_mbarriers(cta: Cta) -> None:
    """Check that every barrier is between phases, and that expected bytes were waited for."""
    knows = _knowledge(cta)
    for barrier in cta.barriers.values():
        if not barrier.is_idle:
            message = f"{barrier.name} is left in the middle of a phase: {barrier.state}"
            warn_at_exit(cta, "mbarrier", message, barrier.at)
        elif knows[barrier.agent] < barrier.transfer_phase:
            message = f"no thread waited for the last copies that signal {barrier.name}"
            warn_at_exit(cta, "copies", message, barrier.at)


def _check_named(cta: Cta) -> None:
    """
    Report arrivals that nothing waits for any more; threads that wait cannot have exited.

    bar.arrive does not require a wait, so this is defined behaviour. But it has no effect, and
    usually means that a wait was forgotten. PTX ISA, section "bar, barrier".
    """
    for barrier in cta.named.values():
        if barrier.arrived:
            message = f"{barrier.name}: {barrier.state}, and none waits for it any more"
            warn_at_exit(cta, "barrier", message, barrier.at, kind="arrival")


def _check_units(cta: Cta) -> None:
    """Check that no unit uses a CTA's shared memory or registers any more when the CTA ends."""
    vector = cta.cluster.clocks.vector
    for (kind, warp, _), unit in cta.units.items():
        wait, known = _WAITED_UNITS.get(kind), vector[cta.agent0 + warp, unit.agent]
        if wait is None:
            continue
        if known < unit.committed:
            message = f"warp {warp} never waited for its last {kind} groups ({wait})"
            warn_at_exit(cta, kind, message)
        elif known < unit.used:
            message = f"warp {warp} never committed its last {kind} copies to a group"
            warn_at_exit(cta, kind, message)


def _check_permit(cta: Cta) -> None:
    """
    Check that a CTA of a pair has given up its permit if its peer has. PTX ISA, section "Issue
    Granularity" of tcgen05.
    """
    peers = cta.cluster.ctas[cta.rank ^ 1 : (cta.rank ^ 1) + 1]
    is_of_pair = cta.tensor.has_peer and all(peer.has_tensor_memory for peer in peers)
    if is_of_pair and cta.tensor.may_allocate and not peers[0].tensor.may_allocate:
        message = f"{cta.name} keeps its permit to allocate, which its peer relinquished"
        warn_at_exit(cta, "tensor memory permit", message)


def _check_registers(cta: Cta) -> None:
    """Check that the four warps of a warpgroup have executed the same setmaxnreg."""
    for first, numbers in cta.registers.disagreements():
        message = f"setmaxnreg differs within a warpgroup, that of warp {first}: {numbers}"
        warn_at_exit(cta, "setmaxnreg", message)
