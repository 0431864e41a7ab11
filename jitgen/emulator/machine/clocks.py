# SPDX-License-Identifier: Apache-2.0
"""
The vector clocks of the agents of a cluster: after which work of other agents each agent is
ordered.

An agent acts on its own: a warp, an asynchronous unit of a warp, the copies that signal an
mbarrier. Its work is cut into epochs, and a row of the matrix says, for each other agent, up to
which epoch that agent's work is known to be over. Knowledge is handed on where PTX orders memory
accesses, from a release to the acquire that observes it. What agent a did in epoch e comes before
what agent b does now if and only if ``vector[b, a] >= e``.

Proxies need a second sort of knowledge: up to which epoch an agent's ordinary writes are followed
by a proxy fence. It flows along the same paths, so it is kept in the same rows, as what is known of
a shadow of that agent.

PTX ISA, section "Memory Consistency Model": causality order, proxies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.grids import Grid
from jitgen.emulator.machine.lanes import EVERYONE, Lanes
from jitgen.emulator.machine.order import Order
from jitgen.emulator.machine.remote_clocks import RemoteClocks
from jitgen.emulator.machine.representatives import Representatives
from jitgen.emulator.machine.scopes import Scope

if TYPE_CHECKING:
    pass

Agents = int | NDArray[np.int64]
"""One agent, or several [k]."""

Clock = NDArray[np.int64]
"""A copy of what an agent knows: an epoch for each agent; agents beyond its end are not known."""

Action = Callable[[], None]

NO_AGENT = 0
"""The agent without work, so that every agent knows all of it."""

FOREVER = 2**62
"""Later than any epoch."""

_FIRST_CAPACITY = 64


class Clocks:
    """
    The clocks of one cluster.

    Attributes:
        vector: int64 [capacity, capacity]; row a is the clock of agent a. Replaced when it grows,
            so do not keep a reference to it.
        shadow_of: For each agent [capacity] its shadow; `NO_AGENT` for one without, all of whose
            writes the async proxy sees.
        flags: Releases at addresses of memory, for agents that acquire there.
        global_shadow_of: Like `shadow_of`, for writes to global memory.
        lanes: The order of work among the lanes of each warp.
        representatives: Arrivals of single lanes.
        order: The order of events that does not order memory.
        remote: The clocks acquired from other clusters.
        grid: The launch that the cluster belongs to.
    """

    def __init__(self, grid: Grid | None = None) -> None:
        self.grid = grid or Grid()
        self.vector: NDArray[np.int64] = np.zeros((_FIRST_CAPACITY, _FIRST_CAPACITY), np.int64)
        self.shadow_of: NDArray[np.int64] = np.zeros(_FIRST_CAPACITY, np.int64)
        self.flags: dict[int, Released] = {}
        self.global_shadow_of: NDArray[np.int64] = np.zeros(_FIRST_CAPACITY, np.int64)
        self.lanes = Lanes(_FIRST_CAPACITY)
        self.representatives = Representatives(self, _FIRST_CAPACITY)
        self.order = Order(self)
        self.remote = RemoteClocks()
        self._names: list[str] = []
        self._fenced: dict[Scope, dict[int, Clock]] = {scope: {} for scope in Scope}
        self._observed: dict[Scope, dict[int, Clock]] = {scope: {} for scope in Scope}
        self._with_shadow: NDArray[np.int64] = np.zeros(0, np.int64)
        self._with_global_shadow: NDArray[np.int64] = np.zeros(0, np.int64)
        self.agent("no agent")

    def agent(self, name: str) -> int:
        """Return a new agent, in its epoch 1."""
        new = len(self._names)
        if new == len(self.vector):
            self.vector = np.pad(self.vector, (0, new))
            self.shadow_of = np.pad(self.shadow_of, (0, new))
            self.global_shadow_of = np.pad(self.global_shadow_of, (0, new))
            self.lanes.grow(new)
            self.representatives.grow(new)
        self._names.append(name)
        self.vector[new, new] = 1
        self.vector[new, NO_AGENT] = FOREVER
        return new

    def name(self, agent: int) -> str:
        """Return the text that names an agent."""
        return self._names[agent]

    def now(self, agent: int) -> int:
        """Return an agent's epoch."""
        return int(self.vector[agent, agent])

    # --- knowledge --------------------------------------------------------------------------------

    def release(self, agents: NDArray[np.int64]) -> Clock:
        """Return the join of the clocks of `agents` [k], and begin a new epoch of each."""
        clock: Clock = np.maximum.reduce(self.vector[agents])
        self.representatives.handed[agents] = now = self.vector[agents, agents]
        self.vector[agents, agents] = now + 1
        return clock

    def release_one(self, agent: int) -> Clock:
        """Return a copy of the clock of one agent, and begin a new epoch of it."""
        clock: Clock = self.vector[agent].copy()
        self.representatives.handed[agent] = now = clock[agent]
        self.vector[agent, agent] = now + 1
        return clock

    def release_alone(self, agents: NDArray[np.int64], members: list[int]) -> Clock:
        """Release as `release` does, for some lanes of each warp: a bit for each in `members`."""
        for agent, some in zip(agents.tolist(), members, strict=True):
            self.representatives.arrive(agent, some)
        handed = self.representatives.handed[agents]
        clock = self.release(agents)
        self.representatives.handed[agents] = handed
        return clock

    def acquire(self, agents: Agents, clock: Clock) -> None:
        """Join `clock` into the clocks of `agents`."""
        known = self.vector[agents, : len(clock)]
        if isinstance(agents, np.ndarray):
            self.vector[agents, : len(clock)] = np.maximum(known, clock)
        else:
            np.maximum(known, clock, out=known)
        self.lanes.take_back(agents, clock)

    def hand_over(
        self, agents: NDArray[np.int64], units: NDArray[np.int64], epochs: NDArray[np.int64]
    ) -> None:
        """
        Join the clock of each of `agents` [k] into that of the unit that it starts.

        The result is that of `release_one`, `acquire` and `learn` for one pair after the other.

        Args:
            agents: Warps, each once; each begins a new epoch.
            units: The units that the agents start [k], none of which is a warp.
            epochs: Epochs of the work that the units start [k].
        """
        clocks = self.vector[agents]
        self.representatives.handed[agents] = now = self.vector[agents, agents]
        self.vector[agents, agents] = now + 1
        known = self.lanes.known
        known[units] = np.maximum(known[units], clocks[np.arange(len(units)), units])
        self.vector[units] = np.maximum(self.vector[units], clocks)
        self.vector[units, units] = np.maximum(self.vector[units, units], epochs)

    def comes_after(self, agent: int, clock: Clock) -> bool:
        """Return whether the clock of an agent is at least `clock`."""
        return bool((self.vector[agent, : len(clock)] >= clock).all())

    def learn(self, agents: Agents, other: int, epoch: int) -> None:
        """Order each of `agents` after agent `other` up to `epoch`."""
        if isinstance(agents, np.ndarray):
            self.vector[agents, other] = np.maximum(self.vector[agents, other], epoch)
        elif self.vector[agents, other] < epoch:
            self.vector[agents, other] = epoch

    # --- fences -----------------------------------------------------------------------------------

    def observe(self, agents: Agents, clock: Clock, reach: Scope = Scope.CTA) -> None:
        """
        Note that relaxed loads of `agents` saw what was released with `clock`; see `fence`.

        Args:
            agents: The loading agents.
            clock: The released clock.
            reach: The scope that includes the loading and the releasing agents; narrower fences do
                not count.
        """
        observed = self._observed[reach]
        for agent in np.atleast_1d(agents).tolist():
            seen = observed.get(agent)
            observed[agent] = clock if seen is None else join(seen, clock)

    def fence(self, agents: NDArray[np.int64], scope: Scope = Scope.SYS) -> None:
        """
        Execute a fence in each of `agents` [k].

        The releases that their relaxed loads have observed are acquired now. From now on, their
        relaxed stores and arrivals release the present clocks.

        Args:
            agents: The executing agents.
            scope: The scope of agents for which it counts.
        """
        reached = [reach for reach in Scope if reach <= scope]
        for agent in agents.tolist():
            for reach in reached:
                seen = self._observed[reach].pop(agent, None)
                if seen is not None:
                    self.acquire(agent, seen)
            if scope >= Scope.GPU:
                self.remote.fence(self, agent, scope)
            now = self.vector[agent].copy()
            for reach in reached:
                self._fenced[reach][agent] = now
            self.vector[agent, agent] += 1

    def has_fenced(self, agent: int) -> bool:
        """Return whether an agent executed a fence."""
        return agent in self._fenced[Scope.CTA]

    def released_by_fence(self, agents: NDArray[np.int64], reach: Scope = Scope.CTA) -> Clock:
        """
        Return the join of the clocks that `agents` [k] had at their last fences.

        Args:
            agents: The releasing agents.
            reach: The scope that includes them and the agents that acquire the clock; narrower
                fences do not count.
        """
        clock: Clock = np.zeros(1, np.int64)
        fenced = self._fenced[reach]
        for agent in agents.tolist():
            if agent in fenced:
                clock = join(clock, fenced[agent])
        return clock

    def give_shadow(self, agents: Agents) -> None:
        """Give `agents` shadows if they have none: they write to shared memory, generically."""
        missing = self.shadow_of[agents] == 0
        if not np.count_nonzero(missing):
            return
        for agent in np.atleast_1d(agents).tolist():
            if not self.shadow_of[agent]:
                shadow = self.agent(f"fenced writes of {self.name(agent)}")
                self.shadow_of[agent] = shadow
                self._with_shadow = np.append(self._with_shadow, agent)

    def give_global_shadow(self, agents: Agents) -> None:
        """Give `agents` shadows for their writes to global memory, if they have none."""
        for agent in np.atleast_1d(agents).tolist():
            if not self.global_shadow_of[agent]:
                shadow = self.agent(f"fenced global writes of {self.name(agent)}")
                self.global_shadow_of[agent] = shadow
                self._with_global_shadow = np.append(self._with_global_shadow, agent)

    def fence_proxy(self, agents: NDArray[np.int64], members: list[int] | None = None) -> None:
        """
        Make everything in shared memory that threads are ordered after visible to the async proxy,
        and begin a new epoch of each warp.

        Args:
            agents: The warps [k].
            members: For each warp a bit for each lane that executes the fence; by default all do.
                A lane's fence does not cover what other lanes of its warp wrote since the lanes
                last synchronised.
        """
        owners = self._with_shadow
        shadows = self.shadow_of[owners]
        for position, agent in enumerate(agents.tolist()):
            row = self.vector[agent]
            seen = row[owners]
            who = EVERYONE if members is None else members[position]
            if who != EVERYONE:
                seen = np.where(owners == agent, self.lanes.known[agent], seen)
                self.lanes.fence(agent, int(row[agent]), who)
            row[shadows] = np.maximum(row[shadows], seen)
            row[agent] += 1

    def fence_global_proxy(self, agents: NDArray[np.int64]) -> None:
        """
        Make everything in global memory that warps [k] are ordered after visible to the async
        proxy, as `fence_proxy` does.
        """
        owners = self._with_global_shadow
        shadows = self.global_shadow_of[owners]
        for agent in agents.tolist():
            row = self.vector[agent]
            row[shadows] = np.maximum(row[shadows], row[owners])
            self.remote.fence_proxy(self, agent)
            row[agent] += 1


