# SPDX-License-Identifier: Apache-2.0
"""
The order of events that does not order memory: additional columns of the vector clocks.

Asynchronous work is done after it was issued, and a relaxed arrival after what its thread did
before. Neither lets a waiting thread read what that thread wrote, so the clocks do not hand it on.
Both do say in which order a barrier is polled and signalled, which rules about phases need. Such
knowledge has columns of its own in the same rows. They flow wherever the others do, and by this
module along these ways too.

PTX ISA, sections "Asynchronous operations" and "Phase of the mbarrier object".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Agents, Clock, Clocks

Times = NDArray[np.int64]
"""Entries of a row, or the largest of several rows, for the columns that there are [columns]."""


class Order:
    """
    The additional columns of the vector clocks of one cluster.

    Attributes:
        columns: Their numbers in a row of the clocks, ascending: those of agents that access no
            memory, such as one that counts the steps of a warp.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.columns: NDArray[np.int64] = np.zeros(0, np.int64)
        self._of_agent: NDArray[np.int64] = np.zeros(0, np.int64)

    def column(self, name: str) -> int:
        """Return a new column; every row starts with 0 there."""
        new = self._clocks.agent(name)
        self.columns = np.append(self.columns, new)
        return new

    def tick(self, agents: NDArray[np.int64]) -> tuple[NDArray[np.int64], Times]:
        """
        Count a step of each of `agents` [k]; return the columns of their counts [k] and the counts
        [k].
        """
        columns = self._columns_of(agents)
        self._clocks.vector[agents, columns] += 1
        return columns, self._clocks.vector[agents, columns]

    def _columns_of(self, agents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the column in which each agent counts its steps, made on first use."""
        if len(self._of_agent) < len(self._clocks.vector):
            more = len(self._clocks.vector) - len(self._of_agent)
            self._of_agent = np.pad(self._of_agent, (0, more))
        columns: NDArray[np.int64] = self._of_agent[agents]
        if np.count_nonzero(columns) < len(columns):
            for agent in agents[columns == 0].tolist():
                column = self.column(f"steps of {self._clocks.name(agent)}")
                self._of_agent[agent] = column
            columns = self._of_agent[agents]
        return columns

    def times(self, agents: Agents) -> Times:
        """
        Return the entries of one agent's row in the additional columns; of several, the largest.
        """
        vector = self._clocks.vector
        times: Times
        if not isinstance(agents, np.ndarray):
            times = vector[agents, self.columns]
        elif len(agents) == 1:
            times = vector[agents[0], self.columns]
        else:
            times = np.maximum.reduce(vector[agents[:, None], self.columns])
        return times

    def learn(self, agents: NDArray[np.int64], times: Times) -> None:
        """Join `times` into the times of `agents` [k]."""
        where = agents[:, None], self.columns[: len(times)]
        self._clocks.vector[where] = np.maximum(self._clocks.vector[where], times)

    def of(self, clock: Clock) -> Times:
        """Return the entries of a clock in the additional columns, without those beyond its end."""
        return clock[self.columns[: int(self.columns.searchsorted(len(clock)))]]

    def added(self, clock: Clock | None, times: Times) -> Clock:
        """Return the join of a clock and `times`; the clock is not changed."""
        columns = self.columns[: len(times)]
        length = int(columns[-1]) + 1 if len(columns) else 1
        known: Clock = np.zeros(length if clock is None else max(length, len(clock)), np.int64)
        if clock is not None:
            known[: len(clock)] = clock
        known[columns] = np.maximum(known[columns], times)
        return known
