# SPDX-License-Identifier: Apache-2.0
"""No other user can do harm through the index, and losing it costs little."""

from __future__ import annotations

import logging
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskcache
import pytest

from jitgen.cache import Store
from jitgen.cache.textdisk import Table, TextDisk, UnsafeRow
from tests.unit.store_fakes import fake_meta, publish, tree, used

KEY = fake_meta(1).key
SQLITE = "cache.db"


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.path,))


@pytest.fixture
def store(store: Store) -> Store:
    """A store that can be written, with one entry, two uses of it and one failure."""
    return used(store)


@pytest.fixture
def folder(cache_root: Path) -> Path:
    """The folder of the index."""
    return cache_root / "v1" / "index"


def edit(folder: Path, statement: str, *values: object) -> None:
    """Change the database as another user would."""
    with sqlite3.connect(folder / SQLITE) as connection:
        connection.execute(statement, values)
    connection.close()


def check_rebuilt(store: Store, cache_root: Path) -> None:
    """The index is moved aside and works again, and the entries are what they were."""
    store.index.close()
    fresh = Store.open()

    assert fresh.stats().entries == 1
    assert fresh.index.failure("ab" * 32) is None
    assert fresh.index.uses(KEY)[0] == 0
    assert [info.name for info in fresh.entries()] == [fake_meta(1).name]
    assert fresh.read(KEY) is not None
    fresh.index.record_use(KEY)
    assert fresh.index.uses(KEY)[0] == 1
    assert tree(cache_root / "v1" / "quarantine")[0].startswith("index-")


class TestTampering:
    """What another user writes into the index is not executed, followed or deleted."""

    def test_pickled_value(
        self, store: Store, folder: Path, cache_root: Path, tmp_path: Path
    ) -> None:
        """A row that asks to be unpickled is refused."""
        store.index.close()
        edit(
            folder,
            "UPDATE Cache SET mode = 4, value = ?",
            pickle.dumps(Bomb(tmp_path / "executed")),
        )

        check_rebuilt(store, cache_root)
        assert not (tmp_path / "executed").exists()

    def test_pickled_key(
        self, store: Store, folder: Path, cache_root: Path, tmp_path: Path
    ) -> None:
        """Keys are not unpickled either: iterating meets one and refuses."""
        store.index.close()
        edit(
            folder,
            "UPDATE Cache SET raw = 0, key = ? WHERE key LIKE 'failure%'",
            pickle.dumps(Bomb(tmp_path / "executed")),
        )
        table = Table(folder, 1.0)
        with pytest.raises(UnsafeRow):
            list(table)
        table.close()

        assert store.index.failures() == {}
        assert not (tmp_path / "executed").exists()

    @pytest.mark.parametrize("mode", [1, 2, 3, 4])
    @pytest.mark.parametrize("name", ["../../../precious", "absolute"])
    def test_file_of_a_row(
        self, store: Store, folder: Path, cache_root: Path, tmp_path: Path, name: str, mode: int
    ) -> None:
        """A row that names a file is refused; the file is neither read nor removed."""
        precious = tmp_path / "precious"
        precious.write_text("{}")
        store.index.close()
        named = str(precious) if name == "absolute" else name
        edit(folder, "UPDATE Cache SET mode = ?, filename = ?, value = NULL", mode, named)

        check_rebuilt(store, cache_root)
        assert precious.read_text() == "{}"

    def test_removing_a_row_removes_no_file(
        self, store: Store, folder: Path, tmp_path: Path
    ) -> None:
        """Overwriting, deleting and expiring rows with a planted file name touch no file."""
        precious = tmp_path / "precious"
        precious.write_text("x")
        store.index.close()
        edit(folder, "UPDATE Cache SET filename = ?, expire_time = 1", str(precious))
        table = Table(folder, 1.0)

        table.set("00", "text")
        table.delete("failure:" + "ab" * 32)
        table.drop_expired()
        table.close()

        assert precious.exists()

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO Settings VALUES ('disk_evil', 1)",
            "INSERT INTO Settings VALUES ('_sql_retry', 1)",
            "INSERT INTO Settings VALUES ('sqlite_user_version; DROP TABLE Cache', 1)",
            "DROP TABLE Cache",
            "UPDATE Cache SET value = 7",
        ],
    )
    def test_odd_settings_and_tables(
        self, store: Store, folder: Path, cache_root: Path, statement: str
    ) -> None:
        """A database that makes diskcache stumble is moved aside or put up with."""
        store.index.close()
        edit(folder, statement)
        fresh = Store.open()

        assert fresh.stats().entries == 1
        fresh.index.record_use(KEY)
        assert fresh.index.uses(KEY)[0] >= 1

    @pytest.mark.parametrize(
        "text", ["[]", "{", "null", '{"x": 1}', '{"../../x": ["n","a",1,1,1,1.0]}', "[" * 100_000]
    )
    def test_odd_rows(self, store: Store, folder: Path, text: str) -> None:
        """Text that is no row of ours is left out, and learned again from the entries."""
        store.index.close()
        edit(folder, "UPDATE Cache SET value = ?", text)
        fresh = Store.open()

        assert [info.key for info in fresh.entries()] == [KEY]
        assert fresh.index.failure("ab" * 32) is None

    def test_settings_in_the_database_are_overruled(self, store: Store, folder: Path) -> None:
        """The database may ask for eviction at 1 byte: all settings are passed on opening."""
        store.index.close()
        edit(folder, "UPDATE Settings SET value = 1 WHERE key = 'size_limit'")
        edit(folder, "UPDATE Settings SET value = 10 WHERE key = 'cull_limit'")
        edit(
            folder,
            "UPDATE Settings SET value = 'least-recently-stored' WHERE key = 'eviction_policy'",
        )
        fresh = Store.open()
        for number in range(2, 30):
            publish(fresh, number)

        assert len(fresh.index.rows()) == 29
        assert fresh.index.uses(KEY)[0] == 2

    def test_only_text(self, tmp_path: Path) -> None:
        """The disk stores no objects in the first place."""
        disk = TextDisk(str(tmp_path))
        for value in (1, None, [], {}, 1.5):
            with pytest.raises(UnsafeRow):
                disk.store(value, False)
            with pytest.raises(UnsafeRow):
                disk.put(value)
        with pytest.raises(UnsafeRow):
            disk.filename()

    def test_stock_diskcache_would_run_it(self, tmp_path: Path) -> None:
        """The attack is real: without `TextDisk` the planted row does run."""
        with diskcache.Cache(str(tmp_path / "stock")) as cache:
            cache["key"] = "text"
        edit(
            tmp_path / "stock",
            "UPDATE Cache SET mode = 4, value = ?",
            pickle.dumps(Bomb(tmp_path / "executed")),
        )
        with diskcache.Cache(str(tmp_path / "stock")) as cache:
            cache.get("key")

        assert (tmp_path / "executed").exists()


