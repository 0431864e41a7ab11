# SPDX-License-Identifier: Apache-2.0
"""
The tensor core of a warpgroup: matrix products in flight, and the registers that they own.

From the first wgmma to the wait for it, an accumulator is kept here as a matrix, and its registers
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
        first, stop: The first of its warps, and the one behind the last.
        column: Index of the first of their threads among those of the fragment.
    """

    group: int
    first: int
    stop: int
    column: int

    @property
    def num_warps(self) -> int:
        """Number of warps of the share."""
        return self.stop - self.first

    @property
    def warps(self) -> slice:
        """Slice of the warps in their warpgroup, 0..3."""
        return slice(self.first, self.stop)

    @property
    def each(self) -> range:
        """Numbers of the warps in their warpgroup, 0..3."""
        return range(self.first, self.stop)

    @property
    def numbers(self) -> slice:
        """Slice of the warps among those of the CTA."""
        return slice(WARPS * self.group + self.first, WARPS * self.group + self.stop)

    @property
    def each_number(self) -> range:
        """Numbers of the warps among those of the CTA."""
        return range(WARPS * self.group + self.first, WARPS * self.group + self.stop)

    @property
    def rows(self) -> slice:
        """Index of the warps' rows in the matrix of the warpgroup."""
        return slice(fragments.ROWS * self.first, fragments.ROWS * self.stop)

    @property
    def lanes(self) -> slice:
        """Slice of the warps' threads among those of the CTA."""
        start = WARP * WARPS * self.group
        return slice(start + WARP * self.first, start + WARP * self.stop)

    @property
    def columns(self) -> slice:
        """Slice of the warps' threads among those of the fragment."""
        return slice(self.column, self.column + WARP * self.num_warps)

    @property
    def agents(self) -> slice:
        """Slice of the warps among those of the fragment."""
        start = self.column // WARP
        return slice(start, start + self.num_warps)

    def only(self, warp: int) -> Share:
        """Return the share that is one of the warps, 0..3."""
        return Share(self.group, warp, warp + 1, self.column + WARP * (warp - self.first))


