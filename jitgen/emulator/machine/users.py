# SPDX-License-Identifier: Apache-2.0
"""The agents that used an mbarrier: its end must come after the last use of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jitgen.emulator.machine.clocks import Clocks


class Users:
    """
    The agents that used one barrier, and the last use of each.

    Attributes:
        initialiser: The warp that initialised it, and its epoch then.
    """

    __slots__ = ("_clocks", "_ends", "_groups", "_informed", "_last", "initialiser")

    def __init__(self, clocks: Clocks, initialiser: tuple[int, int], *, ends: bool) -> None:
        """
        Begin with the initialisation as the only use.

        Args:
            clocks: The vector clocks of the cluster.
            initialiser: The warp that initialised the barrier, and its epoch then.
            ends: Whether the kernel ends barriers; if not, uses are not noted.
        """
        self._clocks, self._ends = clocks, ends
        self.initialiser = initialiser
        self._informed: set[int] = {initialiser[0]}
        self._groups: set[bytes] = set()
        self._last: NDArray[np.int64] = np.zeros(0, np.int64)

    def are_informed(self, agents: NDArray[np.int64]) -> bool:
        """Return whether warps [k] are ordered after the initialisation; each is checked once."""
        group = agents.tobytes()
        if group in self._groups:
            return True
        self._groups.add(group)
        strangers = set(agents.tolist()) - self._informed
        if not strangers:
            return True
        self._informed.update(strangers)
        agent, epoch = self.initialiser
        return not (self._clocks.vector[list(strangers), agent] < epoch).any()

    def note(self, agents: NDArray[np.int64]) -> None:
        """Note that warps [k] use the barrier now."""
        if not self._ends:
            return
        vector = self._clocks.vector
        if len(self._last) < len(vector):
            self._last = np.pad(self._last, (0, len(vector) - len(self._last)))
        self._last[agents] = vector[agents, agents]

    def note_work(self, agent: int, epoch: int) -> None:
        """Note that work of a unit will use the barrier."""
        if self._ends:
            self.note(np.array([agent]))
            self._last[agent] = epoch

    def unknown_to(self, row: int) -> int:
        """Return an agent after whose last use agent `row` is not ordered; -1 if there is none."""
        unknown = self._clocks.vector[row, : len(self._last)] < self._last
        return int(unknown.argmax()) if np.count_nonzero(unknown) else -1
