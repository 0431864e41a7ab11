# SPDX-License-Identifier: Apache-2.0
"""The report of `jitgen.warm_up`: a row for each kernel, with the rank that compiled it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypedDict

from jitgen.config import Arch
from jitgen.fleet.coordination import KernelRecord
from jitgen.support.frozen import frozen

SCHEMA = 1
"""Version of the manifest."""


class WarmUpState(StrEnum):
    """How a kernel came into this rank's cache, or that it failed."""

    CACHED = "cached"
    """The kernel was in the cache before."""

    COMPILED = "compiled"
    """This rank compiled the kernel."""

    SHARED = "shared"
    """Another rank compiled the kernel, into the same cache."""

    FETCHED = "fetched"
    """Another rank sent the kernel, or a remote tier or compile service had it."""

    FAILED = "failed"


@frozen
class WarmUpRow:
    """
    The result for one kernel.

    Attributes:
        name: Its name.
        key: Digest of its key document.
        state: How this rank got it.
        rank: The rank that compiled it, else the one that fetched it; -1 if it was cached and this
            rank read no record of it.
        host: The machine of that rank.
        seconds: Time of its compile; 0 if there was none.
        error: Why it failed; empty if it did not.
    """

    name: str
    key: str
    state: WarmUpState
    rank: int = -1
    host: str = ""
    seconds: float = 0.0
    error: str = ""


@frozen
class WarmUpReport:
    """
    The result of a warm-up, on one rank.

    Attributes:
        arch: The target.
        rank: Number of this rank.
        world: Number of ranks.
        rows: One result for each kernel: those of a plan with the most calls first, given ones in
            their order.
        lost: Ranks that died or fell silent over a kernel, which another rank then compiled.
        wall_s: Seconds that this rank spent on the warm-up.
        manifest: For each kernel the rank that compiled it, its machine and the seconds: JSON
            values, the same on every rank. If ``complete`` is false, this rank had all kernels in
            its own cache before others had finished.
    """

    arch: Arch
    rank: int
    world: int
    rows: tuple[WarmUpRow, ...]
    lost: tuple[int, ...]
    wall_s: float
    manifest: dict[str, object]

    @property
    def ok(self) -> bool:
        """Whether every kernel is in this rank's cache now."""
        return all(row.state is not WarmUpState.FAILED for row in self.rows)

    def count(self, state: WarmUpState | str) -> int:
        """Return how many kernels are in `state`."""
        return sum(row.state == state for row in self.rows)


def manifest(
    arch: Arch, world: int, rows: Iterable[WarmUpRow], records: Mapping[str, KernelRecord | None]
) -> dict[str, object]:
    """Return the manifest of the kernels in `rows`, by their `records`; see `WarmUpReport`."""
    kernels = [_line(row, records.get(row.key)) for row in rows]
    return {
        "schema": SCHEMA,
        "arch": str(arch),
        "world": world,
        "ok": not any(line["error"] for line in kernels),
        "complete": all(_is_settled(record) for record in records.values()),
        "compiles": sum(line["seconds"] > 0 for line in kernels),
        "lost": lost(records),
        "kernels": kernels,
    }


def lost(records: Mapping[str, KernelRecord | None]) -> list[int]:
    """Return the numbers of ranks that died over a kernel."""
    return sorted(
        {rank for record in records.values() if record is not None for rank in record.lost}
    )


class _Line(TypedDict):
    """One kernel in the manifest of a `WarmUpReport`."""

    name: str
    key: str
    rank: int
    host: str
    seconds: float
    error: str


def _line(row: WarmUpRow, record: KernelRecord | None) -> _Line:
    settled = record if _is_settled(record) else None
    return {
        "name": row.name,
        "key": row.key,
        "rank": settled.rank if settled else -1,
        "host": settled.host if settled else "",
        "seconds": round(settled.seconds, 3) if settled else 0.0,
        "error": settled.error if settled and settled.state == "failed" else "",
    }


def _is_settled(record: KernelRecord | None) -> bool:
    return record is not None and record.state in ("done", "failed")
