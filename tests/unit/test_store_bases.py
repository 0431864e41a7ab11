# SPDX-License-Identifier: Apache-2.0
"""Roots that are only read: the cache of an image, of a mounted volume, of a colleague."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.layers import WHITEOUTS
from jitgen.settings import settings
from tests.unit.store_fakes import document, fake_meta, folder_of, publish, tree

NEWER = "2026-02-03T04:05:06+00:00"
KEYS = {number: fake_meta(number).key for number in range(1, 5)}

pytestmark = pytest.mark.usefixtures("no_power_failure")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root with kernels 1 and 2, as an image has one."""
    root = tmp_path / "image"
    for number in (1, 2):
        publish(Store(root, "rw"), number)
    return root


def above(root: Path, *bases: Path) -> Store:
    """Return a new store under `root` with `bases` below it."""
    with settings.scope(base=bases):
        return Store.open(root)


def state(root: Path) -> dict[str, object]:
    """Return all that is below `root`: its files with their bytes, and every time."""
    paths = [root / name for name in tree(root)]
    times = {path: path.lstat().st_mtime_ns for path in paths}
    return {str(path): (times[path], path.is_file() and path.read_bytes()) for path in paths}


def damage(entry: Entry) -> None:
    """Put other bytes in the place of the library."""
    library = folder_of(entry) / "kernel.so"
    library.unlink()
    library.write_bytes(b"damaged")


