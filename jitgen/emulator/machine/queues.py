# SPDX-License-Identifier: Apache-2.0
"""
Asynchronous work of a cluster that is put off, to find threads that do not wait for it.

Hardware may do a bulk load or a tcgen05 instruction at any time between its issue and the wait for
it. A mode takes one end: at once, or as late as possible, when no thread can go on without it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitgen.emulator.modes import Mode

Action = Callable[[], None]

KINDS = ("load", "matrix", "store")


class Queues:
    """Work that waits, in order of issue within each kind ("load", "matrix", "store")."""

    def __init__(self, mode: Mode, chance: random.Random | None = None) -> None:
        self._mode = mode
        self._chance = chance
        self._queues: dict[str, deque[Action]] = {kind: deque() for kind in KINDS}

    def issue(self, kind: str, action: Action) -> None:
        """Do `action` now, or keep it if the mode defers its kind."""
        if self._mode.defers(kind):
            self._queues[kind].append(action)
        else:
            action()

    def is_empty(self) -> bool:
        """Return whether there is no work."""
        return not any(self._queues.values())

    def run_one(self) -> bool:
        """Do the oldest work of one kind, of a random one in random modes; False: there is none."""
        waiting = [queue for queue in self._queues.values() if queue]
        if not waiting:
            return False
        queue = waiting[0] if self._chance is None else self._chance.choice(waiting)
        queue.popleft()()
        return True

    def run_all(self) -> None:
        """Do the remaining work, in order of issue."""
        while self.run_one():
            pass
