# SPDX-License-Identifier: Apache-2.0
"""Stores in which a plan's kernels are, none of them compiled, and devices that are at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen import events, plans
from jitgen.cache import Store
from jitgen.config import Arch, Config
from jitgen.plans import Plan, load
from jitgen.plans.prewarm import prewarm
from jitgen.runtime import coverage
from jitgen.runtime.coverage import Coverage
from jitgen.runtime.session import Session, current
from jitgen.runtime.spec import spec_of
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.settings import settings
from tests.unit.fleet_fakes import record
from tests.unit.store_fakes import fake_files

GPU = Arch.parse("sm_90a")
H200, H100, H20 = "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H20"
PLAN = """
[[problems]]
layout = "ragged"
groups = 8
rows_per_group = { min = 1, max = 512 }
matrix = [{ n = 4096, k = 7168 }]
"""


def small(folder: Path, name: str = "small") -> Plan:
    """Return a plan with a handful of kernels."""
    file = folder / f"{name}.toml"
    file.write_text(PLAN, encoding="utf-8")
    return load(file)


def filled(store: Store, configs: Iterable[Config], arch: Arch = GPU) -> Store:
    """Return `store` with an entry for each kernel."""
    for number, config in enumerate(configs):
        store.publish(record(spec_of(config, arch)), fake_files(number))
    return store


def at_hand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a GPU called `name` be at hand; none, where that is empty."""
    monkeypatch.setattr(device, "gpu_at_hand", lambda _: name)
    forget()


def forget() -> None:
    """Look at the device and at measurements anew, as a new process does."""
    for cached in (device.device_name, device.folder, tuned.shipped_device):
        cached.cache_clear()
    current.get().reset()


@pytest.fixture(autouse=True)
def device_of_this_machine() -> Iterator[None]:
    """The tests that follow find the device that there is."""
    yield
    forget()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan with a handful of kernels."""
    return small(tmp_path)


@pytest.fixture
def store(cache_root: Path) -> Store:
    """The store of this process."""
    return Store.open(cache_root)


def prewarmed(plan: Plan, store: Store, *names: str) -> Coverage:
    """Prewarm a plan for devices, and return what the store says of it then."""
    filled(store, plans.configs(plan, GPU, devices=names))
    report = prewarm(plan, arch=GPU, store=store, devices=names)
    assert report.ok
    return next(each for each in coverage.kept(store, GPU) if each.devices == report.devices)


def frozen_on(name: str, caplog: pytest.LogCaptureFixture, **inside: Any) -> str:
    """Return what a process says that ends compiling, where kernels are chosen for `name`."""
    events._warned.clear()
    caplog.clear()
    with settings.scope(device=name, **inside), Session() as session:
        session.freeze()
    return caplog.text
