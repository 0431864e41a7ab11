# SPDX-License-Identifier: Apache-2.0
"""The size limit: what goes, what stays, and what is swept up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache import prune as prune_module
from jitgen.cache.entry import draft
from jitgen.cache.folder import Folder
from jitgen.events import Event, EventKind
from jitgen.settings import settings
from tests.unit.store_fakes import age, du, publish, tree

HOUR = 3600.0


@pytest.fixture
def old(store: Store) -> list[Entry]:
    """Five entries of the same size, the first one the longest unused."""
    entries = [publish(store, number) for number in range(1, 6)]
    for number, entry in enumerate(entries):
        age(entry, (10 - number) * HOUR)
    return entries


def kept(store: Store, entries: list[Entry]) -> list[int]:
    """Return the places of the entries that are still there."""
    return [place for place, entry in enumerate(entries) if entry.directory.exists()]


class TestPrune:
    """The command."""

    def test_least_recently_used_go_first(
        self, store: Store, old: list[Entry], told: list[Event]
    ) -> None:
        """As many as needed, reported with names and bytes, each told as an event."""
        each = du(old[0])
        store.read(old[0].key)

        result = store.prune(3 * each)

        assert kept(store, old) == [0, 3, 4]
        assert [info.key for info in result.removed] == [old[1].key, old[2].key]
        assert result.removed[0].name == old[1].meta.name
        assert (result.freed_bytes, result.kept_bytes) == (2 * each, 3 * each)
        assert not result.is_dry_run
        evicted = [event.key for event in told if event.kind == EventKind.EVICT]
        assert evicted == [old[1].key, old[2].key]
        assert all(result.is_good for result in store.verify())

    def test_dry_run_changes_nothing(
        self, store: Store, old: list[Entry], told: list[Event]
    ) -> None:
        """It reports what pruning would do."""
        result = store.prune(1, dry_run=True)

        assert len(result.removed) == 5
        assert result.is_dry_run
        assert kept(store, old) == [0, 1, 2, 3, 4]
        assert told == []

    def test_below_the_limit(self, store: Store, old: list[Entry]) -> None:
        """Nothing goes, and the sizes are those of du."""
        result = store.prune(10**9)

        assert result.removed == ()
        blocks = subprocess.run(
            ["/usr/bin/du", "-s", "-B1", *[entry.directory for entry in old]],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.kept_bytes == sum(int(line.split()[0]) for line in blocks.stdout.splitlines())

    def test_zero_is_no_limit(self, store: Store, old: list[Entry]) -> None:
        """JITGEN_CACHE_SIZE=0 keeps everything."""
        assert store.prune(0).removed == ()
        with settings.scope(cache_size=0):
            assert store.prune().removed == ()
            publish(store, 9)

        assert kept(store, old) == [0, 1, 2, 3, 4]

    def test_limit_comes_from_the_settings(self, store: Store, old: list[Entry]) -> None:
        """Without an argument it is JITGEN_CACHE_SIZE."""
        with settings.scope(cache_size=1):
            assert len(store.prune().removed) == 5

    def test_pinned_entries_stay(self, store: Store, old: list[Entry], cache_root: Path) -> None:
        """Also when the index is lost; an unpinned one goes."""
        store.pin(old[0].key)
        store.pin(old[1].key)
        store.index.reset()
        store.unpin(old[1].key)

        store.prune(1)

        assert kept(store, old) == [0]
        assert Store.open().stats().pinned == 1

    def test_young_entries_stay(self, store: Store, old: list[Entry]) -> None:
        """What was published or used in the last minute is about to be loaded."""
        young = publish(store, 9)
        age(old[4], 59)

        store.prune(1)

        assert kept(store, [*old, young]) == [4, 5]

    def test_locked_entries_stay(self, store: Store, old: list[Entry]) -> None:
        """Another process uses that key just now."""
        with store.lock(old[0].key, 1) as is_locked:
            assert is_locked
            store.prune(1)

        assert kept(store, old) == [0]

    def test_works_without_the_index(self, store: Store, old: list[Entry]) -> None:
        """Sizes and times are read from the disk; the removed entries keep their names."""
        store.index.reset()
        (store.root / "v1" / "journal").unlink()

        removed = store.prune(1).removed

        assert [info.name for info in removed] == [entry.meta.name for entry in old]

    def test_an_open_entry_can_be_read_to_its_end(self, store: Store, old: list[Entry]) -> None:
        """A process that has the library open keeps it."""
        with (old[0].directory / "kernel.so").open("rb") as stream:
            store.prune(1)

            assert len(stream.read()) == 3004


class TestAutomatic:
    """What a publish does."""

    def test_publish_prunes_to_four_fifths(self, store: Store, old: list[Entry]) -> None:
        """Over the limit, the oldest go until a fifth of the limit is free."""
        each = du(old[0])
        with settings.scope(cache_size=5 * each):
            publish(store, 9)

        assert kept(store, old) == [2, 3, 4]
        assert store.stats().disk_bytes == 4 * each

    def test_not_at_the_limit(self, store: Store, old: list[Entry]) -> None:
        """The limit itself is allowed."""
        with settings.scope(cache_size=6 * du(old[0])):
            publish(store, 9)

        assert kept(store, old) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("text", [None, "", "garbage", "=", "=1\nx\n", "=-5\n+1e3\n"])
    def test_damaged_ledger(self, store: Store, old: list[Entry], text: str | None) -> None:
        """Without the ledger the disk is looked at."""
        ledger = store.root / "v1" / "size"
        ledger.unlink()
        if text is not None:
            ledger.write_text(text)
        with settings.scope(cache_size=5 * du(old[0])):
            publish(store, 9)

        assert kept(store, old) == [2, 3, 4]
        assert ledger.read_text() == f"={store.stats().disk_bytes}\n"

    def test_ledger_spares_the_scan(
        self, store: Store, old: list[Entry], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Far below the limit, a publish looks at no other entry; now and then it does."""
        calls = []
        monkeypatch.setattr(prune_module, "prune", lambda *_, **__: calls.append(1))
        monkeypatch.setattr(prune_module, "_RESCAN", 12)
        for number in range(10, 20):
            publish(store, number)

        assert 1 <= len(calls) <= 3

    def test_other_processes_count(self, store: Store, old: list[Entry], cache_root: Path) -> None:
        """The ledger is shared: the limit holds for what all processes publish."""
        each = du(old[0])
        other = Store.open()
        with settings.scope(cache_size=7 * each):
            publish(other, 10)
            publish(store, 11)
            publish(other, 12)

        assert kept(store, old) == [3, 4]


