# SPDX-License-Identifier: Apache-2.0
"""Which roots are trusted, and the locks and file systems under them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.cache import root as roots
from jitgen.cache.folder import Folder
from jitgen.cache.publishing import is_held
from jitgen.cache.root import filesystem_type, is_network
from jitgen.cache.serving import key_lock
from jitgen.errors import UnsafeCacheRoot
from tests.unit.store_fakes import fake_meta, publish

STRANGER = 12345
KEY = fake_meta(1).key
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")

pytestmark = pytest.mark.usefixtures("no_power_failure")


class TestTrust:
    """No other user may be able to put code where it is loaded from."""

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o720])
    @pytest.mark.parametrize("folder", [".", "v1", "v1/entries"])
    def test_writable_by_others(self, cache_root: Path, folder: str, mode: int) -> None:
        """The message names the folder, what is wrong with it, and both ways out."""
        publish(Store.open(), 1)
        path = (cache_root / folder).resolve()
        path.chmod(mode)

        with pytest.raises(UnsafeCacheRoot) as caught:
            Store.open()

        message = str(caught.value)
        assert f"chmod 700 {path}," in message
        assert f"mode {mode:04o}" in message
        assert "JITGEN_CACHE_DIR" in message
        assert "\n" not in message

    @as_root
    @pytest.mark.parametrize("folder", [".", "v1", "v1/entries"])
    def test_owned_by_another_user(self, cache_root: Path, folder: str) -> None:
        """Mode 0700 does not help where the folder is another user's."""
        publish(Store.open(), 1)
        os.chown(cache_root / folder, STRANGER, STRANGER)

        with pytest.raises(UnsafeCacheRoot, match=f"belongs to user {STRANGER}, not to you"):
            Store.open()

    @as_root
    def test_linked_to_a_folder_of_another_user(self, tmp_path: Path) -> None:
        """What counts is the folder that a link leads to."""
        (tmp_path / "theirs").mkdir(mode=0o700)
        os.chown(tmp_path / "theirs", STRANGER, STRANGER)
        (tmp_path / "link").symlink_to(tmp_path / "theirs")

        with pytest.raises(UnsafeCacheRoot):
            Store.open(tmp_path / "link")

    @as_root
    def test_the_superusers_root_can_be_read(self) -> None:
        """Kernels that root put into an image serve a user who cannot write there."""
        with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
            root = Path(folder, "cache")
            entry = publish(Store.open(root), 1)
            for path in [root.parent, root, *root.rglob("*")]:
                if path.is_dir():
                    path.chmod(0o755)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.setuid(STRANGER)
                    store = Store.open(root)
                    if store.read(entry.key) == entry and publish(store, 2).library:
                        code = 0
                finally:
                    os._exit(code)

            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_parent_that_everybody_may_write_to(self, tmp_path: Path) -> None:
        """Without the sticky bit, other users could replace the root; with it, as in /tmp, not."""
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        with pytest.raises(UnsafeCacheRoot, match="chmod o-w"):
            Store.open(tmp_path / "open" / "cache")

        (tmp_path / "open").chmod(0o1777)

        assert publish(Store.open(tmp_path / "open" / "cache"), 1).directory

    @pytest.mark.parametrize("name", ["v1", "v1/entries"])
    def test_inner_folder_that_is_a_link(self, tmp_path: Path, name: str) -> None:
        """Below the root nothing is followed."""
        root = tmp_path / "cache"
        (root / name).parent.mkdir(mode=0o700, parents=True)
        root.chmod(0o700)
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (root / name).symlink_to(tmp_path / "elsewhere")

        with pytest.raises(UnsafeCacheRoot, match="is no folder"):
            Store.open(root)

    def test_root_that_becomes_unsafe(self, cache_root: Path) -> None:
        """A store that is open already stops publishing there."""
        store = Store.open()
        publish(store, 2)
        cache_root.chmod(0o777)
        entry = publish(store, 1)

        assert entry.library
        assert "is not safe" in entry.why_private
        assert not (cache_root / "v1" / "entries" / KEY[:2] / KEY).exists()

    def test_root_that_appears_unsafe(self, cache_root: Path) -> None:
        """A root that did not exist when the store was opened is checked before the first read."""
        store = Store.open()
        cache_root.mkdir()
        cache_root.chmod(0o777)

        with pytest.raises(UnsafeCacheRoot):
            store.read(KEY)


def is_locked(root: Path, name: str) -> bool:
    """Whether a process holds the lock file `name` now."""
    path = root / "v1" / "locks"
    with Folder(os.open(path, os.O_RDONLY), path, is_shared=False) as folder:
        return is_held(folder, name)


