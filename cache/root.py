# SPDX-License-Identifier: Apache-2.0
"""
The root folder: where things lie in it, and whether it can be trusted.

Native code is loaded from the root, so it must belong to this user (or to the superuser, who can do
anything anyway) and nobody else may write to it. A parent folder that everybody may write to needs
the sticky bit, as ``/tmp`` has; a group that may write to a parent is trusted, as shared project
folders usually look so.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from jitgen.cache.entry import check_key
from jitgen.errors import UnsafeCacheRoot

VERSION = "v1"
_FOLDERS = ("entries", "locks", "tmp", "quarantine", "pins", "index")
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of compiled kernels, written by jitgen. It is safe to delete all of it.
# For information about cache directory tags see https://bford.info/cachedir/
"""
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


class Root:
    """
    Paths under one cache root.

    Symbolic links in the path are resolved once, here, so that a link that is changed later does
    not lead this process elsewhere.

    Attributes:
        path: The root as it was asked for.
        base: The folder of this format, ``<root>/v1``, resolved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        resolved = Path(os.path.realpath(path))
        self._resolved = resolved
        self.base = resolved / VERSION
        self.entries = self.base / "entries"
        self.locks = self.base / "locks"
        self.tmp = self.base / "tmp"
        self.quarantine = self.base / "quarantine"
        self.pins = self.base / "pins"
        self.index = self.base / "index"
        self.ledger = self.base / "size"

    def entry(self, key: str) -> Path:
        """Return the folder of entry `key`. Raises ValueError where `key` is no key."""
        return self.entries / check_key(key)[:2] / key

    def lock(self, key: str) -> Path:
        """Return the lock file of `key`. Raises ValueError where `key` is no key."""
        return self.locks / f"{check_key(key)}.lock"

    def pin(self, key: str) -> Path:
        """Return the marker that spares `key`. Raises ValueError where `key` is no key."""
        return self.pins / check_key(key)

    def check(self) -> bool:
        """
        Check whatever exists of the root; returns whether there is a store in it.

        Raises:
            UnsafeCacheRoot: Somebody else could put code there.
        """
        for parent in self._resolved.parents:
            try:
                mode = parent.stat().st_mode
            except OSError:
                continue  # it does not exist yet
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise UnsafeCacheRoot(
                    f"cache root {self.path} is not safe: everybody may write to {parent} and "
                    f"replace what is in it; run: chmod o-w {parent}, or choose another "
                    "JITGEN_CACHE_DIR"
                )
        for folder in (self._resolved, self.base, self.entries):
            _check_folder(folder, self.path)
        return self.base.exists()

    def create(self) -> None:
        """
        Create what is missing, with mode 0700, and check it all.

        Raises:
            UnsafeCacheRoot: See `check`.
            OSError: It cannot be created.
        """
        self._resolved.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check()
        for folder in (self.base, *(self.base / name for name in _FOLDERS)):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        self.check()
        tag = self._resolved / "CACHEDIR.TAG"
        if not tag.exists():
            with suppress(OSError):
                tag.write_text(_TAG)


def _check_folder(folder: Path, root: Path) -> None:
    try:
        found = folder.lstat()
    except OSError:
        return  # what is missing or unreadable cannot mislead; using it gives its own error
    where = f"cache root {root} is not safe: {folder}"
    otherwise = "or choose another JITGEN_CACHE_DIR"
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeCacheRoot(f"{where} is no folder; remove it, {otherwise}")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeCacheRoot(
            f"{where} belongs to user {found.st_uid}, not to you (user {os.geteuid()}); "
            f"remove it, {otherwise}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise UnsafeCacheRoot(
            f"{where} can be written by other users (mode {mode:04o}); "
            f"run: chmod 700 {folder}, {otherwise}"
        )


def filesystem_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that holds `path`, such as ``ext4``; empty: unknown."""
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