class TestSweep:
    """What killed processes and damaged entries leave behind."""

    def test_area_of_a_dead_process(self, store: Store, cache_root: Path) -> None:
        """It goes after an hour, with the next publish."""
        tmp = cache_root / "v1" / "tmp"
        publish(store, 1)
        (tmp / "orphan").mkdir()
        (tmp / "orphan" / "kernel.py").write_text("x")
        publish(store, 2)
        assert tree(tmp) == ["orphan", "orphan/kernel.py"]

        os.utime(tmp / "orphan", (0, 0))
        publish(store, 3)

        assert tree(tmp) == []

    def test_area_of_a_living_process(self, store: Store, cache_root: Path) -> None:
        """A compile may take longer than an hour; a sweep by another process spares it."""
        publish(store, 2)
        tmp = cache_root / "v1" / "tmp"
        folder = Folder(os.open(tmp, os.O_RDONLY), tmp, is_shared=False)
        with folder, draft(folder) as (_, name):
            os.utime(tmp / name, (0, 0))
            program = "from jitgen.cache import Store; print(Store.open().prune().swept)"
            result = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                capture_output=True,
                text=True,
                check=True,
            )
            assert (tmp / name).exists()
        entry = publish(store, 1)

        assert result.stdout == "()\n"
        assert store.read(entry.key) == entry

    def test_quarantine(self, store: Store, cache_root: Path) -> None:
        """A damaged entry stays for a day, to be examined, or until a prune."""
        quarantine = cache_root / "v1" / "quarantine"
        for number in (1, 2):
            entry = publish(store, number)
            age(entry, 100 * HOUR)
            (entry.directory / "kernel.py").unlink()
            assert store.read(entry.key) is None
        publish(store, 3)
        assert len(list(quarantine.iterdir())) == 2

        os.utime(next(quarantine.iterdir()), (0, time.time() - 25 * HOUR))
        publish(store, 4)
        assert len(list(quarantine.iterdir())) == 1

        assert len(store.prune(dry_run=True).swept) == 1
        assert len(store.prune().swept) == 1
        assert tree(quarantine) == []

    def test_links_are_removed_and_not_followed(
        self, store: Store, cache_root: Path, tmp_path: Path
    ) -> None:
        """What a planted link points to stays."""
        publish(store, 1)
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_text("x")
        link = cache_root / "v1" / "tmp" / "link"
        link.symlink_to(tmp_path / "precious")
        os.utime(link, (0, 0), follow_symlinks=False)

        store.prune()

        assert not link.is_symlink()
        assert (tmp_path / "precious" / "file").exists()


class TestRemove:
    """One entry, or all."""

    def test_remove_returns_what_it_removed(self, store: Store, old: list[Entry]) -> None:
        """With its name and size; its pin goes too; once more finds nothing."""
        store.pin(old[0].key)

        info = store.remove(old[0].key)

        assert info is not None
        assert (info.name, info.is_pinned) == (old[0].meta.name, True)
        assert info.size_bytes == old[0].meta.size_bytes
        assert kept(store, old) == [1, 2, 3, 4]
        assert not store.is_pinned(old[0].key)
        assert store.remove(old[0].key) is None

    def test_clear_returns_all(self, store: Store, old: list[Entry], cache_root: Path) -> None:
        """Pinned and damaged ones too."""
        store.pin(old[0].key)
        (old[1].directory / "meta.json").unlink()

        removed = store.clear()

        assert [info.key for info in removed] == sorted(entry.key for entry in old)
        assert store.stats().entries == 0
        assert tree(cache_root / "v1" / "pins") == []
        assert publish(store, 1) == old[0]
