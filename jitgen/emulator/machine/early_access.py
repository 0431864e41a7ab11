# SPDX-License-Identifier: Apache-2.0
"""
Accesses of global memory by a grid that may start before the one in front has ended.

PTX ISA, section "griddepcontrol".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.fragment import Fragment


def check_previous_grid(f: Fragment, at: int, agents: NDArray[np.int64] | None = None) -> None:
    """
    Report warps that access global memory too early.

    A grid that may start before the previous one ends must execute griddepcontrol.wait first. PTX
    ISA, section "griddepcontrol".

    Args:
        f: The fragment that executes the access.
        at: Index of its instruction.
        agents: The warps that take part [k]; by default all.
    """
    if _are_early(f, f.agents if agents is None else agents).any():
        f.warn(at, "race", _TOO_EARLY)


def check_early_read(
    f: Fragment,
    at: int,
    threads: NDArray[np.int64] | slice,
    addresses: NDArray[np.int64],
    size: int,
) -> None:
    """
    Report warps that read global memory too early; see `check_previous_grid`.

    Memory that no earlier grid can still be writing may be read before: see `Range.is_settled`.

    Args:
        f: The fragment that executes the read.
        at: Index of its instruction.
        threads: The threads that read [k].
        addresses: Address that each thread reads [k].
        size: Number of bytes that each reads.
    """
    if not _are_early(f, f.agents).any():
        return
    is_early = _are_early(f, f.agent_of[threads])
    if is_early.any() and not f.machine.memory.is_settled(addresses[is_early], size):
        f.warn(at, "race", _TOO_EARLY)


def _are_early(f: Fragment, agents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of `agents` [k] may run while the previous grid does."""
    if not f.machine.is_early:
        return np.zeros(1, np.bool_)
    early: NDArray[np.bool_] = f.cluster.clocks.vector[agents, f.cluster.previous_grid] < 1
    return early


_TOO_EARLY = "global memory is accessed before griddepcontrol.wait"
