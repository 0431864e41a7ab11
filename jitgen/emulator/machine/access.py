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
from jitgen.emulator.machine.scopes import Scope, are_morally_strong

READ, WRITE = "read", "write"
RELAXED_READ, RELAXED_WRITE = "relaxed read", "relaxed write"
"""Accesses that are atomic, volatile or marked as synchronising: they exclude only the others."""


@dataclass(frozen=True, slots=True)
class Access:
    """
    The agents that access granules [k], and the kind of access.

    Attributes:
        kind: READ, WRITE, RELAXED_READ or RELAXED_WRITE.
        agents: The accessing agents: one for all granules, or one for each [k].
        epochs: The agents' epochs at the access, in the form of `agents`.
        rows: The agents that must be ordered after earlier accesses; as `agents`. For ordinary
            accesses these are the agents themselves, for asynchronous work the warp that started
            it.
        is_joint: Whether every one of `agents` [m], ascending, with `epochs` [m] and `rows` [m],
            accesses every granule. READ only.
        is_async: Whether the access is through the async proxy, which sees ordinary writes only
            after a proxy fence. The rows are one, or it is joint.
        lanes: Lanes of the warps: one for all granules, or for each [k]; None: it does not matter,
            as all lanes take part.
        scope: The scope of a relaxed access.
        rank: Rank of the accessing CTA, if a cluster shares the memory.
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
        """Whether threads access memory themselves, not an asynchronous unit that they started."""
        return self.rows is self.agents

    def part(self, positions: NDArray[np.int64] | slice) -> Access:
        """Return the access of some of the granules."""
        lanes = self.lanes[positions] if isinstance(self.lanes, np.ndarray) else self.lanes
        if self.is_joint or not isinstance(self.agents, np.ndarray):
            return self if lanes is self.lanes else replace(self, lanes=lanes)
        agents, epochs = (np.asarray(array)[positions] for array in (self.agents, self.epochs))
        rows = agents if self.is_own else np.asarray(self.rows)[positions]
        return replace(self, agents=agents, epochs=epochs, rows=rows, lanes=lanes)


class StrongKinds:
    """
    The kinds of relaxed accesses that one memory saw, distinguished by scope and CTA.

    Two relaxed accesses may run at the same time if they are morally strong. So an access must be
    ordered after all that are not morally strong with it: those of another CTA, if one of the two
    accesses has the scope ``.cta``. PTX ISA of "atom" and "red": an operation is atomic only with
    those that are morally strong with it.

    Attributes:
        spans_ctas: CTAs of a cluster share the memory; else all are of one CTA, and each kind
            keeps its name.
    """

    def __init__(self) -> None:
        self.spans_ctas = False
        self._known: dict[str, tuple[str, Scope, int]] = {}
        self._named: dict[frozenset[str], frozenset[str]] = {}
        self._unlike: dict[tuple[str, Scope, int], frozenset[str]] = {}

    def name(self, kind: str, scope: Scope, rank: int) -> str:
        """Return the name of a relaxed kind of accesses by threads of CTA `rank`."""
        if not self.spans_ctas:
            return kind
        name = f"{kind} at {scope} of rank {rank}"
        if name not in self._known:
            self._known[name] = (kind, scope, rank)
            self._named.clear()
            self._unlike.clear()
        return name

    def named(self, kinds: frozenset[str]) -> frozenset[str]:
        """
        Return some kinds, together with the names of those that are distinguished by scope and CTA.
        """
        if not self._known:
            return kinds
        found = self._named.get(kinds)
        if found is None:
            names = {name for name, (kind, *_) in self._known.items() if kind in kinds}
            found = self._named[kinds] = kinds | names
        return found

    def unlike(self, kind: str, scope: Scope, rank: int) -> frozenset[str]:
        """
        Return the names of the kinds of accesses that conflict with a relaxed access and are not
        morally strong with it.
        """
        if not self._known:
            return frozenset()
        found = self._unlike.get((kind, scope, rank))
        if found is None:
            found = self._unlike[kind, scope, rank] = frozenset(
                name
                for name, (other, its_scope, its_rank) in self._known.items()
                if RELAXED_WRITE in {kind, other}
                and not are_morally_strong(
                    scope, its_scope, same_cta=rank == its_rank, same_cluster=True
                )
            )
        return found
