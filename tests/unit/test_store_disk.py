# SPDX-License-Identifier: Apache-2.0
"""Disks that do not do what they should: degradation is a warning, never a failed compile."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.errors import UnsafeCacheRoot
from tests.unit.store_fakes import publish

REPOSITORY = Path(__file__).parents[2]
is_root = os.geteuid() == 0


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see the warnings that a process gives once."""
    monkeypatch.setattr("jitgen.events._warned", set())
    monkeypatch.setattr("os.fsync", lambda _: None)  # nobody pulls the plug here


@pytest.fixture
def store(cache_root: Path) -> Store:
    """A store that can be written."""
    return Store.open()


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
