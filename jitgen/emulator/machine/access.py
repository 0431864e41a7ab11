# SPDX-License-Identifier: Apache-2.0
"""
Accesses of memory: their kinds, and who makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.clocks import Agents
from jitgen.emulator.machine.lane_history import LaneNumbers
from jitgen.emulator.machine.scopes import Scope

READ, WRITE = "read", "write"
RELAXED_READ, RELAXED_WRITE = "relaxed read", "relaxed write"
"""Accesses that are atomic, volatile or marked as synchronising: they exclude only the others."""


@dataclass(frozen=True, slots=True)
class Access:
    """
    The agents that access granules [k], and the kind of access.

    Attributes:
        kind: READ, WRITE, RELAXED_READ or RELAXED_WRITE.
        agents: Who: one for all granules, or for each [k].
        epochs: When, by the agents' clocks; as `agents`.
        rows: Agents whose knowledge counts; as `agents`. For ordinary accesses these are the agents
            themselves, for asynchronous work the warp that started it.
        is_joint: Every one of `agents` [m], ascending, with `epochs` [m] and `rows` [m], accesses
            every granule. READ only.
        is_async: Through the async proxy, which sees ordinary writes only after a proxy fence. The
            rows are one, or it is joint.
        lanes: Which lanes of the warps: one for all granules, or for each [k]; None: it does not
            matter, as all lanes take part.
        scope: Of a relaxed access.
        rank: Of the CTA that accesses, where the memory is shared by a cluster.
    """

    kind: str
    agents: Agents
    epochs: Agents
    rows: Agents
    is_joint: bool = False
    is_async: bool = False
    lanes: LaneNumbers | None = None
    scope: Scope = Scope.SYS
    rank: int = 0

    @property
    def is_own(self) -> bool:
        """Whether threads access, and no unit for them."""
        return self.rows is self.agents

    def part(self, positions: NDArray[np.int64] | slice) -> Access:
        """Return the access of some of the granules."""
        lanes = self.lanes[positions] if isinstance(self.lanes, np.ndarray) else self.lanes
        if self.is_joint or not isinstance(self.agents, np.ndarray):
            return self if lanes is self.lanes else replace(self, lanes=lanes)
        agents, epochs = (np.asarray(array)[positions] for array in (self.agents, self.epochs))
        rows = agents if self.is_own else np.asarray(self.rows)[positions]
        return replace(self, agents=agents, epochs=epochs, rows=rows, lanes=lanes)
