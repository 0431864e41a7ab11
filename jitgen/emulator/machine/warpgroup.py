# SPDX-License-Identifier: Apache-2.0
"""
The tensor core of a warpgroup: matrix products in flight, and the registers that they own.

From the first wgmma to the wait for it, an accumulator lives here as a matrix, and its registers
hold a NaN of a kind that no computation makes. So a warp that does not wait gets NaN in every mode,
and nothing is moved between registers and matrix in the middle of a chain of products.

A product belongs to the four warps together: the one that waits learns that all four are done with
the operands, and it does not go on before all four have issued what it waits for.

PTX ISA, section "Asynchronous Warpgroup Level Matrix Instructions: wgmma".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.formats import fragments
from jitgen.emulator.machine.accumulators import POISON, Accumulators
from jitgen.emulator.machine.clocks import AsyncUnit
from jitgen.emulator.machine.fragment import WARP
from jitgen.emulator.machine.lanes import ALL_LANES

if TYPE_CHECKING:
    from jitgen.emulator.machine.cta import Cta
    from jitgen.emulator.machine.fragment import Fragment
    from jitgen.emulator.machine.operands import Read

WARPS = 4
"""Warps of a warpgroup."""

_NONE = 0


@dataclass(frozen=True, slots=True)
class Share:
    """
    Adjacent warps of one warpgroup that are in a fragment: all four, or those that are there.

    Attributes:
        group: Number of the warpgroup.
        first, stop: Which of its warps.
        column: Index of the first of their threads among those of the fragment.
    """

    group: int
    first: int
    stop: int
    column: int

    @property
    def num_warps(self) -> int:
        """How many warps."""
        return self.stop - self.first

    @property
    def warps(self) -> slice:
        """Index of the warps, 0..3."""
        return slice(self.first, self.stop)

    @property
    def rows(self) -> slice:
        """Index of their rows in the matrix of the warpgroup."""
        return slice(fragments.ROWS * self.first, fragments.ROWS * self.stop)

    @property
    def lanes(self) -> slice:
        """Their threads in the CTA."""
        start = WARP * WARPS * self.group
        return slice(start + WARP * self.first, start + WARP * self.stop)

    @property
    def columns(self) -> slice:
        """Their threads in the fragment."""
        return slice(self.column, self.column + WARP * self.num_warps)

    @property
    def agents(self) -> slice:
        """Their warps among those of the fragment."""
        start = self.column // WARP
        return slice(start, start + self.num_warps)

    def only(self, warp: int) -> Share:
        """Return the share that is one of the warps, 0..3."""
        return Share(self.group, warp, warp + 1, self.column + WARP * (warp - self.first))


def shares_of(fragment: Fragment) -> tuple[Share, ...]:
    """Return the warpgroups of a fragment of whole warps, in order."""
    return _shares(fragment.warps.tobytes())


@lru_cache(maxsize=1 << 12)
def _shares(warps: bytes) -> tuple[Share, ...]:
    """Return the runs of adjacent warps, cut where a warpgroup ends."""
    numbers = np.frombuffer(warps, np.int64)
    is_start = (np.diff(numbers, prepend=-2) != 1) | (numbers % WARPS == 0)
    starts = [*np.flatnonzero(is_start).tolist(), len(numbers)]
    shares = []
    for start, stop in pairwise(starts):
        group, first = divmod(int(numbers[start]), WARPS)
        shares.append(Share(group, first, first + stop - start, WARP * start))
    return tuple(shares)


class Chain:
    """
    Products in flight that add to the same accumulators.

    Attributes:
        values: The matrix [64, columns].
        groups: For each warp the group of its latest product; 0 if none is in flight.
        fences: For each warp its fences when it waited last.
    """

    __slots__ = ("fences", "groups", "values")

    def __init__(self, target: Accumulators) -> None:
        rows = fragments.ROWS * WARPS
        self.values: Numbers = np.zeros((rows, target.columns), target.dtype)
        self.groups = [_NONE] * WARPS
        self.fences = [0] * WARPS


@dataclass(frozen=True, slots=True)
class Held:
    """
    Registers of A [k, n] that products of a group read, which must not be written before the wait.
    """

    at: int
    group: int
    share: Share
    registers: tuple[int, ...]
    values: NDArray[np.uint32]


class Warpgroup:
    """
    A warpgroup's products in flight.

    Its groups are numbered from 1, alike for all warps, and are the epochs of the clock agents.

    Attributes:
        agents: Clock agents of its warps as readers of shared memory [4].
        closed: For each warp the groups that it closed.
        fences: For each warp the wgmma.fence that it executed.
        chains: What is or was in flight, by accumulators.
        deferred: Work to do when a group must be complete, by group.
        reads: For each warp what the products of its open group read.
        held: See `Held`.
    """

    def __init__(self, cta: Cta, number: int) -> None:
        self._units = [self._unit(cta, WARPS * number + warp) for warp in range(WARPS)]
        self.agents = [unit.agent for unit in self._units]
        self.closed = [0] * WARPS
        self.fences = [0] * WARPS
        self.chains: dict[Accumulators, Chain] = {}
        self.deferred: dict[int, list[Callable[[], None]]] = {}
        self.held: list[Held] = []
        self.reads: list[list[Read]] = [[] for _ in range(WARPS)]

    def _unit(self, cta: Cta, warp: int) -> WarpUnit:
        agent = cta.cluster.clocks.agent(f"{cta.name} warp {warp} wgmma")
        unit = cta.units["wgmma", warp, ALL_LANES] = WarpUnit(agent, self)
        return unit

    def open_group(self, share: Share) -> int:
        """Return the group to which products issued now belong."""
        return self.closed[share.first] + 1

    def fence(self, share: Share) -> None:
        """Execute wgmma.fence in some warps."""
        for warp in range(share.first, share.stop):
            self.fences[warp] += 1

    def close(self, share: Share) -> None:
        """Execute wgmma.commit_group in some warps."""
        for warp in range(share.first, share.stop):
            self.closed[warp] += 1

    def take_reads(self, warp: int) -> list[Read]:
        """Return what the products of a warp's open group read, and forget it."""
        reads, self.reads[warp] = self.reads[warp], []
        return reads

    def begin(
        self, f: Fragment, at: int, share: Share, target: Accumulators, is_read: bool
    ) -> Numbers:
        """
        Put accumulators in flight, if they are not, and return their values [64, columns].

        Args:
            f: Who executes the instruction `at`.
            at: See `f`.
            share: For which warps.
            target: The accumulators.
            is_read: Whether the product is added to what they hold.
        """
        chain = self.chains.get(target)
        if chain is None:
            chain = self.chains[target] = Chain(target)
        if _NONE in chain.groups[share.warps]:
            self._check_free(f, at, share, target)
            if is_read:
                chain.values[share.rows] = target.load(f.cta, share.lanes)
            f.cta.r[target.index, share.lanes] = POISON
        group = self.open_group(share)
        chain.groups[share.warps] = [group] * share.num_warps
        for unit in self._units[share.warps]:
            unit.committed = group  # also if it is never closed, so that the exit finds it
        return chain.values

    def _check_free(self, f: Fragment, at: int, share: Share, target: Accumulators) -> None:
        """Find what forbids that registers become accumulators in flight."""
        latest = self.chains[target].fences
        if any(self.fences[warp] <= latest[warp] for warp in range(share.first, share.stop)):
            f.warn(at, "fence", "no wgmma.fence since its accumulators were ordinary registers")
        for other, chain in self.chains.items():
            if other is not target and any(chain.groups[share.warps]):
                common = other.registers & target.registers
                if common:
                    f.warn(at, "register", f"{len(common)} of its accumulators are still in flight")

    def is_issued(self, share: Share, keep: int) -> bool:
        """Return whether all four warps have closed the groups that `wait_group keep` waits for."""
        return min(self.closed) >= self.closed[share.first] - keep

    def complete(self, f: Fragment, at: int, share: Share, keep: int) -> None:
        """Let some warps have waited for all but the latest `keep` groups."""
        group = self.closed[share.first] - keep
        self.run_deferred(group)
        for target, chain in self.chains.items():
            if _NONE < max(chain.groups[share.warps]) <= group:
                self._give_back(f, at, share, target, chain)
        self._release_held(f, share, group)
        agents = f.agents[share.agents]
        for agent in self.agents:
            f.cluster.clocks.learn(agents, agent, group)

    def run_deferred(self, group: int) -> None:
        """Do what products are left up to `group`."""
        for number in sorted(number for number in self.deferred if number <= group):
            for action in self.deferred.pop(number):
                action()

    def _give_back(
        self, f: Fragment, at: int, share: Share, target: Accumulators, chain: Chain
    ) -> None:
        """Put results into their registers."""
        if np.count_nonzero(f.cta.r[target.index, share.lanes] != POISON):
            f.warn(at, "register", "accumulators were written before this wait for them")
        target.store(f.cta, share.lanes, chain.values[share.rows])
        chain.groups[share.warps] = [_NONE] * share.num_warps
        chain.fences[share.warps] = self.fences[share.warps]

    def _release_held(self, f: Fragment, share: Share, group: int) -> None:
        """Check that registers of A still hold what products read, and let them go."""
        kept = []
        for held in self.held:
            if held.group > group or not share.first <= held.share.first < share.stop:
                kept.append(held)
            elif np.count_nonzero(f.cta.r[list(held.registers), held.share.lanes] != held.values):
                f.warn(held.at, "register", "registers of A were written before the wait")
        self.held = kept


Member = tuple[Share, Warpgroup]
"""Warps that execute an instruction together, and what their warpgroup has in flight."""


class WarpUnit(AsyncUnit):
    """
    The work in flight of one of the four warps of a warpgroup, in the interface of `AsyncUnit`.

    Attributes:
        group: The warpgroup.
    """

    __slots__ = ("group",)

    def __init__(self, agent: int, group: Warpgroup) -> None:
        super().__init__(agent)
        self.group = group

    def drain(self) -> None:
        """Do the remaining work; no agent learns of it."""
        self.group.run_deferred(self.committed)


def warpgroup(cta: Cta, number: int) -> Warpgroup:
    """Return what a warpgroup of a CTA has in flight; made on first use."""
    unit = cta.units.get(("wgmma", WARPS * number, ALL_LANES))
    return unit.group if isinstance(unit, WarpUnit) else Warpgroup(cta, number)
