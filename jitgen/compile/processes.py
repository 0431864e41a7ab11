# SPDX-License-Identifier: Apache-2.0
"""Finds the descendants of a process in ``/proc``."""

from __future__ import annotations

from pathlib import Path


def children_of(pid: int) -> list[int]:
    """
    Return the children of process `pid`; none if it has ended, or the system does not list them.
    """
    found: list[int] = []
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, path.read_text(encoding="ascii").split())
    except OSError:
        pass
    return found


def descendants_of(pid: int) -> list[int]:
    """Return the children of process `pid`, their children, and so on."""
    found = children_of(pid)
    for child in found:  # the list grows meanwhile
        found += children_of(child)
    return found
