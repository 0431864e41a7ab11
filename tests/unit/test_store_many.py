# SPDX-License-Identifier: Apache-2.0
"""Stores of many entries: what looks over all of them does for each what it would do for one."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitgen.cache import Entry, Meta, Store, inventory
from jitgen.cache.folder import Folder
from tests.unit.store_fakes import age, document, fake_meta, folder_of, publish

MANY = 48


@pytest.fixture
def store(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with old entries, and a pin and a lock for as many others."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # no power failure here
    store = Store.open()
    for number in range(MANY):
        age(publish(store, number), 7200)
        store.pin(f"{number:064x}")
        with store.lock(f"{number:064x}", 1.0):
            pass
    return store


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often folders are listed, by their names, and opened."""
    found: Counter[str] = Counter()
    names, folder = Folder.names, Folder.folder

    def listed(self: Folder) -> list[str]:
        found[f"list {self.path.name}"] += 1
        return names(self)

    def opened(self: Folder, name: str, *, create: bool = False) -> Folder:
        found[f"open {name}"] += 1
        return folder(self, name, create=create)

    monkeypatch.setattr(Folder, "names", listed)
    monkeypatch.setattr(Folder, "folder", opened)
    return found


class TestRemoving:
    @pytest.mark.parametrize(
        "work", [lambda store: store.prune(1).removed, lambda store: store.clear()]
    )
    def test_folders_are_opened_and_listed_once(
        self, store: Store, calls: Counter[str], work: Callable[[Store], tuple[object, ...]]
    ) -> None:
        """Each entry had all pins listed and four folders opened: 2,000 pins took minutes."""
        assert len(work(store)) == MANY

        assert calls["list pins"] <= 2
        assert max(calls[f"open {name}"] for name in ("locks", "tmp", "pins")) <= 4
        assert calls["open entries"] <= MANY + 8  # each: a folder may be replaced meanwhile

    def test_the_index_is_told(self, store: Store) -> None:
        assert len(store.index.rows()) == MANY
        store.prune(1)

        assert store.index.rows() == {}

    def test_the_index_is_told_of_what_is_gone_when_it_ends_early(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An interrupt leaves an index that knows what is there."""
        remove = inventory.line_in
        left = iter(range(5))

        def stopped(shard: Folder, key: str, *rest: object, **named: object) -> object:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return remove(shard, key, *rest, **named)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(inventory, "line_in", stopped)
            with pytest.raises(KeyboardInterrupt):
                store.prune(1)

        assert len(store.index.rows()) == len(list(store.keys())) == MANY - 5

    def test_drafts_that_another_process_replaces(
        self, store: Store, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The folder that removed entries pass through is another one in the middle of it."""
        tmp, line_in = cache_root / "v1" / "tmp", inventory.line_in
        left = iter(range(3))

        def replaced(*given: object, **named: object) -> object:
            if next(left, None) == 2:
                tmp.rmdir()
                tmp.mkdir(mode=0o700)
            return line_in(*given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(inventory, "line_in", replaced)

        assert len(store.prune(1).removed) == MANY

    def test_what_cannot_be_removed_takes_no_descriptors(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jitgen.cache.publishing.remove", lambda *_: False)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        most = []

        def removed(*_: object) -> bool:
            most.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            return False

        monkeypatch.setattr("jitgen.cache.publishing.remove", removed)

        assert store.prune(1).removed == ()
        assert len(most) == 2 * MANY
        assert max(most) <= before + 8


class TestComparing:
    def test_few_records_are_held(self) -> None:
        """
        `jitgen cache explain` held the record of every entry, and its differences from what is
        wanted: 227 MiB for 20,000 entries.
        """

        def records(count: int) -> Iterator[Meta]:
            for number in range(count):
                yield fake_meta(number, key_document=document(number, filling="x" * number))

        peaks = []
        for count in (200, 2_000):
            tracemalloc.start()
            found = inventory.nearest(records(count), document(3), 3)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert len(found) == 3
            assert found[0][0].key_document["config"] == document(3)["config"]

        assert peaks[1] < peaks[0] + 100_000

    def test_records_are_read_one_by_one(self, store: Store) -> None:
        assert next(store.metas()).arch == "cpu"  # a list is no iterator

    def test_one_entry(self, store: Store, calls: Counter[str]) -> None:
        """What one entry differs in is told by looking at that one."""
        key = fake_meta(3).key
        calls.clear()
        ((meta, differences),) = store.differences(key, document(3) | {"arch": "sm_90a"})

        assert (meta.key, [each.field for each in differences]) == (key, ["arch"])
        assert calls["open entries"] == 1
        assert store.differences("ab" * 32, document(3)) == []
        assert store.meta("ab" * 32) is None

    def test_keys(self, store: Store) -> None:
        every = sorted(fake_meta(number).key for number in range(MANY))

        assert list(store.keys()) == every
        assert list(store.keys(every[7])) == [every[7]]
        assert list(store.keys(every[7][:1])) == [k for k in every if k[0] == every[7][0]]
        assert list(store.keys("no")) == []


def test_damaged_records_have_no_name(store: Store) -> None:
    entry: Entry = publish(store, MANY + 1)
    (folder_of(entry) / "meta.json").unlink()

    assert store.meta(entry.key) is None
    assert len(list(store.metas())) == MANY