def join(one: Clock, other: Clock) -> Clock:
    """Return the join of two clocks; neither is changed."""
    if len(one) < len(other):
        one, other = other, one
    joined = one.copy()
    np.maximum(joined[: len(other)], other, out=joined[: len(other)])
    return joined


@dataclass(frozen=True, slots=True)
class Released:
    """
    The clocks released at an address.

    Attributes:
        rank: Rank of the CTA of the thread that released there last.
        near: The clock for agents of the same CTA.
        far: The clock for all others; None if the last write there was at CTA scope.
    """

    rank: int
    near: Clock
    far: Clock | None

    def followed_by(self, update: Released) -> Released:
        """
        Return what the address releases after an update, which hands on what it released before.
        """
        if update.far is None:
            before = self.near if self.rank == update.rank else None
            near = update.near if before is None else join(before, update.near)
            return Released(update.rank, near, None)
        old = self.near if self.rank == update.rank else self.far
        near = update.near if old is None else join(old, update.near)
        far = update.far if self.far is None else join(self.far, update.far)
        return Released(update.rank, near, far)


class AsyncUnit:
    """
    Work that a warp starts and that completes in groups: of wgmma, of bulk copies, of cp.async.

    Attributes:
        agent: Its clock agent. Work of the n-th group, from 1, has the epoch n, or a later one if
            `split` was called.
        committed: Groups that were closed.
        pending: Work that is left to do of each group that is not known to be complete, the open
            one last. Where work is not deferred there is nothing to do.
        writer: The agent of what it writes to global memory, in the same epochs; `NO_AGENT` if it
            does not.
        used: The epoch of its latest work, of units that note it, committed or not.
    """

    __slots__ = ("_ends", "agent", "committed", "pending", "used", "writer")

    def __init__(self, agent: int) -> None:
        self.agent = agent
        self.committed = 0
        self.writer = NO_AGENT
        self.used = 0
        self.pending: list[list[Action]] = [[]]
        self._ends = [0]  # the last epoch of each closed group, and that of the open one so far

    def epoch(self) -> int:
        """Return the epoch of work that is started now."""
        return self._ends[-1] + 1

    def split(self) -> None:
        """Begin a new epoch in the open group, as part of it is waited for in another way."""
        self._ends[-1] += 1

    def defer(self, action: Action) -> None:
        """Keep work of the open group until it is waited for."""
        self.pending[-1].append(action)

    def commit(self) -> None:
        """Close the open group."""
        self.committed += 1
        self._ends[-1] += 1
        self._ends.append(self._ends[-1])
        if len(self.pending) > 1 or self.pending[0]:
            self.pending.append([])

    def complete(
        self, clocks: Clocks, warp_agent: int, keep: int, *, is_read: bool = False
    ) -> None:
        """
        Do the work of all closed groups but the last `keep`, and order the warp after it.

        With `is_read` the warp is ordered after the reads of the sources, but not after the writes.
        """
        while len(self.pending) > keep + 1:
            for action in self.pending.pop(0):
                action()
        if self.committed > keep:
            end = self._ends[self.committed - keep - 1]
            clocks.learn(warp_agent, self.agent, end)
            if self.writer and not is_read:
                clocks.learn(warp_agent, self.writer, end)

    def drain(self) -> None:
        """Do the remaining work; no agent is ordered after it."""
        while self.pending[0] or len(self.pending) > 1:
            actions = self.pending.pop(0)
            if not self.pending:
                self.pending.append([])
            for action in actions:
                action()