class TestLock:
    """One compile for each key, if the operating system plays along."""

    def test_excludes_other_processes(self, cache_root: Path) -> None:
        """A second process does not get it, and gets it once the first is killed."""
        store = Store.open()
        program = (
            "import sys, time; from jitgen.cache import Store\n"
            f"with Store.open().lock({KEY!r}, 1) as is_locked:\n"
            "    print(is_locked, flush=True); time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
            start = time.monotonic()
            with store.lock(KEY, 0.2) as held:
                assert not held
            assert 0.2 <= time.monotonic() - start < 5
            assert is_locked(cache_root, f"{KEY}.lock")
            process.kill()
            process.wait()
            with store.lock(KEY, 5) as held:
                assert held

    def test_excludes_other_threads(self, cache_root: Path) -> None:
        """Threads wait for each other, each with a lock of its own."""
        store = Store.open()
        inside, most = [], []

        def work() -> None:
            with store.lock(KEY, 10) as held:
                assert held
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert most == [1] * 8

    def test_file_is_private_and_stays(self, cache_root: Path) -> None:
        """Removing it would let two processes hold it."""
        with Store.open().lock(KEY, 1) as held:
            assert held

        path = cache_root / "v1" / "locks" / f"{KEY}.lock"
        assert path.stat().st_mode & 0o777 == 0o600

    def test_symbolic_link_is_not_followed(
        self, cache_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A link planted in the place of the lock gives way, and its target stays as it is."""
        store = Store.open()
        publish(store, 2)
        victim = tmp_path / "victim"
        victim.write_text("precious")
        path = cache_root / "v1" / "locks" / f"{KEY}.lock"
        path.symlink_to(victim)

        with key_lock(path, 0.3) as held:  # it came a moment later
            assert not held
        assert "compiling without the lock" in caplog.text
        assert not is_locked(cache_root, path.name)
        with store.lock(KEY, 0.3) as held:
            assert held

        assert victim.read_text() == "precious"
        assert not path.is_symlink()

    def test_twice_in_one_thread(self, cache_root: Path) -> None:
        """A thread that holds it already is told no, and does not wait for itself."""
        store = Store.open()
        with store.lock(KEY, 1) as first, store.lock(KEY, 0.2) as second:
            assert (first, second) == (True, False)

    def test_an_error_inside_is_not_swallowed(self, cache_root: Path) -> None:
        """The lock is released, and the error goes on."""
        store = Store.open()
        with pytest.raises(OSError, match="mine"), store.lock(KEY, 1):
            raise OSError("mine")
        with store.lock(KEY, 1) as held:
            assert held


MOUNTS = r"""22 1 8:1 / / rw,relatime - ext4 /dev/root rw
30 22 0:30 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:31 / /home/me/local rw - xfs /dev/sdb rw
32 22 0:32 / /mnt/two\040words rw - fuse.sshfs host: rw
33 22 0:33 / /over rw - ext4 /dev/sdc rw
34 22 0:34 / /over rw - lustre a@b rw
broken line
"""


class TestFileSystem:
    """Where SQLite's locks cannot be trusted, there is no index."""

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/var/cache", "ext4"),
            ("/home/me/.cache/jitgen", "nfs4"),
            ("/home/me/local/jitgen", "xfs"),
            ("/homes", "ext4"),
            ("/mnt/two words/x", "fuse.sshfs"),
            ("/over/x", "lustre"),
        ],
    )
    def test_type_of_the_nearest_mount(self, path: str, kind: str, tmp_path: Path) -> None:
        """The longest mount point wins, and the last of several on one point."""
        (tmp_path / "mountinfo").write_text(MOUNTS)

        assert filesystem_type(Path(path), tmp_path / "mountinfo") == kind

    def test_unknown(self, tmp_path: Path) -> None:
        """Without a table of mounts nothing is known, and that is local."""
        assert filesystem_type(tmp_path, tmp_path / "missing") == ""
        assert not is_network("")

    @pytest.mark.parametrize(
        "kind",
        [
            "nfs",
            "nfs4",
            "lustre",
            "gpfs",
            "cifs",
            "smb3",
            "9p",
            "ceph",
            "beegfs",
            "fuse.sshfs",
            "fuse",
        ],
    )
    def test_network_kinds(self, kind: str) -> None:
        """All of these keep locks to one host, or have none."""
        assert is_network(kind)

    @pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
    def test_local_kinds(self, kind: str) -> None:
        """These are fine."""
        assert not is_network(kind)

    def test_store_on_a_network_file_system(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Everything works without the index, and that is said once."""
        monkeypatch.setattr(roots, "filesystem_type", lambda _: "nfs4")
        store = Store.open()
        with caplog.at_level(logging.INFO):
            entry = publish(store, 1)
            store.index.record_use(entry.key)
            store.index.remember_failure("ab" * 32, "name", "reason", 60)
            again = Store.open()
            stats = again.stats()

        assert store.read(entry.key) == entry
        assert (stats.entries, stats.hits, stats.by_arch) == (1, 0, {"cpu": 1})
        assert store.index.failure("ab" * 32) is not None
        assert again.index.failure("ab" * 32) is None
        assert list((cache_root / "v1" / "index").iterdir()) == []
        assert len(caplog.records) == 1
        assert "on a network file system (nfs4)" in caplog.text
