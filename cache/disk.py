# SPDX-License-Identifier: Apache-2.0
"""Texts of a disk's errors, advice what to do about them, and the space that is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from jitgen.cache.entry import draft
from jitgen.cache.root import Root
from jitgen.errors import CacheError

_PROBE_BYTES = 2**17  # the size of a usual kernel

_REMEDIES = {
    errno.ENOSPC: "make room, or set JITGEN_CACHE_DIR to a folder that has some",
    errno.EDQUOT: "make room, or set JITGEN_CACHE_DIR to a folder that has some",
    errno.EROFS: "set JITGEN_CACHE_DIR to a folder that can be written, or JITGEN_CACHE=ro",
    errno.EACCES: "set JITGEN_CACHE_DIR to a folder of your own, or JITGEN_CACHE=ro",
    errno.ENOTDIR: "set JITGEN_CACHE_DIR to a folder, or to a path where one can be made",
}


class DiskSpace(NamedTuple):
    """
    The size of a file system and what is free.

    Attributes:
        free_bytes: Bytes that this user can still write.
        total_bytes: Size of the file system in bytes.
        has_inodes: Whether another file can be made.
    """

    free_bytes: int
    total_bytes: int
    has_inodes: bool


def cause(error: Exception) -> str:
    """
    Return the text and the name of a disk's error, such as ``No space left on device (ENOSPC)``;
    for any other error, its message.
    """
    number = getattr(error, "errno", None)
    if not isinstance(error, OSError) or isinstance(error, CacheError) or number is None:
        return str(error)
    name = str(error.filename or "")
    where = f": {name}" if name.startswith("/") else ""  # others are names below the root
    return f"{error.strerror or os.strerror(number)} ({errno.errorcode.get(number, number)}){where}"


def remedy(error: Exception) -> str:
    """Return advice for a disk's error; empty if the error alone does not tell."""
    return _REMEDIES.get(getattr(error, "errno", None) or 0, "")


def disk_space(path: Path) -> DiskSpace:
    """
    Return the space of the file system of `path`, or of the nearest folder above that exists.

    Raises:
        OSError: The file system does not report it.
    """
    found = os.statvfs(_existing(path))
    return DiskSpace(
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        has_inodes=found.f_favail > 0 or not found.f_files,  # some file systems report no inodes
    )


def probe(root: Root) -> None:
    """
    Write a file of a kernel's size to the root's folder of drafts, and remove it again. A root that
    does not exist is not created: an empty folder is made and removed where it would lie.

    Raises:
        OSError, CacheError: The root cannot be written; the message says why.
    """
    base = root.open()
    if base is None:
        import tempfile  # 5 ms, and every start imports this module

        place = next(path for path in (root.path, *root.path.parents) if os.path.lexists(path))
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(place))
        try:
            Path(tempfile.mkdtemp(prefix=".jitgen-", dir=place)).rmdir()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(place)) from None
        return
    with base, base.service("tmp") as drafts, draft(drafts) as (folder, _):
        folder.write("probe", bytes(_PROBE_BYTES))


def _existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    for candidate in (path, *path.parents):
        if candidate.is_dir():
            return candidate
    return Path("/")