def shares_of(fragment: Fragment) -> tuple[Share, ...]:
    """Return the shares of a fragment of whole warps, in order."""
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
        latest: For each warp the bytes of an element of A in that product, which tell K, and the
            number of its wgmma.fence before it.
    """

    __slots__ = ("groups", "latest", "values")

    def __init__(self, target: Accumulators) -> None:
        rows = fragments.ROWS * WARPS
        self.values: Numbers = np.zeros((rows, target.columns), target.dtype)
        self.groups = [_NONE] * WARPS
        self.latest = [(0, 0)] * WARPS

    def has_other_shape(self, warp: int, size: int, fence: int) -> bool:
        """Return whether the latest product of a warp has another K, and no fence came since."""
        return self.latest[warp] != (size, fence) and self.latest[warp][1] == fence


class Warpgroup:
    """
    A warpgroup's products in flight.

    Its groups are numbered from 1, alike for all warps, and are the epochs of the clock agents.

    Attributes:
        agents: Clock agents of its warps as readers of shared memory [4].
        closed: For each warp the number of groups that it closed.
        fences: For each warp the number of wgmma.fence that it executed.
        chains: Chains of products that are or were in flight, by accumulators.
        deferred: Work to do when a group must be complete, by group.
        reads: For each warp what the products of its open group read.
        held: For each warp the registers of A that products in flight read, with their groups.
    """

    def __init__(self, cta: Cta, number: int) -> None:
        self._units = [self._unit(cta, WARPS * number + warp) for warp in range(WARPS)]
        self.agents = [unit.agent for unit in self._units]
        self.closed = [0] * WARPS
        self.fences = [0] * WARPS
        self.chains: dict[Accumulators, Chain] = {}
        self.deferred: dict[int, list[Callable[[], None]]] = {}
        self.held: list[list[tuple[int, list[int]]]] = [[] for _ in range(WARPS)]
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
        self, f: Fragment, at: int, share: Share, target: Accumulators, size: int, is_read: bool
    ) -> Numbers:
        """
        Put accumulators in flight, if they are not, and return their values [64, columns].

        Args:
            f: The fragment that executes the instruction `at`.
            at: The index of that instruction.
            share: The warps that execute the product.
            target: The accumulators.
            size: Bytes of an element of A, which tell K.
            is_read: Whether the product is added to their values.
        """
        chain = self.chains.get(target)
        if chain is None:
            chain = self.chains[target] = Chain(target)
        free = [warp for warp in range(share.first, share.stop) if chain.groups[warp] == _NONE]
        if free:
            self._check_free(f, at, target, share.group, free)
            if is_read:
                chain.values[share.rows] = target.load(f.cta, share.lanes)
            f.cta.r[target.index, share.lanes] = POISON
            f.cta.in_flight.sums[target.index, share.numbers] = True
        elif any(chain.has_other_shape(warp, size, self.fences[warp]) for warp in share.each):
            f.warn(at, "fence", "no wgmma.fence since a product of another shape in flight")
        group = self.open_group(share)
        for warp in share.each:
            chain.groups[warp], chain.latest[warp] = group, (size, self.fences[warp])
            self._units[warp].committed = group  # also if never closed, so that the exit finds it
        return chain.values

    def _check_free(
        self, f: Fragment, at: int, target: Accumulators, group: int, warps: list[int]
    ) -> None:
        """Report what forbids that registers of some warps, 0..3, become accumulators in flight."""
        flight, numbers = f.cta.in_flight, [WARPS * group + warp for warp in warps]
        latest = flight.fences[target.index][:, numbers]
        if np.count_nonzero(latest >= [self.fences[warp] for warp in warps]):
            f.warn(at, "fence", "no wgmma.fence since its accumulators were ordinary registers")
        for in_use, what in (
            (flight.sums, "are still in flight"),
            (flight.operands, "hold A of a wgmma in flight"),
        ):
            common = np.count_nonzero(in_use[target.index][:, numbers].any(axis=1))
            if common:
                f.warn(at, "register", f"{common} of its accumulators {what}")

    def hold(self, f: Fragment, at: int, share: Share, registers: list[int]) -> None:
        """Let a product own the registers of A, rows of the register file, that it reads."""
        flight, group = f.cta.in_flight, self.open_group(share)
        where = registers, share.numbers
        if np.count_nonzero(flight.sums[where]):
            f.warn(at, "register", "registers of A are accumulators of a wgmma in flight")
        elif np.count_nonzero(flight.fences[where] >= self.fences[share.warps]):
            f.warn(at, "fence", "no wgmma.fence since its registers of A were accumulators")
        flight.operands[where] += 1
        for warp in share.each:
            self.held[warp].append((group, registers))

    def is_issued(self, share: Share, keep: int) -> bool:
        """Return whether all four warps have closed the groups that `wait_group keep` waits for."""
        return min(self.closed) >= self.closed[share.first] - keep

    def complete(self, f: Fragment, share: Share, keep: int) -> None:
        """Complete all groups of some warps except the latest `keep` ones."""
        group = self.closed[share.first] - keep
        self.run_deferred(group)
        for target, chain in self.chains.items():
            if _NONE < max(chain.groups[share.warps]) <= group:
                self._give_back(f, share, target, chain)
        self._release(f, share, group)
        agents = f.agents[share.agents]
        for agent in self.agents:
            f.cluster.clocks.learn(agents, agent, group)

    def run_deferred(self, group: int) -> None:
        """Do the deferred work of products up to `group`."""
        for number in sorted(number for number in self.deferred if number <= group):
            for action in self.deferred.pop(number):
                action()

    def _give_back(self, f: Fragment, share: Share, target: Accumulators, chain: Chain) -> None:
        """Put results into their registers."""
        target.store(f.cta, share.lanes, chain.values[share.rows])
        chain.groups[share.warps] = [_NONE] * share.num_warps
        where = target.index, share.numbers
        f.cta.in_flight.sums[where] = False
        f.cta.in_flight.fences[where] = self.fences[share.warps]

    def _release(self, f: Fragment, share: Share, group: int) -> None:
        """Release the registers of A that products up to a group read."""
        for warp, number in zip(share.each, share.each_number, strict=True):
            for last, registers in self.held[warp]:
                if last <= group:
                    f.cta.in_flight.operands[registers, number] -= 1
            self.held[warp] = [held for held in self.held[warp] if held[0] > group]


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
        """Do the remaining work; no agent is ordered after it."""
        self.group.run_deferred(self.committed)


def warpgroup(cta: Cta, number: int) -> Warpgroup:
    """Return what a warpgroup of a CTA has in flight; made on first use."""
    unit = cta.units.get(("wgmma", WARPS * number, ALL_LANES))
    return unit.group if isinstance(unit, WarpUnit) else Warpgroup(cta, number)
