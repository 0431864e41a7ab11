# SPDX-License-Identifier: Apache-2.0
"""
The report of a deadlock: the place of every thread of the first clusters, the barrier or event that
it waits for, and the state of their barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from jitgen.emulator.machine.live_barriers import MBARRIER_BYTES
from jitgen.errors import Deadlock

if TYPE_CHECKING:
    from jitgen.emulator.machine.barriers import MBarrier
    from jitgen.emulator.machine.cluster import Cluster
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.machine import Machine

_MAX_CLUSTERS = 2
"""Clusters that are described; the others are counted."""


def report(machines: Sequence[Machine]) -> Deadlock:
    """Return the error that says why launches that run together cannot go on."""
    return Deadlock(f"deadlock: every thread waits\n{describe(machines)}")


def describe(machines: Sequence[Machine]) -> str:
    """
    Return the places of the threads and the states of the barriers, as a text; of each launch only
    those of the first two clusters.
    """
    lines = []
    for machine in machines:
        lines += _describe(machine)
    return "\n".join(f"  {line}" for line in lines)


def _describe(machine: Machine) -> list[str]:
    lines = []
    for cluster in machine.running[:_MAX_CLUSTERS]:
        lines += cluster.schedule.describe()
        lines += _describe_barriers(cluster)
    left_out = len(machine.running) - _MAX_CLUSTERS
    if left_out > 0:
        lines.append(f"... and {left_out} clusters more")
    return lines


def _describe_barriers(cluster: Cluster) -> list[str]:
    lines = []
    for cta in cluster.ctas:
        lines += [_describe_ring(ring) for ring in rings(cta)]
        lines += [f"{named.name}: {named.state}" for named in cta.named.values() if named.arrived]
    if cluster.barrier.arrived:
        lines.append(f"barrier.cluster: {cluster.barrier.state}")
    return lines


def rings(cta: Cta) -> list[list[MBarrier]]:
    """
    Return the mbarriers of a CTA, those together that are the slots of one ring.

    The PTX does not say which are. Adjacent barriers with the same count, which the same basic
    block initialised, are taken for one ring.
    """
    barriers = [cta.barriers[offset] for offset in sorted(cta.barriers)]
    block_at = cta.machine.program.block_at

    def family(item: tuple[int, MBarrier]) -> tuple[int, int, int]:
        position, barrier = item
        start = barrier.offset - position * MBARRIER_BYTES
        return start, barrier.count, block_at(barrier.at)

    return [[barrier for _, barrier in run] for _, run in groupby(enumerate(barriers), family)]


def name_slot(barrier: MBarrier) -> str:
    """Return a text that names a barrier, with its slot if it is one of a ring."""
    ring = next((ring for ring in rings(barrier.cta) if barrier in ring), [barrier])
    slot = f" (slot {ring.index(barrier)} of {len(ring)})" if len(ring) > 1 else ""
    return f"mbarrier {barrier.offset:#x}{slot} of {barrier.cta.name}"


def _describe_ring(ring: list[MBarrier]) -> str:
    """Return a text of the state of a ring's slots, a number for each."""
    first, last = ring[0], ring[-1]
    if first is last:
        return f"{first.name}: {first.state}"
    columns = {
        "phases complete": [barrier.phase for barrier in ring],
        f"of {first.count} arrived": [barrier.count - barrier.pending for barrier in ring],
        "bytes pending": [barrier.transactions for barrier in ring],
    }
    states = [f"{' '.join(map(str, n))} {what}" for what, n in columns.items() if any(n)]
    name = f"mbarriers {first.offset:#x}..{last.offset:#x} of {first.cta.name}"
    return f"{name}: {', '.join(states) or 'not used yet'}"
