# SPDX-License-Identifier: Apache-2.0
"""Things in the wrong place, leftovers, odd clocks: the store gets over all of it by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache import entry as entries
from jitgen.cache.folder import ASIDE, Folder
from jitgen.settings import settings
from tests.unit.store_fakes import age, du, fake_meta, folder_of, publish, tree

KEY = fake_meta(1).key
YEAR = 365 * 86400.0
DRAFT = """
import os, sys
from pathlib import Path
from jitgen.cache.entry import draft
from jitgen.cache.folder import Folder
path = Path(sys.argv[1])
with draft(Folder(os.open(path, os.O_RDONLY), path, is_shared=False)) as (made, name):
    made.write("kernel.py", b"x")
    print(name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def v1(cache_root: Path) -> Path:
    """The folder in which everything lies."""
    return cache_root / "v1"


def put(path: Path, kind: str, elsewhere: Path) -> None:
    """Put something of another `kind` in the place of `path`."""
    shutil.rmtree(path, ignore_errors=True)
    match kind:
        case "file":
            path.write_text("x")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
            (path / "x").write_text("x")
        case "dangling link":
            path.symlink_to(elsewhere / "nothing")
        case _:
            path.symlink_to(elsewhere)


KINDS = ["file", "fifo", "dangling link", "link"]


class TestInTheWay:
    """Something else stands where a folder or file of ours belongs."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("is_read_first", [True, False])
    def test_shard(self, store: Store, tmp_path: Path, kind: str, is_read_first: bool) -> None:
        """
        A shard that was a file used to look as if another process had been faster, for ever: 1 key
        of 256 was compiled by every process.
        """
        entry = publish(store, 1)
        shard = folder_of(entry).parent
        (tmp_path / "elsewhere").mkdir()
        put(shard, kind, tmp_path / "elsewhere")
        if is_read_first:
            assert store.read(KEY) is None

        assert publish(store, 1).directory == entry.directory
        assert Store.open().read(KEY) == entry
        assert tree(tmp_path / "elsewhere") == []
        store.clear()
        assert tree(shard.parent) == [shard.name]

    @pytest.mark.parametrize("kind", ["file", "fifo"])
    def test_entries(self, store: Store, v1: Path, kind: str) -> None:
        """A file in the place of all entries had the whole cache refused, until it was removed."""
        entry = publish(store, 1)
        put(v1 / "entries", kind, v1)
        assert store.read(KEY) is None
        assert Store.open().read(KEY) is None

        assert publish(store, 1).directory == entry.directory
        assert Store.open().read(KEY) == entry

    @pytest.mark.parametrize(
        "look",
        [
            lambda store: list(store.entries()),
            lambda store: store.prune().removed,
            lambda store: store.nearest({}),
            lambda store: store.clear(),
        ],
        ids=["entries", "prune", "nearest", "clear"],
    )
    def test_lists_without_entries(
        self, store: Store, v1: Path, look: Callable[[Store], object]
    ) -> None:
        """A folder that cannot be opened counts as empty, says the store."""
        publish(store, 1)
        put(v1 / "entries", "file", v1)

        assert not look(store)

    @pytest.mark.parametrize("kind", ["fifo", "folder", "dangling link"])
    def test_lock(
        self, store: Store, v1: Path, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A folder in the place of a lock ended locking: every process compiled that kernel."""
        publish(store, 2)
        put(v1 / "locks" / f"{KEY}.lock", kind, v1)

        with store.lock(KEY, 1.0) as is_held:
            assert is_held
            with Store.open().lock(KEY, 0.05) as is_held_twice:
                assert not is_held_twice
        assert caplog.records == []
        assert not (v1 / "nothing").exists()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["tmp", "quarantine", "locks", "index", "builders", "pins"])
    def test_service_folder(
        self,
        store: Store,
        v1: Path,
        tmp_path: Path,
        name: str,
        kind: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Each of these files in the place of a folder ended something: publishing, or healing."""
        damaged = publish(store, 2)
        (folder_of(damaged) / "kernel.so").unlink()
        (tmp_path / "elsewhere").mkdir()
        put(v1 / name, kind, tmp_path / "elsewhere")
        fresh = Store.open()

        entry = publish(fresh, 1, builder={"compiler": "ab" * 32})
        assert entry.directory is not None
        assert fresh.read(KEY) == entry
        assert fresh.read(damaged.key) is None
        assert not folder_of(damaged).exists()
        fresh.index.remember_failure("ab" * 32, "name", "reason", 60)
        assert Store.open().index.failure("ab" * 32) is not None
        fresh.pin(KEY)
        assert fresh.is_pinned(KEY)
        with fresh.lock(KEY, 1.0) as is_held:
            assert is_held
        assert fresh.remove(KEY) is not None
        assert caplog.records == []
        assert tree(tmp_path / "elsewhere") == []
        fresh.prune()
        assert [path for path in tree(v1) if ASIDE in path] == []

    def test_journal_that_is_a_pipe(self, store: Store, v1: Path) -> None:
        """Uses are counted again once the counts were read."""
        publish(store, 1)
        (v1 / "journal").unlink()
        os.mkfifo(v1 / "journal")
        store.index.rows()
        store.index.record_use(KEY)

        assert store.index.uses(KEY)[0] == 1


class TestClock:
    """A clock that was a year ahead has left its times behind."""

    def test_entries_are_pruned(self, store: Store) -> None:
        """They used to count as just used for a year, and took the room of all others."""
        entries = [publish(store, number) for number in (1, 2, 3)]
        age(entries[0], 3600)
        age(entries[1], -YEAR)
        age(entries[2], 7200)

        store.prune(2 * du(entries[0]))

        assert [folder_of(entry).exists() for entry in entries] == [True, False, True]

    def test_leftovers_are_swept(self, store: Store, v1: Path) -> None:
        """They used to stay for a year after the next publish, prune and clear."""
        publish(store, 1)
        then = time.time() + YEAR
        for name in ("tmp/draft", "quarantine/bad"):
            (v1 / name).mkdir()
            os.utime(v1 / name, (then, then))

        publish(store, 2)

        assert tree(v1 / "tmp") + tree(v1 / "quarantine") == []


class TestLeftovers:
    """What killed processes leave behind."""

    def test_clear_leaves_nothing(self, store: Store, v1: Path) -> None:
        """Drafts used to survive a clear for an hour, and half-taken journals for ever."""
        damaged = publish(store, 1)
        (folder_of(damaged) / "kernel.so").unlink()
        assert store.read(KEY) is None
        publish(store, 2)
        (v1 / "tmp" / "draft").mkdir()
        (v1 / "tmp" / "draft" / "kernel.so").write_bytes(b"x")
        os.utime(v1 / "tmp" / "draft", (time.time() - 1, time.time() - 1))
        (v1 / f"journal-{'ab' * 16}").write_bytes(b"x")
        for folder in (v1, v1 / "entries", v1 / "entries" / KEY[:2]):
            (folder / f"{ASIDE}x").mkdir()

        store.clear()

        assert tree(v1 / "tmp") + tree(v1 / "quarantine") == []
        left = [path for path in tree(v1) if "journal-" in path or ASIDE in path]
        assert left == []
        assert (v1 / "size").read_text() == "=0\n"

    def test_draft_of_a_killed_process(self, store: Store, v1: Path) -> None:
        """It used to stay for an hour, by any prune; one whose process lives has to stay."""
        publish(store, 1)
        command = [sys.executable, "-c", DRAFT, str(v1 / "tmp")]
        with subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            name = process.stdout.readline().strip()
            os.utime(v1 / "tmp" / name, (1.0, 1.0))
            assert name not in store.prune().swept
            assert tree(v1 / "tmp") == [name, f"{name}/kernel.py"]
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.utime(v1 / "tmp" / name, (time.time() - 1, time.time() - 1))

            assert name in store.prune().swept
        assert tree(v1 / "tmp") == []


class TestRemoval:
    """Entries that go while others use them."""

    def test_entry_that_is_held(self, store: Store) -> None:
        """Who has read an entry has its bytes; an entry was a path, to what is gone."""
        publish(store, 1)
        held = Store.open().read(KEY)
        assert held is not None
        before = dict(held.files)
        store.remove(KEY)

        assert not folder_of(held).exists()
        assert held.files == before
        assert held.library.startswith(b"\x7fELF")
        assert Store.open().read(KEY) is None

    def test_quarantine_of_that_entry(self, store: Store, v1: Path) -> None:
        """An entry that could not be loaded goes; an old report spares the same key's new one."""
        old = publish(store, 1)
        store.quarantine(old, "it could not be loaded")
        assert store.read(KEY) is None
        assert len(list((v1 / "quarantine").iterdir())) == 1

        new = publish(store, 1, created="2026-02-03T04:05:06+00:00")
        Store.open().quarantine(old, "it could not be loaded")

        assert store.read(KEY) == new
        assert len(list((v1 / "quarantine").iterdir())) == 1

    def test_quarantine_of_an_entry_of_a_base(self, store: Store, tmp_path: Path) -> None:
        """An old report spares the entry of an image that was built anew meanwhile."""
        image = Store(tmp_path / "image", "rw")
        publish(image, 1)
        with settings.scope(base=[image.root]):
            above = Store.open()
            old = above.read(KEY)
        assert old is not None
        image.remove(KEY)
        new = publish(image, 1, created="2026-02-03T04:05:06+00:00")
        above.quarantine(old, "it could not be loaded")

        assert above.read(KEY) == new

    def test_damage_in_a_folder_that_was_replaced(
        self, store: Store, v1: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        An entry that was removed while it was read was a miss, though it had been published anew
        by then; where the new folder had got the old one's number, it was even set aside.
        """
        first = publish(store, 1)
        real, rounds = entries.read_entry, []

        def read_entry(folder: Folder, key: str, **options: bool) -> Entry:
            rounds.append(key)
            if len(rounds) == 1:  # another process removes it, and publishes it anew
                other = Store.open()
                other.remove(key)
                publish(other, 1)
            return real(folder, key, **options)

        monkeypatch.setattr("jitgen.cache.serving.read_entry", read_entry)

        assert store.read(KEY) == first
        assert len(rounds) == 2
        assert tree(v1 / "quarantine") == []
