# SPDX-License-Identifier: Apache-2.0
"""Lists, totals, comparisons and verification of all entries."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.cache.entry import key_of
from jitgen.cache.inventory import ABSENT
from jitgen.settings import settings
from tests.unit.store_fakes import document, du, fake_meta, publish


@pytest.fixture
def store(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with three entries for two targets."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # no power failure here
    store = Store.open()
    for number, arch in ((1, "cpu"), (2, "cpu"), (3, "sm_90a")):
        publish(store, number, key_document=document(number, arch=arch))
    return store


class TestEntries:
    """One line for each."""

    def test_line(self, store: Store) -> None:
        """Everything that a list shows."""
        key = fake_meta(1).key
        store.index.record_use(key)
        store.pin(key)
        entry = store.read(key)
        assert entry is not None

        info = next(info for info in store.entries() if info.key == key)

        assert info.name == entry.meta.name
        assert info.arch == "cpu"
        assert info.size_bytes == entry.meta.size_bytes
        assert info.disk_bytes == du(entry)
        assert info.hits == 1
        assert info.is_pinned
        assert abs(info.last_use - time.time()) < 60

    def test_sorted_and_complete_with_and_without_the_index(self, store: Store) -> None:
        """The index changes counts of uses, and nothing else."""
        with_index = list(store.entries())
        (store.root / "v1" / "journal").unlink(missing_ok=True)
        store.index.reset()
        learned = list(store.entries())
        read_only = list(Store.open(mode="ro").entries())

        assert [info.key for info in with_index] == sorted(info.key for info in with_index)
        assert len(with_index) == 3
        assert with_index == learned == read_only
        assert store.index.stats()["entries"] == 3

    def test_what_is_no_entry_is_left_out(self, store: Store, cache_root: Path) -> None:
        """Strange names in the folder of entries are no entries."""
        entries = cache_root / "v1" / "entries"
        (entries / "README").write_text("x")
        (entries / "zz").mkdir()
        (entries / "ab").mkdir(exist_ok=True)
        (entries / "ab" / "not-a-key").mkdir()
        (entries / "ab" / ("cd" * 32)).mkdir()

        assert len(list(store.entries())) == 3

    def test_damaged_entry_is_listed_without_a_name(self, store: Store) -> None:
        """It takes room until it is read, so that it has a line."""
        entry = publish(store, 4)
        (store.root / "v1" / "journal").unlink(missing_ok=True)
        store.index.reset()
        (entry.directory / "meta.json").unlink()

        info = next(info for info in store.entries() if info.key == entry.key)

        assert (info.name, info.arch) == ("", "")
        assert info.disk_bytes > 0
        assert store.stats().by_arch == {"": 1, "cpu": 2, "sm_90a": 1}


class TestStats:
    """Totals."""

    def test_totals(self, store: Store) -> None:
        """They are the sums of the list."""
        for number in (1, 1, 2):
            store.index.record_use(fake_meta(number).key)
        store.pin(fake_meta(1).key)
        store.pin("ab" * 32)
        store.index.remember_failure("cd" * 32, "name", "reason", 60)
        infos = list(store.entries())
        with settings.scope(cache_size=12345):
            stats = store.stats()

        assert dataclasses.asdict(stats) == {
            "entries": 3,
            "size_bytes": sum(info.size_bytes for info in infos),
            "disk_bytes": sum(info.disk_bytes for info in infos),
            "limit_bytes": 12345,
            "hits": 3,
            "failures": 1,
            "pinned": 1,
            "quarantined": 0,
            "tuned": 0,
            "by_arch": {"cpu": 2, "sm_90a": 1},
        }

    def test_empty(self, cache_root: Path, tmp_path: Path) -> None:
        """A store that was never written has nothing, and counting creates nothing."""
        stats = Store.open(tmp_path / "nowhere").stats()

        assert (stats.entries, stats.disk_bytes, stats.by_arch) == (0, 0, {})
        assert not (tmp_path / "nowhere").exists()

    def test_entries_removed_by_hand(self, store: Store) -> None:
        """The disk is the truth, not the index."""
        import shutil

        assert store.stats().entries == 3
        entry = store.read(fake_meta(1).key)
        assert entry is not None
        shutil.rmtree(entry.directory)

        assert store.stats().entries == 2
        assert store.stats().by_arch == {"cpu": 1, "sm_90a": 1}

    def test_known_entries_are_not_opened(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the index, totals of many entries need no ``meta.json``."""
        monkeypatch.setattr("jitgen.cache.inventory.read_meta", None)

        assert store.stats().by_arch == {"cpu": 2, "sm_90a": 1}
        assert len(list(store.entries())) == 3