class TestReading:
    """A base serves what the root above lacks, and nothing there ever changes."""

    def test_serves(self, image: Path, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Kernels of an image had to be copied into a cache that could be written."""
        for path in image.rglob("*"):  # long unused: a read would set the time of a root of ours
            os.utime(path, (1.0, 1.0))
        before = state(image)
        entry = above(cache_root, image).read(KEYS[1])

        assert entry is not None
        assert entry.directory == image / "v1" / "entries" / KEYS[1][:2] / KEYS[1]
        assert entry == Store(image, "ro").read(KEYS[1])
        assert state(image) == before
        assert tree(cache_root.parent / "cache") == []
        assert caplog.records == []

    def test_variable(self, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several are separated as in PATH, and asked in that order, after the root itself."""
        publish(Store(tmp_path / "second", "rw"), 1, created=NEWER)
        publish(Store(tmp_path / "second", "rw"), 3, created=NEWER)
        monkeypatch.setenv("JITGEN_BASE", f"{image}{os.pathsep}{tmp_path / 'second'}")
        store = Store.open()

        first, third = store.read(KEYS[1]), store.read(KEYS[3])
        assert first is not None and first.meta.created != NEWER  # noqa: PT018
        assert third is not None and third.meta.created == NEWER  # noqa: PT018
        publish(store, 1, created="2026-03-04T05:06:07+00:00")
        own = store.read(KEYS[1])
        assert own is not None and own.meta.created.startswith("2026-03")  # noqa: PT018

    def test_publishing_writes_above(self, image: Path, cache_root: Path) -> None:
        """Whatever is published, pinned, cleared or pruned, a base stays as it is."""
        before = state(image)
        store = above(cache_root, image)
        published = [publish(store, number, created=NEWER) for number in (1, 3)]
        store.pin(KEYS[2])
        store.prune(1)
        store.clear()

        assert all(folder_of(entry).is_relative_to(cache_root) for entry in published)
        assert state(image) == before

    def test_clear_leaves_bases_alone(self, image: Path, cache_root: Path) -> None:
        """What is cleared is what can be written; the rest stays in sight, and is not counted."""
        store = above(cache_root, image)
        publish(store, 3)

        assert [info.key for info in store.clear()] == [KEYS[3]]
        assert store.read(KEYS[1]) is not None
        assert {info.key for info in store.entries()} == {KEYS[1], KEYS[2]}

    def test_lists(self, image: Path, cache_root: Path) -> None:
        """Every list names the entries of a base, once each, and where they lie."""
        store = above(cache_root, image)
        publish(store, 1)
        publish(store, 3)

        infos = {info.key: info for info in store.entries()}
        assert {key: info.base for key, info in infos.items()} == {
            KEYS[1]: "",
            KEYS[2]: str(image),
            KEYS[3]: "",
        }
        assert infos[KEYS[2]].name == fake_meta(2).name
        assert {KEYS[1], KEYS[2], KEYS[3]} == {result.key for result in store.verify()}
        nearest, differences = store.nearest(document(2), limit=1)[0]
        assert (nearest.key, differences) == (KEYS[2], ())

    def test_equal_to_the_root(self, image: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Who names one folder twice has one cache, from which entries can be removed."""
        store = above(image, image)

        assert store.read(KEYS[1]) is not None
        assert sorted(info.key for info in store.entries()) == sorted([KEYS[1], KEYS[2]])
        info = store.remove(KEYS[1])
        assert info is not None
        assert info.base == ""
        assert not (image / "v1" / WHITEOUTS).exists()

    def test_missing(
        self, image: Path, cache_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """
        A root without a single entry is no trouble. One that is not there is told once: a misspelt
        folder used to cost every kernel of an image without a word.
        """
        (tmp_path / "empty").mkdir()
        missing = tmp_path / "missing"
        store = above(cache_root, missing, tmp_path / "empty", image)

        assert store.read(KEYS[1]) is not None
        assert len(list(store.entries())) == 2
        assert tree(tmp_path / "empty") == []
        assert not missing.exists()
        (told,) = caplog.records
        assert told.getMessage() == f"not reading JITGEN_BASE {missing}: there is no such folder"

    def test_miss(self, image: Path, cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
        """That a base lacks an entry is no trouble: the next kernel of a model would warn."""
        assert above(cache_root, image).read(KEYS[3]) is None
        assert caplog.records == []

    @pytest.mark.parametrize("path", ["", "v1", "v1/entries"])
    def test_unsafe(
        self,
        image: Path,
        cache_root: Path,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        path: str,
    ) -> None:
        """One base that others may write to is left out, with a warning; the others serve."""
        shutil.copytree(image, tmp_path / "open")
        (tmp_path / "open" / path).chmod(0o777)
        store = above(cache_root, tmp_path / "open", image)

        for number in (1, 2):
            entry = store.read(KEYS[number])
            assert entry is not None
            assert folder_of(entry).is_relative_to(image)
        assert len(caplog.records) == 1
        assert "not reading" in caplog.text
        assert str(tmp_path / "open") in caplog.text
        assert not (cache_root / "v1" / WHITEOUTS).exists()

    def test_off_has_none(self, image: Path) -> None:
        """Without a cache there is none below it either."""
        with settings.scope(base=[image]):
            assert Store.open(mode="off").read(KEYS[1]) is None


class TestRemoving:
    """What cannot be removed is put out of sight, as long as it is what it was."""

    def test_out_of_sight(self, image: Path, cache_root: Path) -> None:
        """For this store and for new ones; the base is as it was, and others still see it."""
        store = above(cache_root, image)
        before = state(image)
        info = store.remove(KEYS[1])

        assert info is not None
        assert (info.key, info.base) == (KEYS[1], str(image))
        assert tree(cache_root / "v1" / WHITEOUTS) == [KEYS[1]]
        for each in (store, above(cache_root, image)):
            assert each.read(KEYS[1]) is None
            assert [info.key for info in each.entries()] == [KEYS[2]]
            assert [result.key for result in each.verify()] == [KEYS[2]]
            assert each.remove(KEYS[1]) is None
        assert above(cache_root.with_name("other"), image).read(KEYS[1]) is not None
        assert state(image) == before

    def test_compiled_again(self, image: Path, cache_root: Path) -> None:
        """A whiteout hides what lies below it and nothing in the root above."""
        above(cache_root, image).remove(KEYS[1])
        entry = publish(above(cache_root, image), 1)

        assert entry.directory is not None
        assert above(cache_root, image).read(KEYS[1]) == entry
        assert above(cache_root, image).remove(KEYS[1]) is not None
        assert above(cache_root, image).read(KEYS[1]) is None

    def test_image_that_is_built_anew(self, image: Path, cache_root: Path) -> None:
        """It is the record that is hidden: an entry of a newer image is seen again."""
        above(cache_root, image).remove(KEYS[1])
        shutil.rmtree(image)
        publish(Store(image, "rw"), 1)  # the same bytes
        assert above(cache_root, image).read(KEYS[1]) is None

        shutil.rmtree(image)
        publish(Store(image, "rw"), 1, created=NEWER)

        entry = above(cache_root, image).read(KEYS[1])
        assert entry is not None
        assert entry.meta.created == NEWER

    def test_in_several_bases(self, image: Path, cache_root: Path, tmp_path: Path) -> None:
        """Removed is removed: the same kernel of a second base does not come up instead."""
        publish(Store(tmp_path / "second", "rw"), 1, created=NEWER)
        store = above(cache_root, image, tmp_path / "second")
        store.remove(KEYS[1])

        assert store.read(KEYS[1]) is None

    @pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"x" * 100_000, b"../..\n"])
    def test_damaged_whiteout(self, image: Path, cache_root: Path, text: bytes) -> None:
        """What could not be made out hid nothing, though it may have been revoked."""
        store = above(cache_root, image)
        store.remove(KEYS[1])
        path = cache_root / "v1" / WHITEOUTS / KEYS[1]
        path.write_bytes(text)

        assert store.read(KEYS[1]) is None
        assert path.read_bytes() != text  # it was written anew, and hides what there is now
        assert store.read(KEYS[1]) is None
        assert store.read(KEYS[2]) is not None

    @pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
    def test_unreadable_whiteout(
        self, image: Path, cache_root: Path, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A passing error brought back what was hidden, and the next rm forgot the rest."""
        store, real = above(cache_root, image), Folder.read
        store.remove(KEYS[1])

        def read(folder: Folder, name: str, *arguments: Any, **options: Any) -> bytes:
            if folder.path.name == WHITEOUTS:
                raise OSError(number, os.strerror(number))
            return real(folder, name, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "read", read)
            assert store.read(KEYS[1]) is None
            assert [info.key for info in store.entries()] == []
        assert store.read(KEYS[1]) is None
        assert store.read(KEYS[2]) is not None

    def test_a_record_that_was_unreadable_for_a_moment_stays_hidden(
        self, image: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was looked up by what could not be read, and then loaded by what could."""
        store, real = above(cache_root, image), Folder.read
        store.remove(KEYS[1])
        failed: list[str] = []

        def read(folder: Folder, name: str, *arguments: Any, **options: Any) -> bytes:
            if name == "meta.json" and not failed:
                failed.append(name)
                raise Damaged("meta.json cannot be read: Input/output error")
            return real(folder, name, *arguments, **options)

        monkeypatch.setattr(Folder, "read", read)
        assert store.read(KEYS[1]) is None
        assert failed

    def test_read_only_store_hides_nothing(self, image: Path, cache_root: Path) -> None:
        """Mode ``ro`` changes nothing on the disk, so it removes nothing either."""
        with settings.scope(base=[image]):
            store = Store.open(mode="ro")

        assert store.remove(KEYS[1]) is None
        assert store.read(KEYS[1]) is not None
        assert not cache_root.exists()


class TestDamage:
    """A base cannot be healed, so what is damaged there is hidden."""

    def test_hidden_with_one_warning(
        self,
        image: Path,
        cache_root: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Else every process would read it, warn and compile, as long as the image is used."""
        damage(publish_again(image, 1))
        before = state(image)
        assert above(cache_root, image).read(KEYS[1]) is None
        assert above(cache_root, image).read(KEYS[1]) is None
        assert len(caplog.records) == 1
        assert "is damaged" in caplog.text
        assert "it is hidden from now on" in caplog.text

        monkeypatch.setattr("jitgen.events._warned", set())  # the next process
        entry = publish(above(cache_root, image), 1)

        assert above(cache_root, image).read(KEYS[1]) == entry
        assert len(caplog.records) == 1
        assert state(image) == before

    @pytest.mark.parametrize("created", [fake_meta(1).created, NEWER], ids=["copy", "other"])
    def test_next_base_serves(
        self, image: Path, cache_root: Path, tmp_path: Path, created: str
    ) -> None:
        """A damaged copy in one base must not cost the good one in another."""
        publish(Store(tmp_path / "second", "rw"), 1, created=created)
        damage(publish_again(image, 1))
        store = above(cache_root, image, tmp_path / "second")

        entry = store.read(KEYS[1])
        assert entry is not None
        assert folder_of(entry).is_relative_to(tmp_path / "second")
        assert store.read(KEYS[1]) == entry

    def test_next_base_serves_who_only_reads(
        self, image: Path, cache_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Where nothing can be hidden every process says so, and goes on to the next base."""
        publish(Store(tmp_path / "second", "rw"), 1)
        damage(publish_again(image, 1))
        with settings.scope(base=[image, tmp_path / "second"]):
            entry = Store.open(mode="ro").read(KEYS[1])

        assert entry is not None
        assert folder_of(entry).is_relative_to(tmp_path / "second")
        assert caplog.text.count("every process finds it again") == 1

    def test_verify_tells(self, image: Path, cache_root: Path) -> None:
        """Verifying names it and leaves it where it is, for it cannot be moved."""
        damage(publish_again(image, 1))
        before = state(image)
        results = {result.key: result for result in above(cache_root, image).verify()}

        assert not results[KEYS[1]].is_good
        assert "kernel.so has 7 bytes" in results[KEYS[1]].reason
        assert results[KEYS[2]].is_good
        assert state(image) == before

    def test_file_that_others_may_write_to(
        self, image: Path, cache_root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What is checked in a root is checked in a base: nothing is loaded from there."""
        path = image / "v1" / "entries" / KEYS[1][:2] / KEYS[1] / "kernel.so"
        path.chmod(0o666)

        assert above(cache_root, image).read(KEYS[1]) is None
        assert "can be written by other users" in caplog.text

    def test_damage_above_falls_through(self, image: Path, cache_root: Path) -> None:
        """A damaged entry of our own is set aside, and the one of the base serves again."""
        store = above(cache_root, image)
        damage(publish(store, 1, created=NEWER))
        entry = store.read(KEYS[1])

        assert entry is not None
        assert folder_of(entry).is_relative_to(image)
        assert store.stats().quarantined == 1


def publish_again(root: Path, number: int) -> Entry:
    """Return kernel `number` of `root`, published there if it was not."""
    publish(Store(root, "rw"), number)
    entry = Store(root, "ro").read(KEYS[number])
    assert entry is not None
    return entry
