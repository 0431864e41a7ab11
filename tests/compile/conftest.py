# SPDX-License-Identifier: Apache-2.0
"""Caches with kernels in them, and workers that wait."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.cache import Store
from jitgen.compile import isolated
from jitgen.events import Event
from jitgen.runtime.loader import KernelLoader
from tests.compile.fallback_calls import NEIGHBOUR


@pytest.fixture
def spoilt_memory() -> Iterator[None]:
    """Have torch fill memory that it hands out with NaN, so that what was never written shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def registered() -> None:
    """Have transformers know jitgen's experts."""
    from jitgen.integrations import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.register()


@pytest.fixture(scope="session")
def neighbour_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the neighbour; tests copy it."""
    root = tmp_path_factory.mktemp("warm") / "cache"
    KernelLoader(Store.open(root)).get(NEIGHBOUR, "cpu")
    return root


@pytest.fixture
def fallback_root(neighbour_root: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the cache with the neighbour, which is this test's cache."""
    shutil.copytree(neighbour_root, cache_root)
    monkeypatch.setenv("JITGEN_ON_MISS", "fallback")
    return cache_root


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    """Every event of the test."""
    found: list[Event] = []
    stop = jitgen.on_event(found.append)
    yield found
    stop()


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers do not compile before this file exists; each says beside it that it began."""
    gate = tmp_path / "gate"
    (tmp_path / "patient_tasks.py").write_text(
        "import os, time\n"
        "from jitgen.compile import isolated\n"
        "def build(asked):\n"
        f"    open(f'{gate.parent}/worker-{{os.getpid()}}', 'x').close()\n"
        f"    while not os.path.exists({str(gate)!r}):\n"
        "        time.sleep(0.01)\n"
        "    return isolated.compile_task(asked)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(isolated, "TASK", "patient_tasks:build")
    return gate
