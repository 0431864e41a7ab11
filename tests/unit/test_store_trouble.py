# SPDX-License-Identifier: Apache-2.0
"""An index that is closed or absurd, numbers that are none, and kernels of another compiler."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import diskcache  # noqa: F401  # a child that is another user may not be able to
import pytest

from jitgen import events
from jitgen.cache import Store
from jitgen.cache.entry import key_of
from jitgen.cache.textdisk import MAX_BYTES
from jitgen.cli import main
from jitgen.settings import settings
from tests.unit.store_fakes import STRANGER, as_stranger, document, du, fake_meta, publish, tree

KEY, OTHER = fake_meta(1).key, fake_meta(2).key
FAILED = "ab" * 32
YEAR = 365 * 86400.0
OURS = {"compiler": "ab" * 32, "linker": "cd" * 32}
THEIRS = {"compiler": "ef" * 32, "linker": "cd" * 32}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_index_of_the_superuser(mode: int) -> None:
    """
    A ``sudo`` may leave an index that its user cannot write, or not even search: a process that
    looked for a failure there got a PermissionError.
    """
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
        Path(folder).chmod(0o755)
        root = Path(folder, "home", "cache")
        root.parent.mkdir()
        os.chown(root.parent, STRANGER, STRANGER)
        assert as_stranger(lambda: publish(Store.open(root), 1).why_private) == ""
        index = root / "v1" / "index"
        index.rmdir()
        index.mkdir(mode=mode)

        def work() -> object:
            store = Store.open(root)
            store.index.remember_failure(FAILED, "name", "reason", 60)
            found = store.index.failure(FAILED)
            store.index.record_use(KEY)
            listed = [info.key for info in store.entries()]
            published = publish(store, 2).directory is not None
            served = store.read(KEY) is not None and store.read(OTHER) is not None
            store.index.forget_failure(FAILED)
            told = list(events._warned)
            return [found is not None, listed, published, served, store.stats().entries, told]

        assert as_stranger(work) == [True, [KEY], True, True, 2, []]
        assert index.stat().st_uid == STRANGER  # the other one gave way


class TestAbsurdNumbers:
    """Rows, ledgers and journals in which anything may stand."""

    def test_long_row_of_another_user(self, store: Store, cache_root: Path) -> None:
        """An unused row of 5 MB costs nothing, neither memory nor the other rows."""
        fill(store)
        edit(
            cache_root,
            "INSERT INTO Cache (key, raw, store_time, access_time, size, mode, value) "
            "VALUES ('zz', 1, 0, 0, 0, 1, ?)",
            "x" * 5_000_000,
        )

        check_kept(cache_root, quarantined=0)

    def test_long_name(self, store: Store, cache_root: Path) -> None:
        """
        A name of 5 MB was read into memory by every list of the store. Now it costs the
        index, once: the names come back from the entries, and uses are counted again.
        """
        fill(store)
        row = json.dumps({KEY: ["x" * 5_000_000, "cpu", 1, 2, 3, 4.0]})
        edit(cache_root, "UPDATE Cache SET value = ? WHERE key = ?", row, KEY[:2])

        for number in range(3):
            fresh = Store.open()
            names = sorted(info.name for info in fresh.entries())
            assert names == sorted([fake_meta(1).name, fake_meta(2).name])
            assert (fresh.index.uses(KEY)[0], fresh.index.uses(OTHER)[0]) == (number, 0)
            fresh.index.record_use(KEY)
            fresh.index.close()
        assert len(list((cache_root / "v1" / "quarantine").iterdir())) == 1

    def test_many_long_names(self, store: Store) -> None:
        """Entries that are all good must not make a row that the index cannot hold."""
        numbers = [n for n in range(10, 9000) if key_of(document(n)).startswith("ab")][:20]
        for number in numbers:
            publish(store, number, name="x" * (MAX_BYTES // 18))
        store.index.remember_failure(FAILED, "name", "reason", 60)

        assert len(list(store.entries())) == len(numbers)
        assert Store.open().index.failure(FAILED) is not None

    @pytest.mark.parametrize(
        "values",
        [
            '["n","cpu","1",2,3,4.0]',
            '["n","cpu",1,2,3,"4.0"]',
            '["n","cpu",true,2,3,4.0]',
            '["n","cpu",1,2,-3,4.0]',
            '["n","cpu",1,2,3,1e300]',
            '["n","cpu",99999999999999999999,2,3,4.0]',
            '["n",null,1,2,3,4.0]',
            '["n"]',
            "7",
        ],
    )
    def test_row(self, store: Store, cache_root: Path, values: str) -> None:
        """Sizes below zero, and beyond all bounds, were believed; a good row beside them stays."""
        fill(store)
        neighbour = KEY[:2] + "0" * 62
        text = f'{{"{KEY}": {values}, "{neighbour}": ["good", "cpu", 1, 2, 7, 8.0]}}'
        edit(cache_root, "UPDATE Cache SET value = ? WHERE key = ?", text, KEY[:2])
        fresh = Store.open()

        rows = fresh.index.rows()
        assert rows[neighbour].hits == 7
        assert KEY not in rows
        assert rows[OTHER].hits == 2
        names = {info.key: info.name for info in fresh.entries()}
        assert names == {KEY: fake_meta(1).name, OTHER: fake_meta(2).name}
        assert fresh.index.failure(FAILED) is not None

    @pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "9" * 5000])
    def test_number(self, store: Store, cache_root: Path, number: str) -> None:
        """NaN and infinities were taken for times of use; they cost the uses of that shard."""
        fill(store)
        text = f'{{"{KEY}": ["n", "cpu", 1, 2, 3, {number}]}}'
        edit(cache_root, "UPDATE Cache SET value = ? WHERE key = ?", text, KEY[:2])
        fresh = Store.open()

        assert {info.key: info.hits for info in fresh.entries()} == {KEY: 0, OTHER: 2}
        assert fresh.stats().hits == 2
        assert fresh.index.failure(FAILED) is not None

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE Cache SET expire_time = 9e999 WHERE expire_time IS NOT NULL",
            "UPDATE Cache SET expire_time = 'soon' WHERE expire_time IS NOT NULL",
            "UPDATE Cache SET store_time = 'x', access_time = 9e999, access_count = 'many'",
            "UPDATE Cache SET size = 'large'",
            "UPDATE Settings SET value = 9e999 WHERE key IN ('count', 'size', 'hits', 'misses')",
            "UPDATE Settings SET value = 'many' WHERE key IN ('count', 'size', 'hits', 'misses')",
        ],
    )
    def test_columns(self, store: Store, cache_root: Path, statement: str) -> None:
        """SQLite keeps text in a column of numbers; what we do not read does not matter."""
        fill(store)
        edit(cache_root, statement)

        check_kept(cache_root, quarantined=0)

    @pytest.mark.parametrize(
        "text",
        ["=999999999999999999\n", "=1\n+999999999999999999\n", f"={'9' * 5000}\n", "=1\n" * 40000],
    )
    def test_ledger(self, store: Store, cache_root: Path, text: str) -> None:
        """Whatever size a ledger claims, it costs a look at the disk and never an entry."""
        entry = publish(store, 1)
        (cache_root / "v1" / "size").write_text(text)
        with settings.scope(cache_size=10 * du(entry)):
            other = publish(store, 2)

        assert other.why_private == ""
        assert {info.key for info in store.entries()} == {KEY, OTHER}
        assert (cache_root / "v1" / "size").read_text() == f"={2 * du(entry)}\n"

    def test_journal(self, store: Store, cache_root: Path) -> None:
        """A use at a time of 400 digits threw the whole index away; all good lines count."""
        fill(store)
        lines = [
            *(
                f'["use","{KEY}","disk",{when}]'
                for when in ("1e400", "-1", "NaN", "9" * 400, '"1"')
            ),
            *(
                f'["new","{KEY}","n","cpu",{size},1]'
                for size in ("-1", "9" * 19, "1.5", "9" * 5000)
            ),
            f'["new","{KEY}","{"x" * 5000}","cpu",1,1]',
            f'["use","{KEY}","disk",1]',
        ]
        with (cache_root / "v1" / "journal").open("a") as stream:
            stream.write("\n".join(lines) + "\n")

        row = Store.open().index.rows()[KEY]
        assert (row.name, row.hits) == (fake_meta(1).name, 3)
        assert row.last_use <= time.time() + 1


def fill(store: Store) -> None:
    """Give `store` two entries, two uses of each and a failure, and close its database."""
    for number in (1, 2):
        key = publish(store, number).key
        store.index.record_use(key)
        store.index.record_use(key)
    store.index.remember_failure(FAILED, "name", "reason", 60)
    assert store.stats().hits == 4
    store.index.close()


def edit(root: Path, statement: str, *values: object) -> None:
    """Change the database as another user would."""
    with sqlite3.connect(root / "v1" / "index" / "cache.db") as connection:
        assert connection.execute(statement, values).rowcount
    connection.close()


def check_kept(root: Path, *, quarantined: int) -> None:
    """What `fill` put there is there, for a new store."""
    fresh = Store.open()

    assert {info.key: info.hits for info in fresh.entries()} == {KEY: 2, OTHER: 2}
    assert fresh.index.failure(FAILED) is not None
    assert len(list((root / "v1" / "quarantine").iterdir())) == quarantined
    fresh.index.record_use(KEY)
    assert fresh.index.uses(KEY)[0] == 3


class TestBuilders:
    """Equal versions, but another compiler or linker: only the first one's kernels are kept."""

    def test_second_does_not_publish(
        self, store: Store, cache_root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Keys name versions, so kernels of a patched compiler were served to everybody."""
        publish(store, 1, builder=OURS)
        other = Store.open()
        refused = [publish(other, number, builder=THEIRS) for number in (2, 3)]

        assert [entry.directory for entry in refused] == [None, None]
        assert all("the compiler here is not what first" in e.why_private for e in refused)
        assert all(entry.library.startswith(b"\x7fELF") for entry in refused)
        assert other.read(OTHER) is None
        assert len(caplog.records) == 1
        assert "jitgen cache adopt" in caplog.text
        assert publish(store, 4, builder=OURS).directory
        assert tree(cache_root / "v1" / "tmp") == []

    def test_adopt(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        """After an upgrade on purpose, the next to publish is the first, and binds the others."""
        publish(store, 1, builder=OURS)
        assert publish(store, 2, builder=THEIRS).why_private
        assert main.run(["cache", "adopt"]) == 0
        assert "1 record removed" in capsys.readouterr().out

        assert publish(store, 2, builder=THEIRS).directory
        assert "the compiler here" in publish(store, 3, builder=OURS).why_private
        assert store.read(KEY) is not None

    def test_both_differ(self, store: Store) -> None:
        """The reason names each part."""
        publish(store, 1, builder=OURS)
        builder = {"compiler": "12" * 32, "linker": "34" * 32}

        assert "the compiler and linker here" in publish(store, 2, builder=builder).why_private

    def test_other_versions(self, store: Store) -> None:
        """Another version has other keys, and a record of their own."""
        publish(store, 1, builder=OURS)
        newer = document(1, toolchain={"nvidia-cutlass-dsl": "4.8.2"})

        assert publish(store, 1, key_document=newer, builder=THEIRS).directory
        assert publish(store, 2, builder=OURS).directory

    def test_without_digests(self, store: Store) -> None:
        """Entries of earlier versions say nothing about that, and are published as ever."""
        assert publish(store, 2).directory
        assert publish(store, 1, builder=OURS).directory
        assert publish(store, 3, builder={}).directory

    @pytest.mark.parametrize(
        "damage", [b"", b"{}", b'0\n{"compiler": "x"}', b"\xff" * 200, b"x" * 100_000]
    )
    def test_damaged_record(self, store: Store, cache_root: Path, damage: bytes) -> None:
        """A record that rots must not end publishing: the next to publish is the first."""
        publish(store, 1, builder=OURS)
        (record,) = (cache_root / "v1" / "builders").iterdir()
        record.write_bytes(damage)

        assert publish(store, 2, builder=THEIRS).directory
        assert publish(store, 3, builder=OURS).why_private
