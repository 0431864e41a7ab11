# SPDX-License-Identifier: Apache-2.0
"""The store: publish, read, and many processes at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jitgen.cache import Damaged, Store
from jitgen.settings import settings
from tests.unit.store_fakes import age, document, fake_files, fake_meta, publish, tree

REPOSITORY = Path(__file__).parents[2]
is_root = os.geteuid() == 0

pytestmark = pytest.mark.usefixtures("no_power_failure")


class TestRoundTrip:
    """What is published is read again."""

    def test_reads_what_was_published(self, store: Store) -> None:
        """The entry that publishing returns equals the one that is read, files and all."""
        published = publish(store, 1)

        found = store.read(published.key)

        assert found == published
        assert found.source.endswith("TILE_M = 1\n")
        assert found.library.startswith(b"\x7fELF")
        assert found.meta.files.keys() == {"kernel.py", "kernel.so"}

    def test_another_store_reads_it(self, store: Store, cache_root: Path) -> None:
        """Nothing is kept in the object: another one over the same root finds the entry."""
        key = publish(store, 1).key

        assert Store.open(cache_root, mode="ro").read(key) is not None

    def test_unknown_key_is_a_miss_and_creates_nothing(
        self, store: Store, cache_root: Path
    ) -> None:
        """Reading never creates the root."""
        assert store.read("ab" * 32) is None
        assert not cache_root.exists()

    def test_layout(self, store: Store, cache_root: Path) -> None:
        """Folders are 0700, the root carries a tag for backup tools, files are read-only."""
        entry = publish(store, 1)

        assert entry.directory == cache_root / "v1" / "entries" / entry.key[:2] / entry.key
        for folder in (cache_root, cache_root / "v1", *(cache_root / "v1").iterdir()):
            if folder.is_dir():
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
        assert (cache_root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172")
        assert stat.S_IMODE((entry.directory / "kernel.so").stat().st_mode) == 0o444
        assert tree(cache_root / "v1" / "tmp") == []

    def test_root_may_be_a_link_to_a_folder_of_ours(self, tmp_path: Path) -> None:
        """A link is resolved once; the name that was asked for is what messages show."""
        (tmp_path / "real").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / "real")

        entry = publish(Store.open(tmp_path / "link"), 1)

        assert (tmp_path / "real" / "v1").is_dir()
        assert Store.open(tmp_path / "real").read(entry.key) is not None

    def test_only_what_an_entry_may_hold(self, store: Store) -> None:
        """Other files are a mistake of the caller; nothing but the listed ones gets there."""
        with pytest.raises(Damaged, match="no entry may hold"):
            store.publish(fake_meta(1), {**fake_files(1), "notes.txt": b"x"})
        entry = publish(store, 1)

        assert tree(entry.directory) == ["kernel.py", "kernel.so", "meta.json"]

    @pytest.mark.parametrize("missing", ["kernel.py", "kernel.so"])
    def test_refuses_an_incomplete_entry(self, store: Store, missing: str) -> None:
        """An entry without its source or its library is a mistake of the caller."""
        files = fake_files(1)
        del files[missing]
        with pytest.raises(Damaged, match="does not list"):
            store.publish(fake_meta(1), files)

    def test_refuses_a_key_of_another_document(self, store: Store) -> None:
        """The key must be the digest of the key document."""
        with pytest.raises(Damaged, match="not the digest of the key document"):
            publish(store, 1, key="0" * 64)

    def test_the_draft_is_removed_when_nothing_was_published(
        self, store: Store, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A publish that fails, by whatever, leaves nothing behind."""

        def fail(_: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(RuntimeError):
            publish(store, 1)

        assert tree(cache_root / "v1" / "tmp") == []

    def test_reading_opens_no_database_and_no_lock(self, store: Store, cache_root: Path) -> None:
        """A warm start imports neither diskcache nor filelock nor sqlite3."""
        key = publish(store, 1).key
        program = (
            "import sys; from jitgen.cache import Store; store = Store.open()\n"
            f"assert store.read({key!r}); store.index.record_use({key!r})\n"
            "print([name for name in ('diskcache', 'filelock', 'sqlite3', 'torch', 'cutlass')"
            " if name in sys.modules])"
        )

        assert run(program, JITGEN_CACHE_DIR=str(cache_root)).stdout == "[]\n"


class TestModes:
    """Read-only and off."""

    def test_read_only_changes_nothing(self, store: Store, cache_root: Path) -> None:
        """Reading, publishing, pruning and removing leave a read-only root as it is."""
        entry = publish(store, 1)
        age(entry, 10_000)
        before = {path: path.lstat().st_mtime_ns for path in cache_root.rglob("*")}
        reader = Store.open(mode="ro")

        private = publish(reader, 2)

        assert reader.read(entry.key) is not None
        assert private.library
        assert private.directory is None
        assert reader.remove(entry.key) is None
        assert reader.clear() == []
        assert reader.prune(1).is_dry_run
        reader.pin(entry.key)
        reader.index.record_use(entry.key)
        with reader.lock(entry.key, 0.1) as is_locked:
            assert not is_locked
        assert {path: path.lstat().st_mtime_ns for path in cache_root.rglob("*")} == before

    def test_read_only_leaves_a_damaged_entry_in_place(self, store: Store) -> None:
        """It is a miss, but it is not moved."""
        entry = publish(store, 1)
        library = entry.directory / "kernel.so"
        library.chmod(0o644)
        library.write_bytes(b"bad")

        assert Store.open(mode="ro").read(entry.key) is None
        assert library.exists()

    def test_off_has_no_store(self, store: Store, cache_root: Path) -> None:
        """Nothing is found, listed or written, and a compile still has its result."""
        key = publish(store, 1).key
        off = Store.open(mode="off")

        assert off.read(key) is None
        assert list(off.entries()) == []
        assert off.stats().entries == 0
        assert off.verify() == []
        assert off.nearest(document(1)) == []
        assert off.root == cache_root
        assert publish(off, 2).library

    def test_mode_comes_from_the_settings(self, cache_root: Path) -> None:
        """JITGEN_CACHE is the default."""
        with settings.scope(cache="ro"):
            assert Store.open().mode == "ro"


class TestRaces:
    """Several processes and threads at once."""

    def test_the_loser_of_a_race_keeps_its_own_bytes(self, store: Store, cache_root: Path) -> None:
        """The entry in place stays; the second publisher loads what it compiled itself."""
        first = publish(store, 1)
        second = publish(store, 1, num_bytes=77)

        assert second.directory != first.directory
        assert len(second.library) == 4 + 77
        assert store.read(first.key) == first
        assert len(first.library) == 4 + 3000

    def test_threads_publish_the_same_entry(self, store: Store) -> None:
        """Each has a good entry; one of them is in the store."""
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(publish(store, 1))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(results) == 8
        assert all(entry.library.startswith(b"\x7fELF") for entry in results)
        assert store.read(results[0].key) is not None

    def test_processes_compile_one_key_once(self, store: Store, cache_root: Path) -> None:
        """The lock and a second look after it: one of eight publishes, all read."""
        program = (
            "import sys; from tests.unit.store_fakes import *\n"
            "store, key = Store.open(), fake_meta(1).key\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "with store.lock(key, 30) as is_locked:\n"
            "    entry = store.read(key)\n"
            "    is_mine = entry is None\n"
            "    entry = entry or publish(store, 1)\n"
            "print(is_locked, is_mine, entry.directory)\n"
        )
        processes = [start(program, JITGEN_CACHE_DIR=str(cache_root)) for _ in range(8)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        lines = [process.communicate("go\n")[0].split() for process in processes]

        assert [line[0] for line in lines] == ["True"] * 8
        assert sorted(line[1] for line in lines) == ["False"] * 7 + ["True"]
        assert len({line[2] for line in lines}) == 1

    def test_kill_at_any_moment_leaves_no_bad_entry_and_no_lock(
        self, store: Store, cache_root: Path
    ) -> None:
        """Processes that publish under the lock are killed; what is in the store is good."""
        program = (
            "import sys; from tests.unit.store_fakes import *\n"
            "store = Store.open(); print('ready', flush=True)\n"
            "for number in range(10**6):\n"
            "    with store.lock(fake_meta(number).key, 1) as is_locked:\n"
            "        publish(store, number, 50_000)\n"
        )
        keys = set()
        for delay in (0.02, 0.05, 0.09, 0.14):
            with start(program, JITGEN_CACHE_DIR=str(cache_root)) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
            keys |= {info.key for info in store.entries()}

        results = store.verify()

        assert {result.key for result in results} == keys
        assert all(result.is_good for result in results)
        for key in list(keys)[:5]:
            with store.lock(key, 0.5) as is_locked:
                assert is_locked
        for path in (cache_root / "v1" / "tmp").iterdir():
            os.utime(path, (0, 0))
        store.prune()
        assert tree(cache_root / "v1" / "tmp") == []


class TestLastUse:
    """The time that pruning goes by."""

    def test_reading_renews_it_at_most_once_an_hour(self, store: Store) -> None:
        """A read within the hour writes nothing."""
        entry = publish(store, 1)
        age(entry, 3000)
        before = entry.directory.stat().st_mtime
        store.read(entry.key)
        assert entry.directory.stat().st_mtime == before

        age(entry, 4000)
        store.read(entry.key)

        assert time.time() - entry.directory.stat().st_mtime < 60


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `program` in a new interpreter that sees the repository."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def start(program: str, **environment: str) -> subprocess.Popen[str]:
    """Start `program` in a new interpreter that sees the repository."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_meta_json_is_for_people(store: Store) -> None:
    """One field a line, sorted, so that two of them can be compared with any tool."""
    text = (publish(store, 1).directory / "meta.json").read_text()

    assert json.loads(text)["key_document"] == document(1)
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
