# SPDX-License-Identifier: Apache-2.0
"""
The root of a cache: where it is, the way to it, and what file system it lies on.

Native code is loaded from the root, so it must belong to this user (or to the superuser), and no
other user may write to it or put another folder in its place. So the way there is walked from
``/``, folder by folder, each checked as it was opened, and every operation walks it anew: a root
that was opened up, replaced or removed since the last one is noticed. That takes some 20 us.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from jitgen.cache.folder import Damaged, Folder, Untrusted
from jitgen.errors import UnsafeCacheRoot
from jitgen.ownership import distrust, distrust_parent, is_shared, shared_folders
from jitgen.ownership.files import keep_private
from jitgen.settings import settings

_NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    ]
)


def filesystem_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """
    Return the type of the file system that holds `path`, such as ``ext4``; empty if it is unknown.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    target = f"{os.path.realpath(path)}/"
    best, answer = 0, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        columns = left.split()
        if len(columns) < 5 or not right:
            continue
        point = _unescape(columns[4]).rstrip("/") + "/"
        # A later mount on the same point covers the earlier one.
        if target.startswith(point) and len(point) >= best:
            best, answer = len(point), right.split()[0]
    return answer


def is_network(kind: str) -> bool:
    """Return whether file locks of SQLite cannot be trusted on a file system of type `kind`."""
    return kind in _NETWORK or kind.startswith("fuse.") or kind == "fuse"


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks in mountinfo."""
    for code, blank in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", blank)
    return text


VERSION = "v1"
FOLDERS = ("entries", "locks", "tmp", "quarantine", "pins", "index")
"""Folders of a new root; others are created when they are needed."""

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of compiled kernels, written by jitgen. It is safe to delete all of it.
# For information about cache directory tags see https://bford.info/cachedir/
"""
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors of a path that cannot exist: not there, a parent is a file, a name is too long."""

_SEARCH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Root:
    """
    One cache root.

    Symbolic links in the path are resolved once, here, so that a link that is changed later does
    not lead this process elsewhere.

    Attributes:
        path: The root as it was asked for.
        base: Path of the folder of this format, ``<root>/v1``, resolved; for messages, and for
            packages that take nothing but paths.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = Path(os.path.realpath(path), VERSION)
        way = (*reversed(self.base.parents[:-1]), self.base)  # each folder below ``/``
        # only the root and its ``v1`` must be private
        self._way = tuple((step, step.name, step in way[-2:]) for step in way)

    def open(self) -> Folder | None:
        """
        Return ``<root>/v1``, opened; None where there is none.

        Raises:
            UnsafeCacheRoot: Another user could put code there.
            OSError: It cannot be opened just now.
        """
        try:
            return self.enter()
        except OSError as error:
            if error.errno in _NOWHERE:
                return None
            raise

    def enter(self) -> Folder:
        """
        Return ``<root>/v1``, opened; a missing folder is an error, unlike in `open`.

        Raises:
            FileNotFoundError: The folder does not exist.
            UnsafeCacheRoot: Another user could put code there.
            OSError: It cannot be opened just now.
        """
        return self._walk(create=False)

    def create(self) -> Folder:
        """
        Return ``<root>/v1``, opened, with the folders that every root has; all private.

        Raises:
            UnsafeCacheRoot: Another user could put code there.
            OSError: It cannot be created.
        """
        base = self._walk(create=True)
        for name in FOLDERS:
            with suppress(FileExistsError):
                os.mkdir(name, base.mode(0o777), dir_fd=base.descriptor)
        return base

    def check(self) -> None:
        """Raise `UnsafeCacheRoot` if another user could put code where entries are."""
        base = self.open()
        if base is not None:
            with base, suppress(FileNotFoundError), self.entries(base):
                pass

    def is_open(self) -> bool:
        """
        Return whether others can write here and JITGEN_TRUST_SHARED does not name the folder; True
        if that cannot be told.
        """
        try:
            base = self.open()
        except OSError:
            return True
        if base is None:
            return False
        with base:
            return base.is_shared and not is_shared(self.base, shared_folders())

    def entries(self, base: Folder, *, create: bool = False) -> Folder:
        """
        Return the folder of entries in `base`, opened. A file in its place counts as none, and
        gives way where it is to be created.

        Raises:
            UnsafeCacheRoot: Another user could put code there.
            FileNotFoundError: The folder does not exist, and `create` is false.
            OSError: It cannot be opened just now.
        """
        try:
            found = base.stat("entries")
            if found is None or stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode):
                return base.folder("entries", create=create)
            if create:
                return base.service("entries")
            raise FileNotFoundError(f"{base.path}/entries is no folder")
        except Untrusted as damage:
            raise self._unsafe(base.path / "entries", damage.reason) from None
        except Damaged as damage:  # the folder is ours, but access is denied: that may pass
            raise PermissionError(errno.EACCES, f"Permission denied: {damage}") from None

    def _walk(self, *, create: bool) -> Folder:
        shared = shared_folders()
        is_free = is_open = False
        descriptor = os.open("/", _SEARCH)
        try:
            for path, name, is_inner in self._way:
                is_free = is_open or (bool(shared) and is_shared(path, shared))
                if create:
                    mode = 0o700 if is_inner and not is_free else 0o777
                    _make(name, mode, descriptor, gives_way=path == self.base)
                below = self._step(descriptor, path, name, is_inner=is_inner)
                os.close(descriptor)
                descriptor = below
                if not is_free:
                    is_open = self._is_open(os.fstat(descriptor), path, is_inner=is_inner)
                if create and path == self.base.parent:
                    _tag(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return Folder(descriptor, self.base, is_shared=is_free or is_open)

    def _step(self, above: int, path: Path, name: str, *, is_inner: bool) -> int:
        """Return the folder `path`, called `name` in the open folder `above`, opened."""
        try:
            return os.open(name, _LIST if path == self.base else _SEARCH, dir_fd=above)
        except NotADirectoryError:
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            if is_inner and stat.S_ISLNK(found.st_mode):  # a folder when the path was resolved
                raise self._unsafe(path, "is no folder but a link") from None
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path)) from None

    def _is_open(self, found: os.stat_result, path: Path, *, is_inner: bool) -> bool:
        """
        Return whether others could put something below `path`. That does no harm if only signed
        kernels are loaded; else it raises `UnsafeCacheRoot`.
        """
        reason = distrust(found) if is_inner else distrust_parent(found)
        if reason and settings.verify != "always":
            raise self._unsafe(path, reason, is_inner=is_inner, found=found)
        return bool(reason)

    def _unsafe(
        self,
        path: Path,
        reason: str,
        *,
        is_inner: bool = True,
        found: os.stat_result | None = None,
    ) -> UnsafeCacheRoot:
        remedy = "remove it" if is_inner else "give it back"
        if reason.startswith("can be"):
            command = f"chmod {'700' if is_inner else 'o-w'} {path}"
            if is_inner and found is not None:
                command = keep_private(path, found)
            remedy = f"run: {command}"
        return UnsafeCacheRoot(
            f"cache root {self.path} is not safe: {path} {reason}; {remedy}, or choose another "
            "JITGEN_CACHE_DIR, or, if they may run code as you, name it in JITGEN_TRUST_SHARED; "
            "with JITGEN_VERIFY=always, which loads nothing unsigned, they may write there"
        )


def _make(name: str, mode: int, above: int, *, gives_way: bool) -> None:
    """
    Make the folder `name` if there is none; with `gives_way`, a file of this name is removed first.
    """
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=above)
        return
    kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if gives_way and not stat.S_ISDIR(kind) and not stat.S_ISLNK(kind):
        os.unlink(name, dir_fd=above)
        os.mkdir(name, mode, dir_fd=above)


def _tag(descriptor: int) -> None:
    """Mark the root as a cache for backup programs, once."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        tag = os.open("CACHEDIR.TAG", flags, 0o644, dir_fd=descriptor)
        try:
            os.write(tag, _TAG.encode("ascii"))
        finally:
            os.close(tag)
