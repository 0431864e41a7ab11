# SPDX-License-Identifier: Apache-2.0
"""Every test has a cache of its own, and no JITGEN_* variable of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen import events
from jitgen.runtime.session import current


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of this test's own cache."""
    for name in [name for name in os.environ if name.startswith("JITGEN_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "cache"
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(root))
    monkeypatch.setattr(events, "_warned", set())
    current.get().reset()
    yield root
    current.get().reset()
