# SPDX-License-Identifier: Apache-2.0
"""The one way to read a file that decides about trust: whose it is, and who could exchange it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from jitgen.ownership import files as trusted_files
from jitgen.ownership.files import Unsafe, in_memory, names_in, opened, read_trusted
from jitgen.settings import settings
from jitgen.support.documents import BadDocument

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder of its own; those above are pytest's, private and ours."""
    path = tmp_path / "home" / "conf" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    return path


def read(path: Path) -> bytes:
    return read_trusted(path, 100)


class TestFile:
    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o400, 0o444])
    def test_is_read_where_no_other_user_could_write_it(self, file: Path, mode: int) -> None:
        file.chmod(mode)

        assert read(file) == b"mine"

    @pytest.mark.parametrize("mode", [0o666, 0o664, 0o602, 0o620])
    def test_that_others_can_write(self, file: Path, mode: int) -> None:
        file.chmod(mode)

        with pytest.raises(Unsafe, match=f"{file} can be written by .*; run: chmod go-w {file},"):
            read(file)

    @as_root
    def test_of_another_user(self, file: Path) -> None:
        os.chown(file, STRANGER, STRANGER)

        with pytest.raises(Unsafe, match=f"{file} belongs to user {STRANGER}"):
            read(file)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
    def test_that_is_a_secret_is_not_even_read_by_others(self, file: Path, mode: int) -> None:
        file.chmod(mode)
        for shared in ((), (file.parent,)):
            with (
                settings.scope(trust_shared=shared),
                pytest.raises(Unsafe, match=f"run: chmod 600 {file}"),
            ):
                read_trusted(file, 100, is_secret=True)
        file.chmod(0o600)
        assert read_trusted(file, 100, is_secret=True) == b"mine"

    def test_that_others_can_read_is_told(self, file: Path) -> None:
        """If they can reach it: pytest's own folders exclude other users."""
        for mode in (0o644, 0o600):
            file.chmod(mode)
            with opened(file) as found:
                assert not found.is_open_to_readers
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            Path(folder).chmod(0o755)
            path.write_bytes(b"")
            for mode, expected in ((0o644, True), (0o640, True), (0o600, False)):
                path.chmod(mode)
                with opened(path) as found:
                    assert found.is_open_to_readers is expected

    def test_that_is_none(self, file: Path) -> None:
        pipe, folder = file.with_name("pipe"), file.parent
        os.mkfifo(pipe)
        for path in (pipe, folder, Path("/dev/null"), Path("/")):
            with pytest.raises(BadDocument, match="no regular file"):
                read(path)
        for path in (file.with_name("none"), folder / "none" / "file"):
            with pytest.raises(FileNotFoundError, match=str(folder)):
                read(path)
        with pytest.raises(NotADirectoryError, match=str(file)):
            read(file / "below")
        with pytest.raises(BadDocument, match="3 are the most"):
            read_trusted(file, 3)

    def test_of_a_relative_path(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(file.parent)

        assert read(Path("file")) == read(Path("../conf/./file")) == b"mine"

    def test_has_a_stamp_that_changes_with_it(self, file: Path) -> None:
        with opened(file) as found:
            before = found.stamp
        file.write_bytes(b"ours")
        with opened(file) as found:
            assert found.stamp != before


class TestFolders:
    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o772])
    def test_the_own_one_is_private(self, file: Path, mode: int) -> None:
        """Who can write there can put another file of this user's in the place of this one."""
        file.parent.chmod(mode)

        with pytest.raises(Unsafe, match=f"{file.parent} can be written by .*chmod g?o-w"):
            read(file)

    def test_the_sticky_bit_keeps_others_from_renaming(self, file: Path) -> None:
        file.parent.chmod(0o1777)

        assert read(file) == b"mine"

    def test_above_only_a_group_may_write(self, file: Path) -> None:
        above = file.parent.parent
        above.chmod(0o2775)
        assert read(file) == b"mine"
        above.chmod(0o777)
        with pytest.raises(Unsafe, match=f"{above} can be written by everybody; .*chmod o-w"):
            read(file)

    @as_root
    @pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
    def test_of_another_user(self, file: Path, mode: int) -> None:
        for folder in (file.parent, file.parent.parent):
            os.chown(folder, STRANGER, STRANGER)
            folder.chmod(mode)
            with pytest.raises(Unsafe, match=f"{folder} belongs to user {STRANGER}"):
                read(file)
            os.chown(folder, 0, 0)

    def test_that_the_setting_shares_are_not_checked(self, file: Path) -> None:
        file.chmod(0o666)
        file.parent.chmod(0o777)
        with settings.scope(trust_shared=file.parent):
            assert read(file) == b"mine"
            file.parent.parent.chmod(0o777)
            with pytest.raises(Unsafe, match=str(file.parent.parent)):
                read(file)


