# SPDX-License-Identifier: Apache-2.0
"""Who could have put it there: nothing is loaded that another user could have written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.errors import UnsafeCacheRoot
from jitgen.settings import settings
from tests.unit.store_fakes import fake_meta, folder_of, publish, tree

STRANGER = 12345
KEY = fake_meta(1).key
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")

pytestmark = pytest.mark.usefixtures("no_power_failure")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder above the cache; those above it are pytest's own, private and ours."""
    path = tmp_path / "home"
    path.mkdir(mode=0o755)
    return path


def place_of(part: str, entry: Entry) -> Path:
    """Return the shard of `entry`, its folder, or one of its files."""
    folder = folder_of(entry)
    return {"shard": folder.parent, "entry": folder}.get(part, folder / part)


def check_missed(entry: Entry, path: Path, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Nothing is loaded from `path`, that is said once, and the next publish heals it."""
    store = Store.open()

    assert store.read(entry.key) is None
    assert store.read(entry.key) is None
    assert not os.path.lexists(path)
    assert [record.message for record in caplog.records] == [
        f"{path} {reason}: nothing is loaded from there"
    ]
    assert publish(store, 1).directory == entry.directory
    assert Store.open().read(entry.key) == entry


class TestParents:
    """Who owns a folder above the root can put another root in its place."""

    @as_root
    @pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
    def test_parent_of_another_user(self, home: Path, mode: int) -> None:
        """
        Parents used to be looked at for their modes only: a stranger's, even with the sticky bit,
        which does not bind the owner, was fine.
        """
        publish(Store.open(home / "cache"), 1)
        os.chown(home, STRANGER, STRANGER)
        home.chmod(mode)

        with pytest.raises(UnsafeCacheRoot) as caught:
            Store.open(home / "cache")

        message = str(caught.value)
        assert f"{home} belongs to user {STRANGER}, not to you (user 0); give it back" in message
        assert "JITGEN_CACHE_DIR" in message
        assert "JITGEN_TRUST_SHARED" in message
        assert "\n" not in message

    @as_root
    def test_grandparent_of_another_user(self, home: Path) -> None:
        """Every folder on the way counts; whose it was did not matter in any of them."""
        (home / "a" / "b").mkdir(parents=True)
        publish(Store.open(home / "a" / "b" / "cache"), 1)
        os.chown(home, STRANGER, STRANGER)

        with pytest.raises(UnsafeCacheRoot, match=f"{home} belongs to user {STRANGER}"):
            Store.open(home / "a" / "b" / "cache")

    def test_parent_of_a_group(self, home: Path) -> None:
        """Private groups and project folders look so, and they have to go on working."""
        home.chmod(0o2775)

        assert publish(Store.open(home / "cache"), 1).directory

    def test_parent_opened_up_later(self, home: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The way was checked when a store was made, and never again."""
        store = Store.open(home / "cache")
        publish(store, 1)
        home.chmod(0o777)

        with pytest.raises(UnsafeCacheRoot, match=f"chmod o-w {home},"):
            store.read(KEY)

        assert "is not safe" in publish(store, 2).why_private
        home.chmod(0o755)
        assert store.read(KEY) is not None
        assert store.read(fake_meta(2).key) is None


class TestLater:
    """What becomes unsafe under a store that is open already."""

    @pytest.mark.parametrize("folder", [".", "v1", "v1/entries"])
    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
    def test_opened_up(self, cache_root: Path, folder: str, mode: int) -> None:
        """A server that had opened its store went on loading from a folder open to everybody."""
        store = Store.open()
        publish(store, 1)
        (cache_root / folder).chmod(mode)

        with pytest.raises(UnsafeCacheRoot, match="chmod 700"):
            store.read(KEY)

        (cache_root / folder).chmod(0o700)
        assert store.read(KEY) is not None

    @as_root
    def test_given_away(self, cache_root: Path) -> None:
        """The same for a root that another user has got meanwhile."""
        store = Store.open()
        publish(store, 1)
        os.chown(cache_root, STRANGER, STRANGER)

        with pytest.raises(UnsafeCacheRoot, match=f"belongs to user {STRANGER}.*remove it"):
            store.read(KEY)

    def test_entries_that_become_a_link(self, cache_root: Path, tmp_path: Path) -> None:
        """Links below the root were refused when the store was made, and followed later."""
        store = Store.open()
        publish(store, 1)
        (cache_root / "v1" / "entries").rename(tmp_path / "elsewhere")
        (cache_root / "v1" / "entries").symlink_to(tmp_path / "elsewhere")

        with pytest.raises(UnsafeCacheRoot, match="a link"):
            store.read(KEY)

        before = tree(tmp_path / "elsewhere")
        assert "a link" in publish(store, 2).why_private
        assert tree(tmp_path / "elsewhere") == before


class TestBelow:
    """Shards, entries and their files: not loaded, set aside, and compiled anew."""

    @as_root
    @pytest.mark.parametrize("part", ["shard", "entry", "kernel.so", "kernel.py", "meta.json"])
    def test_of_another_user(self, part: str, caplog: pytest.LogCaptureFixture) -> None:
        """Digests that fit proved enough: whose files they were was never asked."""
        entry = publish(Store.open(), 1)
        path = place_of(part, entry)
        os.chown(path, STRANGER, STRANGER)

        check_missed(entry, path, caplog, f"belongs to user {STRANGER}, not to you (user 0)")

    @pytest.mark.parametrize(
        ("part", "mode"),
        [
            ("shard", 0o777),
            ("shard", 0o1777),
            ("entry", 0o777),
            ("entry", 0o775),
            ("kernel.so", 0o666),
            ("kernel.py", 0o464),
            ("meta.json", 0o666),
        ],
    )
    def test_that_others_may_write_to(
        self, part: str, mode: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Only the root had to be private, and users who could write further down were trusted."""
        entry = publish(Store.open(), 1)
        path = place_of(part, entry)
        path.chmod(mode)

        check_missed(entry, path, caplog, f"can be written by other users (mode {mode:04o})")

    def test_shard_that_is_a_link(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Below a shard that was a link, whatever lay in an open folder was loaded."""
        entry = publish(Store.open(), 1)
        shard = folder_of(entry).parent
        shard.rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").chmod(0o777)
        shard.symlink_to(tmp_path / "elsewhere")
        before = tree(tmp_path / "elsewhere")

        check_missed(entry, shard, caplog, "is no folder but a link")

        assert tree(tmp_path / "elsewhere") == before
        assert not shard.is_symlink()

    def test_read_only_store(self, caplog: pytest.LogCaptureFixture) -> None:
        """A store that is only read does not load it either, and leaves it where it is."""
        entry = publish(Store.open(), 1)
        folder_of(entry).chmod(0o777)

        assert Store.open(mode="ro").read(entry.key) is None
        assert folder_of(entry).exists()
        assert len(caplog.records) == 1

    def test_lists_leave_it_out(self) -> None:
        """Lists name what lies in shards that are safe; verifying says what is wrong there."""
        entry = publish(Store.open(), 1)
        other = publish(Store.open(), 2)
        folder_of(entry).parent.chmod(0o777)
        (folder_of(other) / "kernel.so").chmod(0o666)
        store = Store.open()

        assert [info.key for info in store.entries()] == [other.key]
        results = store.verify(dry_run=True)
        assert [result.key for result in results if not result.is_good] == [other.key]
        assert "can be written by other users" in results[0].reason


class TestShared:
    """Volumes that others have to write to, as the variable allows."""

    @pytest.mark.parametrize("mode", [0o777, 0o2775])
    def test_volume_serves(self, tmp_path: Path, mode: int) -> None:
        """On a volume of Kubernetes there was no way to have a cache at all."""
        volume = tmp_path / "volume"
        volume.mkdir()
        volume.chmod(mode)
        with pytest.raises(UnsafeCacheRoot, match="JITGEN_TRUST_SHARED"):
            Store.open(volume)

        with settings.scope(trust_shared=[volume]):
            entry = publish_in(volume, mode)
            store = Store.open(volume)
            assert store.read(entry.key) == entry
            assert publish(store, 2).directory

        with pytest.raises(UnsafeCacheRoot):
            Store.open(volume)

    @pytest.mark.parametrize("other", ["volumes", "volume-2", "Volume", "."])
    def test_only_that_folder(
        self, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name that begins alike, and the folder above, are not meant."""
        (tmp_path / "volume").mkdir()
        monkeypatch.setenv("JITGEN_TRUST_SHARED", str(tmp_path / "volume"))
        root = tmp_path / other / "cache"
        root.mkdir(parents=True)
        root.chmod(0o777)

        with pytest.raises(UnsafeCacheRoot):
            Store.open(root)

    def test_what_lies_above_is_checked(self, tmp_path: Path) -> None:
        """Who may write above a trusted folder can put another one in its place."""
        (tmp_path / "open" / "cache").mkdir(parents=True)
        (tmp_path / "open").chmod(0o777)

        with (
            settings.scope(trust_shared=[tmp_path / "open" / "cache"]),
            pytest.raises(UnsafeCacheRoot, match="chmod o-w"),
        ):
            Store.open(tmp_path / "open" / "cache")

    def test_named_by_a_link(self, tmp_path: Path) -> None:
        """Mounts are often reached through links, and both names mean one folder."""
        (tmp_path / "volume").mkdir()
        (tmp_path / "volume").chmod(0o777)
        (tmp_path / "link").symlink_to(tmp_path / "volume")

        with settings.scope(trust_shared=[tmp_path / "link"]):
            entry = publish_in(tmp_path / "volume" / "cache", 0o777)
            assert Store.open(tmp_path / "link" / "cache").read(entry.key) == entry

    @as_root
    def test_of_several_users(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """What another user published there is loaded, and healed where it is damaged."""
        volume = tmp_path / "volume"
        volume.mkdir()
        with settings.scope(trust_shared=[volume]):
            entry = publish_in(volume, 0o777)
            for path in (volume, *volume.rglob("*")):
                os.chown(path, STRANGER, STRANGER)
            assert Store.open(volume).read(entry.key) == entry
            shutil.copy(folder_of(entry) / "kernel.py", folder_of(entry) / "kernel.so")
            assert Store.open(volume).read(entry.key) is None
            publish(Store.open(volume), 1)
            assert Store.open(volume).read(entry.key) == entry

        assert caplog.records == []


def publish_in(root: Path, mode: int) -> Entry:
    """Publish under `root`, then open all of it up to `mode`, as who mounts volumes does."""
    entry = publish(Store.open(root), 1)
    for path in (root, *root.rglob("*")):
        path.chmod(mode if path.is_dir() else mode & 0o666)
    return entry
