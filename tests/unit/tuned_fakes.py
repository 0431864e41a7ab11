# SPDX-License-Identifier: Apache-2.0
"""Invented measurements, for the tests of what they decide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.runtime.session import current, select
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket
from jitgen.selection.packed import pack
from jitgen.selection.record import Table, TuningRecord

GPU = Arch.SM_90A
PROBLEM = bucket(GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=4096, n=4096, k=7168), GPU)
BY_MODEL = select(PROBLEM, GPU, use_measured=False)
NAMES = [candidate.config.name(GPU) for candidate in BY_MODEL.candidates]


def empty_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield an empty folder of shipped tables; meanwhile there is no GPU."""
    folder = tmp_path / "tables"
    folder.mkdir()
    monkeypatch.setattr(tuned, "TARGETS", folder)
    monkeypatch.setattr(device.target, "_GPU_DEVICES", ())
    forget()
    yield folder
    monkeypatch.undo()
    forget()


def record(number: int = 2, *, apart: float = 1.0, **changes: Any) -> TuningRecord:
    """
    Return measurements of `PROBLEM` in which the model's candidate of that number wins, and each
    that is further away from it took `apart` microseconds more than the one before.
    """
    times = {name: 100.0 + apart * abs(place - number) for place, name in enumerate(NAMES)}
    values: dict[str, Any] = {
        "problem": PROBLEM,
        "winner": NAMES[number],
        "times_us": times,
        "excluded": {},
        "date": "2026-11-21T10:00:00+00:00",
    }
    return TuningRecord(**(values | changes))


def forget() -> None:
    """Look at devices, tables and measurements anew, as a new process does."""
    for cached in (device.device_name, device.folder):
        cached.cache_clear()
    for cached in (
        tuned.shipped_device,
        tuned._shipped_devices,
        tuned._packed,
    ):
        cached.cache_clear()
    current.get().reset()


def ship(
    folder: Path, *records: TuningRecord, name: str = "NVIDIA H200", conditions: Any = None
) -> None:
    """Let `records` come with jitgen."""
    table = Table(device=name, arch=GPU, conditions=conditions or {}, records=records)
    path = folder / "sm_90a" / "tables" / f"{device.slug(name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(table))
    forget()


def the_file(root: Path, kind: str = "buckets") -> Path:
    """Return the one file of its kind."""
    (path,) = (root / "v1" / "tuned").glob(f"*/{kind}/*.json")
    return path
