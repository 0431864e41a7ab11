# SPDX-License-Identifier: Apache-2.0
"""The number of compile processes that this machine, and this process's share of it, can run."""

from __future__ import annotations

import os
from pathlib import Path

WORKER_BYTES = 600 * 2**20
"""Memory to allow for one compile: it uses about 220 MB, two thirds of it shared."""


def default_jobs(requested: int = 0) -> int:
    """
    Return the number of compile processes to run: `requested`, or, if it is 0, a number for this
    machine.

    That is one for each core that this process may use, limited by the free memory, also by that of
    its control group (version 2).
    """
    if requested > 0:
        return requested
    return max(1, min(_usable_cores(), _available_bytes() // WORKER_BYTES))


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    for group in _control_groups():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.strip().isdecimal():
            cores = min(cores, -(-int(quota) // int(period)))
    return cores


def _available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else 2**62
    for group in _control_groups():
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            fields = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            # cached files count as used, and are given up when memory is asked for
            available = min(available, int(limit) - int(used) + int(fields.get("inactive_file", 0)))
    return max(0, available)


def _control_groups() -> list[Path]:
    """Return the folders of this process's control group (version 2) and of those that hold it."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            root = Path("/sys/fs/cgroup")
            own = root / line[4:]
            return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return []


def _read(path: Path) -> str:
    """Return the text of a file in ``/proc`` or ``/sys``; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
