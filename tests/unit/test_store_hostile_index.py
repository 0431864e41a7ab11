# SPDX-License-Identifier: Apache-2.0
"""A database and a journal that another user wrote: no read of the index hangs, dies or grows."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from jitgen.cache import Store, database
from jitgen.cache.index import MOST_JOURNAL_BYTES
from tests.unit.store_fakes import fake_meta, publish

KEY = fake_meta(1).key
FAILED = "cd" * 32


@pytest.fixture
def store(cache_root: Path) -> Store:
    """A store with an entry, a use of it and a failure."""
    store = Store.open(cache_root)
    publish(store, 1)
    store.index.record_use(KEY)
    store.index.remember_failure(FAILED, "name", "reason", 60)
    assert store.index.uses(KEY)[0] == 1
    store.index.close()
    return store


def edit(root: Path, *statements: str) -> None:
    """Change the database as another user would."""
    connection = sqlite3.connect(root / "v1" / "index" / "cache.db", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
def test_a_trigger_that_never_ends(store: Store, cache_root: Path, when: str) -> None:
    """Who remembered a failure hung for ever: the time limit was for locks alone."""
    edit(cache_root, f"CREATE TRIGGER t AFTER {when} ON Cache BEGIN SELECT ({ENDLESS}); END")
    start = time.monotonic()
    fresh = Store.open(cache_root)
    fresh.index.remember_failure(FAILED, "name", "reason", 60)

    assert fresh.index.failure(FAILED) is not None
    assert [info.key for info in fresh.entries()] == [KEY]
    assert time.monotonic() - start < 20


def test_a_view_that_never_ends(store: Store, cache_root: Path) -> None:
    edit(cache_root, "DROP TABLE Cache", f"CREATE VIEW Cache AS {ENDLESS}")
    start = time.monotonic()
    fresh = Store.open(cache_root)

    assert [info.key for info in fresh.entries()] == [KEY]
    assert fresh.index.failure(FAILED) is None
    assert time.monotonic() - start < 20


def test_nothing_is_mapped_into_memory(store: Store, cache_root: Path) -> None:
    """A write-ahead log has an index in shared memory: cutting that off was SIGBUS."""
    store.index.remember_failure("ef" * 32, "name", "reason", 60)  # which leaves it open
    names = {path.name for path in (cache_root / "v1" / "index").iterdir()}

    assert "cache.db" in names
    assert not any(name.endswith(("-shm", "-wal")) for name in names)
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(cache_root) not in mapped


def test_more_than_any_index_has(
    store: Store, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """58 MB of rows took 18 s and 350 MB, each time that the entries were listed."""
    monkeypatch.setattr(database, "_MOST_BYTES", 2**16)
    edit(
        cache_root,
        "CREATE TABLE more (x)",
        "INSERT INTO more VALUES (zeroblob(100000))",
    )
    fresh = Store.open(cache_root)

    assert [info.key for info in fresh.entries()] == [KEY]
    assert (cache_root / "v1" / "index" / "cache.db").stat().st_size < 2**16


@pytest.mark.parametrize("line", [b"\n", b"0\n", b'["x"]\r', b"[\n", b'["use",1,2,3]\n'])
def test_a_journal_full_of_lines(store: Store, cache_root: Path, line: bytes) -> None:
    """Four million lines took half a minute, and each kind of line end counted."""
    (cache_root / "v1" / "journal").write_bytes(line * (MOST_JOURNAL_BYTES // len(line)))
    start = time.monotonic()
    fresh = Store.open(cache_root)

    assert [info.hits for info in fresh.entries()] == [1]
    assert time.monotonic() - start < 5
    fresh.index.record_use(KEY)
    assert [info.hits for info in fresh.entries()] == [2]


def test_a_failure_that_speaks_to_the_terminal(store: Store, cache_root: Path) -> None:
    """What a row says went out as it was, escapes and all."""
    edit(
        cache_root,
        "UPDATE Cache SET value = replace(value, 'reason\", ', 'a\\u001b[31mb\", ')"
        " WHERE key LIKE 'failure:%'",
    )
    found = Store.open(cache_root).index.failure(FAILED)

    assert found is not None
    assert found.reason == r"a\x1b[31mb"