class TestNearest:
    """Why something missed."""

    def test_same_kernel_of_another_compiler(self, store: Store) -> None:
        """Field by field, with dotted names; the entry of the same kernel comes first."""
        wanted = document(2, toolchain={"nvidia-cutlass-dsl": "4.9.0", "apache-tvm-ffi": "0.1.15"})

        (meta, differences), *others = store.nearest(wanted, limit=2)

        assert meta.key == fake_meta(2).key
        assert [(d.field, d.wanted, d.found) for d in differences] == [
            ("toolchain.nvidia-cutlass-dsl", "4.9.0", "4.8.1")
        ]
        assert len(others) == 1

    def test_same_kernel_beats_fewer_differences(self, store: Store) -> None:
        """Three changed versions of the same kernel are nearer than another tile."""
        wanted = document(2, templates="cd" * 32, options=[], schema=2)

        meta, differences = store.nearest(wanted)[0]

        assert meta.key == fake_meta(2).key
        assert {d.field for d in differences} == {"templates", "options", "schema"}

    def test_missing_and_added_fields(self, store: Store) -> None:
        """A field that only one of them has is said to be absent from the other."""
        wanted = document(1, host="linux-x86_64", toolchain={"apache-tvm-ffi": "0.1.15"})

        _, differences = store.nearest(wanted)[0]

        assert [(d.field, d.wanted, d.found) for d in differences] == [
            ("host", "linux-x86_64", ABSENT),
            ("toolchain.nvidia-cutlass-dsl", ABSENT, "4.8.1"),
        ]

    def test_identical(self, store: Store) -> None:
        """An entry that is there differs in nothing; lists equal tuples."""
        wanted = document(1) | {"options": tuple(document(1)["options"])}

        assert store.nearest(wanted, limit=1)[0][1] == ()
        assert len(store.nearest(wanted, limit=10)) == 3

    def test_another_operation_is_never_near(self, store: Store) -> None:
        wanted = document(2) | {"config": {"op": "route"}}

        assert store.nearest(wanted) == []
        assert store.differences(fake_meta(2).key, wanted)


class TestVerify:
    """Every byte of every entry."""

    def test_damaged_entries_are_found_and_moved(self, store: Store) -> None:
        """Good ones are named; the damaged one has its reason and is quarantined."""
        key = fake_meta(1).key
        entry = store.read(key)
        assert entry is not None
        (entry.directory / "kernel.py").unlink()
        (entry.directory / "kernel.py").write_text("# edited\n")

        dry = store.verify(dry_run=True)
        assert entry.directory.exists()
        results = store.verify()

        assert dry == results
        bad = [result for result in results if not result.is_good]
        assert [result.key for result in bad] == [key]
        assert "kernel.py has 9 bytes" in bad[0].reason
        assert sum(bool(result.name) for result in results) == 2
        assert not entry.directory.exists()
        assert store.stats().quarantined == 1
        assert len(store.verify()) == 2

    def test_keys_are_digests_of_documents(self) -> None:
        """The key that the store computes is the one of the key document."""
        assert fake_meta(1).key == key_of(document(1))