class TestLoss:
    """Losing the index costs statistics and remembered failures, nothing else."""

    def test_deleted(self, store: Store, folder: Path) -> None:
        """It is built again while a store is open."""
        store.pin(KEY)
        shutil.rmtree(folder)

        assert store.read(KEY) is not None
        assert store.stats().entries == 1
        assert store.is_pinned(KEY)
        store.index.record_use(KEY)
        assert store.index.uses(KEY)[0] == 1

    def test_garbage(self, store: Store, folder: Path, cache_root: Path) -> None:
        """Bytes that are no database are moved aside."""
        store.index.close()
        for path in folder.glob("cache.db*"):
            path.unlink()
        (folder / SQLITE).write_bytes(random.Random(1).randbytes(20_000))

        check_rebuilt(store, cache_root)

    def test_truncated_while_open(
        self, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process may have damaged it at any time, and others still have it open."""
        monkeypatch.setattr("jitgen.cache.database._TIMEOUT_S", 0.1)
        (folder / SQLITE).write_bytes(b"")
        (folder / "cache.db-wal").unlink(missing_ok=True)
        (folder / "cache.db-shm").unlink(missing_ok=True)

        for _ in range(3):
            assert store.stats().entries == 1
        store.index.record_use(KEY)
        assert Store.open().index.uses(KEY)[0] >= 1

    @pytest.mark.parametrize("kind", ["file", "link", "database link", "database folder"])
    def test_something_else_in_its_place(
        self, store: Store, folder: Path, tmp_path: Path, kind: str
    ) -> None:
        """A file or a link is moved aside, and what it points to stays untouched."""
        store.index.close()
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / SQLITE).write_bytes(b"")
        match kind:
            case "file":
                shutil.rmtree(folder)
                folder.write_text("x")
            case "link":
                shutil.rmtree(folder)
                folder.symlink_to(elsewhere)
            case "database link":
                (folder / SQLITE).unlink()
                (folder / SQLITE).symlink_to(elsewhere / SQLITE)
            case _:
                (folder / SQLITE).unlink()
                (folder / SQLITE).mkdir()
        fresh = Store.open()

        assert fresh.stats().entries == 1
        fresh.index.remember_failure("cd" * 32, "n", "r", 60)
        assert fresh.index.failure("cd" * 32) is not None
        assert tree(elsewhere) == [SQLITE]
        assert (elsewhere / SQLITE).read_bytes() == b""

    def test_busy(
        self, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        """A database that another process holds is done without, once with a warning."""
        monkeypatch.setattr("jitgen.cache.database._TIMEOUT_S", 0.05)
        monkeypatch.setattr("jitgen.cache.database._REST_S", 0.0)
        store.index.close()
        store.index.uses(KEY)
        other = sqlite3.connect(folder / SQLITE, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with caplog.at_level(logging.WARNING):
            store.index.remember_failure("cd" * 32, "n", "r", 60)
            store.index.remember_failure("cd" * 32, "n", "r", 60)
            assert store.stats().entries == 1
            assert store.index.failure("cd" * 32) is not None
        other.execute("ROLLBACK")
        other.close()

        assert len(caplog.records) == 1
        assert store.index.uses(KEY)[0] == 2

    def test_without_diskcache(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        """A package that is missing is a warning as well."""
        store.index.close()
        monkeypatch.setitem(__import__("sys").modules, "jitgen.cache.textdisk", None)
        fresh = Store.open()

        assert fresh.stats().entries == 1
        assert fresh.read(KEY) is not None
        assert len(caplog.records) == 1

    def test_rebuilt_on_request(self, store: Store) -> None:
        """Verifying with a rebuild starts the index anew."""
        assert all(result.is_good for result in store.verify(rebuild=True))

        assert store.index.rows()[KEY].name == fake_meta(1).name
        assert store.index.uses(KEY)[0] == 0
