# SPDX-License-Identifier: Apache-2.0
"""Stores, remote stores and tables for tests of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jitgen.cache import Store
from jitgen.events import Event, events

if TYPE_CHECKING:
    from tests.unit.remote_stand import Stand


@pytest.fixture
def no_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to reach the disk: no test that asks for this ends the machine."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def store(cache_root: Path, no_power_failure: None) -> Store:
    """A store that can be written."""
    return Store.open()


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """The events of this test."""
    heard: list[Event] = []
    stop = events.listen(heard.append)
    yield heard
    stop()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    """A remote store, and processes that fetch from it."""
    from tests.unit.remote_stand import standing

    with standing(tmp_path) as found:
        yield found


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of shipped tables, and no GPU."""
    from tests.unit.tuned_fakes import empty_tables

    yield from empty_tables(tmp_path, monkeypatch)
