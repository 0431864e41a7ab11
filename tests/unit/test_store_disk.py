# SPDX-License-Identifier: Apache-2.0
"""Disks that do not do what they should: degradation is a warning, never a failed compile."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.cache.folder import Folder
from jitgen.errors import UnsafeCacheRoot
from tests.unit.store_fakes import (
    STRANGER,
    as_stranger,
    fake_meta,
    folder_of,
    opened,
    publish,
    tree,
)

REPOSITORY = Path(__file__).parents[2]
is_root = os.geteuid() == 0

pytestmark = pytest.mark.usefixtures("no_power_failure")


class TestDegradation:
    """A cache that cannot be written is one warning, and never a failed compile."""

    def test_root_deleted_between_publishes(self, store: Store, cache_root: Path) -> None:
        """The next publish creates the root again."""
        publish(store, 1)
        shutil.rmtree(cache_root)

        entry = publish(store, 2)

        assert store.read(entry.key) == entry
        assert store.stats().entries == 1

    def test_folders_deleted_while_building(self, store: Store, cache_root: Path) -> None:
        """The folders that publishing needs are created when it needs them."""
        publish(store, 2)
        for name in ("entries", "locks", "index", "quarantine", "pins"):
            shutil.rmtree(cache_root / "v1" / name)
        entry = publish(store, 1)

        assert store.read(entry.key) == entry

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
    @pytest.mark.parametrize("call", ["rename", "fsync"])
    def test_publish_fails(
        self,
        store: Store,
        call: str,
        number: int,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Whatever the disk says, there is an entry of our own bytes, and one warning in all."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(os, call, refuse)
            entries = [publish(store, 1), publish(store, 2)]

        assert all(entry.library.startswith(b"\x7fELF") for entry in entries)
        assert all(entry.meta.files["kernel.so"]["bytes"] == 3004 for entry in entries)
        assert all(store.read(entry.key) is None for entry in entries)
        assert [record.message.count("cannot write") for record in caplog.records] == [1]
        assert f"{os.strerror(number)} ({errno.errorcode[number]})" in caplog.text
        assert entries[0].why_private == f"{os.strerror(number)} ({errno.errorcode[number]})"

    def test_root_that_cannot_be_created(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A file stands where the root should be created: build privately, warn once."""
        (tmp_path / "file").write_text("x")
        store = Store.open(tmp_path / "file" / "cache")

        entry = publish(store, 1)
        with store.lock(entry.key, 0.1) as is_locked:
            assert not is_locked

        assert entry.library
        assert len(caplog.records) == 1
        assert "cannot write the kernel cache" in caplog.text

    def test_entries_that_cannot_be_opened_now(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A passing EACCES on a folder of our own made the root unsafe: every call failed."""
        entry = publish(store, 1)
        real = os.open

        def refuse(path: object, *rest: Any, **more: Any) -> int:
            if path == "entries":
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, *rest, **more)  # type: ignore[call-overload, no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            fresh = Store.open()
            assert fresh.read(entry.key) is None
            assert "cannot be opened" in publish(fresh, 2).why_private
        assert "cannot read the kernel cache" in caplog.text
        assert store.read(entry.key) is not None

    def test_out_of_descriptors_is_a_miss_and_keeps_the_entry(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error that says nothing about the entry does not quarantine it."""
        entry = publish(store, 1)

        def refuse(*_: object, **__: object) -> int:
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            assert store.read(entry.key) is None

        assert store.read(entry.key) == entry

    def test_full_disk(self, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
        """On a disk that is really full, publishing gives up without a trace or a crash."""
        store = Store.open(small_disk / "cache")
        first = publish(store, 1, 100_000)
        fill_up(small_disk)
        second = publish(store, 2, 100_000)

        assert len(second.library) == 100_004
        assert store.read(first.key) == first
        assert store.read(second.key) is None
        assert store.stats().entries == 1
        store.index.record_use(first.key)
        store.index.remember_failure(second.key, "name", "reason", 60)
        assert all(result.is_good for result in store.verify())

    def test_unsafe_root_is_refused_at_once(self, cache_root: Path) -> None:
        """It is the one error that is raised, for code would be loaded from there."""
        cache_root.mkdir(mode=0o777)
        cache_root.chmod(0o777)

        with pytest.raises(UnsafeCacheRoot):
            Store.open()


@pytest.mark.parametrize("most", [0, 1000])
@pytest.mark.parametrize("builder", [{}, {"compiler": "ab" * 32}])
def test_disk_full_while_writing(
    store: Store,
    cache_root: Path,
    most: int,
    builder: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    Where the disk filled up, the draft stayed in the store until the process ended, and kept the
    disk full; now the kernel is private, and nothing of it stays.
    """
    keys = [fake_meta(number).key for number in (1, 2)]
    publish(store, 3)
    before = tree(cache_root / "v1")
    real, room = os.write, [most]

    def write(descriptor: int, data: bytes) -> int:
        if room[0] < 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, bytes(data)[: room[0]])
        room[0] -= count
        return count

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "write", write)
        entry = publish(store, 1, builder=builder)
        publish(store, 2, builder=builder)

    assert entry.directory is None
    assert "No space left" in entry.why_private
    assert entry.library.startswith(b"\x7fELF")
    assert len(caplog.records) == 1
    assert tree(cache_root / "v1" / "tmp") == []
    assert not [name for name in tree(cache_root / "v1") if any(key in name for key in keys)]
    assert set(before) <= set(tree(cache_root / "v1"))
    assert folder_of(publish(store, 1, builder=builder)).exists()


class TestRemoval:
    """Entries that do not want to go."""

    def test_folders_that_cannot_be_renamed(
        self, store: Store, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On the lower layer of an overlay nothing could be removed, and damage stayed."""
        first, second = publish(store, 1), publish(store, 2)
        monkeypatch.setattr(Folder, "move", moving_but(cache_root / "v1" / "entries"))
        (folder_of(second) / "kernel.so").unlink()

        info = store.remove(first.key)
        assert info is not None
        assert info.key == first.key
        assert not folder_of(first).exists()
        assert store.read(second.key) is None
        assert not folder_of(second).exists()
        publish(store, 3)
        assert [info.key for info in store.clear()] == [fake_meta(3).key]
        assert list((cache_root / "v1" / "entries").glob("*/*")) == []

    def test_entry_that_cannot_be_removed(
        self,
        store: Store,
        cache_root: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """What is there is not said to be gone; damage stayed without a word, now it is one."""
        entry, damaged = publish(store, 1), publish(store, 2)
        (folder_of(damaged) / "kernel.so").unlink()
        monkeypatch.setattr(Folder, "move", moving_but(cache_root / "v1" / "entries"))
        monkeypatch.setattr(Folder, "discard", lambda *_: False)

        assert store.remove(entry.key) is None
        assert store.clear() == []
        assert store.read(damaged.key) is None
        assert store.read(damaged.key) is None
        assert "cannot be moved away, so every process compiles it again" in caplog.text
        assert len(caplog.records) == 1
        assert [info.key for info in store.entries()] == sorted([entry.key, damaged.key])
        assert store.read(entry.key) == entry
        results = {result.key: result for result in store.verify()}
        assert (results[damaged.key].is_good, results[damaged.key].fate) == (False, "")
        with opened(entry) as folder:
            assert sorted(folder.names()) == ["kernel.py", "kernel.so", "meta.json"]


def moving_but(entries: Path) -> Callable[[Folder, str, Folder, str], None]:
    """Return `Folder.move` on a file system where no folder in a shard can be renamed."""
    real = Folder.move

    def move(self: Folder, name: str, to: Folder, new_name: str) -> None:
        if self.path.parent == entries:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(self, name, to, new_name)

    return move


def fill_up(disk: Path) -> None:
    """Write until the disk is full."""
    with (disk / "ballast").open("wb", buffering=0) as stream:
        for size in (4096, 1):
            try:
                while stream.write(b"x" * size):
                    pass
            except OSError:
                continue


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if not is_root:
        pytest.skip("needs root to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["/bin/umount", "-l", str(disk)], check=True)


class TestService:
    """Folders that the cache can do without give way, whatever the file system makes of it."""

    @pytest.fixture
    def no_renames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder of an overlay's lower layer cannot be renamed."""
        move = Folder.move

        def refuse(self: Folder, name: str, to: Folder, new_name: str) -> None:
            if name == "tmp":
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            move(self, name, to, new_name)

        monkeypatch.setattr(Folder, "move", refuse)

    @pytest.mark.usefixtures("no_renames")
    def test_an_open_folder_in_an_image(self, store: Store, cache_root: Path) -> None:
        """With a ``tmp`` that others may write to in a lower layer, nothing was ever published."""
        publish(store, 1)
        (cache_root / "v1" / "tmp").chmod(0o777)

        assert publish(Store.open(), 2).why_private == ""
        assert (cache_root / "v1" / "tmp").stat().st_mode & 0o777 == 0o700

    @pytest.mark.skipif(os.geteuid() != 0, reason="root may write everywhere, and only root chowns")
    @pytest.mark.parametrize("name", ["tmp", "locks", "builders", "quarantine"])
    def test_a_folder_of_roots(self, name: str) -> None:
        """What ``sudo`` left behind ended all publishing, with a warning that knew no remedy."""
        import filelock  # noqa: F401  # the stranger cannot read the interpreter's folders

        def work() -> object:
            store = Store(root, "rw")
            with store.lock(fake_meta(2).key, 1) as is_locked:
                return [is_locked, publish(store, 2).why_private]

        with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
            root = Path(folder, "cache")
            publish(Store(root, "rw"), 1)
            Path(folder).chmod(0o755)
            for path in (root, *root.rglob("*")):
                os.chown(path, STRANGER, STRANGER)
            left = root / "v1" / name
            shutil.rmtree(left, ignore_errors=True)
            left.mkdir(mode=0o755)

            assert as_stranger(work) == [True, ""]
