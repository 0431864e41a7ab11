# SPDX-License-Identifier: Apache-2.0
"""
Private folders outside of every store, for a compiler to write to.

Files there are imported, linked and published, so a folder is made only where no other user can put
another one in its place: every folder above must be this user's or root's, and if others may write
to one, the sticky bit must keep them from renaming, as in ``/tmp``.

The process holds an open descriptor of the folder with an ``flock`` on it. That tells other
processes that the folder is in use, leaves no file behind, and ends with the process.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitgen.cache.folder import Folder
from jitgen.errors import ResourceError
from jitgen.ownership import distrust_parent

PREFIX = "jitgen-scratch-"
STALE_S = 3600.0
"""Age in seconds from which an unlocked folder is removed."""

_ROOM = 2**24  # bytes that a compile may need: a hundred times what is usual
_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of our own is made there, mode 0700


@contextmanager
def scratch() -> Iterator[Path]:
    """
    Yield a new folder that belongs to this process; it is removed at the end.

    It lies where temporary files belong, or in memory if that place is unsafe or has no room.

    Raises:
        ResourceError: No place is safe and has room.
    """
    path, descriptor = _new_folder()
    with Folder(descriptor, path, is_shared=False) as folder:
        folder.lock(exclusive=True)
        try:
            yield path
        finally:
            _remove(path)


def _new_folder() -> tuple[Path, int]:
    reasons = []
    for place in _places():
        try:
            if place is None:
                raise FileNotFoundError("no folder for temporary files can be written")
            if reason := _distrust_way(place):
                raise PermissionError(f"others could exchange what is in {place}: {reason}")
            found = os.statvfs(place)
            if found.f_bavail * found.f_frsize < _ROOM:
                raise OSError(f"{place} has {found.f_bavail * found.f_frsize} bytes left")
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            return path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            reasons.append(str(error))
    raise ResourceError(f"{reasons[0]}; set TMPDIR to a folder of your own that has room")


def _distrust_way(place: Path) -> str:
    """Return why folders made in `place`, resolved, are not safe from others; empty if they are."""
    for folder in (place, *place.parents):
        found = folder.stat()
        if reason := distrust_parent(found):
            return f"{folder} {reason}"
        if found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_ISVTX:
            return f"{folder} can be written by a group"
    return ""


def _places() -> Iterator[Path | None]:
    try:
        yield Path(os.path.realpath(tempfile.gettempdir()))
    except OSError:
        yield None
    yield _MEMORY


def sweep_scratch(*, dry_run: bool = False) -> list[Path]:
    """Remove the folders that processes of this user left behind when they were killed."""
    swept = []
    for place in _places():
        if place is None:
            continue
        for path in place.glob(f"{PREFIX}*"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                with Folder(descriptor, path, is_shared=False) as folder:
                    found = os.fstat(descriptor)
                    is_old = abs(time.time() - found.st_mtime) > STALE_S
                    if found.st_uid == os.geteuid() and is_old and folder.lock(exclusive=True):
                        if not dry_run:
                            _remove(path)
                        swept.append(path)
    return swept


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