class TestLinks:
    def test_of_ones_own_are_followed(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("home/conf")
        (tmp_path / "b").symlink_to(tmp_path / "a" / "file")
        (tmp_path / "c").symlink_to("a/../b")  # behind a link, .. is where that leads
        (tmp_path / "home" / "b").symlink_to("conf/file")

        for path in ("a/file", "b", "c"):
            assert read(tmp_path / path) == b"mine"

    def test_as_kubernetes_mounts_secrets(self, file: Path) -> None:
        """A folder that all users may write to, with the sticky bit, and links to a private one."""
        mount = file.parent
        mount.chmod(0o1777)
        (mount / "..2026").mkdir(mode=0o755)
        (mount / "..2026" / "token").write_bytes(b"secret")
        (mount / "..data").symlink_to("..2026")
        (mount / "token").symlink_to("..data/token")

        assert read(mount / "token") == b"secret"

    @as_root
    def test_of_another_user(self, file: Path, tmp_path: Path) -> None:
        """It may lead to an older file of this user's, or to one that was never meant."""
        (tmp_path / "link").symlink_to(file)
        os.lchown(tmp_path / "link", STRANGER, STRANGER)

        with pytest.raises(Unsafe, match=f"link is a link that belongs to user {STRANGER}"):
            read(tmp_path / "link")

    @as_root
    def test_through_a_folder_of_another_user(self, file: Path, tmp_path: Path) -> None:
        """What counted was where it led in the end."""
        theirs = tmp_path / "theirs"
        theirs.mkdir(mode=0o755)
        (theirs / "link").symlink_to(file)
        (tmp_path / "mine").symlink_to(theirs / "link")
        os.chown(theirs, STRANGER, STRANGER)

        for path in (theirs / "link", tmp_path / "mine"):
            with pytest.raises(Unsafe, match=f"{theirs} belongs to user {STRANGER}"):
                read(path)

    def test_through_a_folder_that_others_write(self, file: Path, tmp_path: Path) -> None:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        (theirs / "link").symlink_to(file)
        theirs.chmod(0o777)

        with pytest.raises(Unsafe, match=f"{theirs} can be written"):
            read(theirs / "link")

    def test_without_an_end(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")

        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            read(tmp_path / "a")


class TestSwaps:
    """Between the checks and the reading, paths may lead elsewhere."""

    @pytest.fixture
    def other(self, file: Path) -> Path:
        """Another user's file, in a folder of the same form."""
        other = file.parent.parent / "other" / "file"
        other.parent.mkdir()
        other.write_bytes(b"evil")
        return other

    @pytest.mark.parametrize("left", range(8))
    def test_what_was_checked_is_what_is_read(
        self, file: Path, other: Path, left: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After any check, the file and its folders are exchanged for what fails the checks."""
        other.chmod(0o666)
        other.parent.chmod(0o777)
        calls, last, real = [0], 0, os.fstat

        def fstat(descriptor: int) -> os.stat_result:
            found = real(descriptor)
            calls[0] += 1
            if calls[0] == last - left:
                file.parent.rename(file.parent.with_name("aside"))
                other.parent.rename(file.parent)
            return found

        monkeypatch.setattr(trusted_files.os, "fstat", fstat)
        assert read(file) == b"mine"
        last, calls[0] = calls[0], 0
        with suppress(Unsafe):
            assert read(file) == b"mine"
        assert file.read_bytes() == b"evil"

    def test_nor_through_a_link(
        self, file: Path, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last name becomes a link to another file, which by itself could be trusted."""
        calls, real = [0], os.open

        def open_(path: str, *arguments: int, **options: int) -> int:
            if path == "file":
                calls[0] += 1
                if calls[0] == 2:
                    file.unlink()
                    file.symlink_to(other)
            return real(path, *arguments, **options)

        monkeypatch.setattr(trusted_files.os, "open", open_)
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            read(file)


class TestNames:
    def test_of_a_private_folder(self, file: Path) -> None:
        assert names_in(file.parent) == ["file"]

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
    def test_not_of_one_where_others_could_put_files(self, file: Path, mode: int) -> None:
        file.parent.chmod(mode)
        with pytest.raises(Unsafe, match="can be written by other users"):
            names_in(file.parent)
        with settings.scope(trust_shared=file.parent):
            assert names_in(file.parent) == ["file"]

    def test_of_no_folder(self, file: Path) -> None:
        for path in (file, file.with_name("none")):
            with pytest.raises(OSError, match=str(path)):
                names_in(path)


def test_what_takes_only_paths_reads_what_was_checked(file: Path) -> None:
    with in_memory(file, 100) as path:
        file.write_bytes(b"evil")

        assert Path(path).read_bytes() == b"mine"
    assert not os.path.exists(path)  # noqa: PTH110
