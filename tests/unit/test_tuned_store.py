# SPDX-License-Identifier: Apache-2.0
"""Where measurements are kept, and that nothing wrong with them does any harm."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from jitgen import settings
from jitgen.cache import Store
from jitgen.errors import CacheError
from jitgen.runtime.session import current, select
from jitgen.selection import measurements as tuned
from tests.unit.tuned_fakes import (
    BY_MODEL,
    GPU,
    NAMES,
    PROBLEM,
    forget,
    record,
    ship,
    the_file,
)

pytestmark = pytest.mark.usefixtures("tables")


class TestDoubt:
    """What cannot be trusted is ignored, with a word."""

    def put(self, change: dict[str, Any] | str, root: Path) -> None:
        tuned.record(Store.open(), GPU, record(2))
        text = change if isinstance(change, str) else json.dumps(record(2).to_json() | change)
        the_file(root).write_text(text)
        forget()

    @pytest.mark.parametrize(
        "change",
        ["", "{", "[]", "3", "[" * 100_000, {"schema": 99}, {"times_us": {"a": []}}, {"winner": 1}],
        ids=range(8),
    )
    def test_damaged(self, change: Any, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.put(change, cache_root)
        with caplog.at_level(logging.WARNING):
            choices = {select(PROBLEM, GPU).source for _ in range(3)}

        assert choices == {"model"}
        assert len(caplog.records) == 1
        assert "ignoring" in caplog.text

    def test_of_another_problem(self, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        problem = {**record().to_json()["problem"], "groups": 9}
        self.put({"problem": problem}, cache_root)

        assert select(PROBLEM, GPU).source == "model"
        assert "another problem" in caplog.text

    def test_kernels_that_the_menu_has_not(self, cache_root: Path) -> None:
        self.put({"winner": "gone", "times_us": {"gone": 1.0, NAMES[1]: 2.0}}, cache_root)
        choice = select(PROBLEM, GPU)

        assert choice.source == "model"
        assert choice.config == BY_MODEL.config
        assert list(choice.times_us.values()) == [2.0]

    def test_writable_by_others(self, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.put({}, cache_root)
        the_file(cache_root).chmod(0o622)

        assert select(PROBLEM, GPU).source == "model"
        assert "it can be written by other users (mode 0622)" in caplog.text

    def test_of_another_user(
        self,
        cache_root: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.put({}, cache_root)
        real = os.fstat

        def fstat(descriptor: int) -> os.stat_result:
            values = list(real(descriptor))
            if stat.S_ISREG(values[0]):
                values[4] = 12345
            return os.stat_result(values)

        monkeypatch.setattr(os, "fstat", fstat)

        assert select(PROBLEM, GPU).source == "model"
        assert "it belongs to user 12345" in caplog.text

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder", "huge"])
    def test_no_plain_file(self, kind: str, cache_root: Path, tmp_path: Path) -> None:
        self.put({}, cache_root)
        path = the_file(cache_root)
        path.rename(tmp_path / "real.json")
        if kind == "link":
            path.symlink_to(tmp_path / "real.json")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_text(json.dumps(record(2).to_json()) + " " * 2**20)

        assert select(PROBLEM, GPU).source == "model"

    def test_unsafe_root(self, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.put({}, cache_root)
        cache_root.chmod(0o777)

        assert select(PROBLEM, GPU).source == "model"
        assert "not safe" in caplog.text

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
    def test_damaged_table(self, text: str, tables: Path, caplog: pytest.LogCaptureFixture) -> None:
        ship(tables, record(1))
        (tables / "sm_90a" / "tables" / "nvidia-h200.json").write_text(text)
        forget()

        assert select(PROBLEM, GPU).source == "model"
        assert len(caplog.records) == 1


class TestStore:
    """Where measurements are kept."""

    def test_private_and_complete(self, cache_root: Path) -> None:
        store = Store.open()
        tuned.record(store, GPU, record(2))
        tuned.exclude(store, GPU, NAMES[0], "it hung")
        path = the_file(cache_root)

        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.parent.parent.name.startswith("nvidia-h200-")
        assert not list((cache_root / "v1" / "tmp").iterdir())
        assert tuned.all_recorded(store, GPU) == [record(2)]
        assert tuned.exclusions(store, GPU) == {NAMES[0]: "it hung"}
        assert store.stats().tuned == 1

    def test_read_only(self) -> None:
        tuned.record(Store.open(), GPU, record(2))
        store = Store.open(mode="ro")
        with pytest.raises(CacheError, match="read-only"):
            tuned.record(store, GPU, record(1))
        tuned.exclude(Store.open(), GPU, NAMES[0], "it hung")
        tuned.readmit(store, GPU, NAMES[0])
        store.tuned.clear()
        with settings.scope(cache="ro"):
            forget()
            assert select(PROBLEM, GPU).source == "tuned"
            assert select(PROBLEM, GPU).excluded

    def test_off(self) -> None:
        tuned.record(Store.open(), GPU, record(2))
        with settings.scope(cache="off"):
            forget()
            assert select(PROBLEM, GPU).source == "model"

    def test_a_full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        store = Store.open()
        with pytest.raises(CacheError, match="No space left on device"):
            tuned.record(store, GPU, record(2))

        assert not list((store.root / "v1" / "tmp").iterdir())
        assert tuned.all_recorded(store, GPU) == []

    def test_clearing_forgets(self) -> None:
        store = Store.open()
        tuned.record(store, GPU, record(2))
        store.clear()
        current.get().reset()

        assert store.tuned.is_empty
        assert select(PROBLEM, GPU).source == "model"

    def test_no_database_is_opened(self, cache_root: Path) -> None:
        tuned.record(Store.open(), GPU, record(2))
        assert select(PROBLEM, GPU).source == "tuned"

        assert not list((cache_root / "v1" / "index").iterdir())
