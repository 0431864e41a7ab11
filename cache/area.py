# SPDX-License-Identifier: Apache-2.0
"""
Build areas: folders in which one process builds one entry.

The process holds an open descriptor of the folder with an ``flock`` on it. That tells every other
process that somebody still works there, leaves no file behind, and ends with the process.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitgen.cache.lock import is_locked

STALE_S = 3600.0
"""Age in seconds from which a build area without a living owner is removed."""

_kept: dict[Path, int] = {}  # folder -> the process that keeps it; its descriptor stays open


def unique_name() -> str:
    """Return a file name that no other process uses."""
    return os.urandom(16).hex()


@contextmanager
def build_area(parent: Path | None) -> Iterator[Path]:
    """
    Yield a new folder in `parent`, or outside of every store where that is None.

    It is removed at the end, unless it was renamed or kept.

    Raises:
        OSError: `parent` cannot be written.
    """
    if parent is None:
        import tempfile

        path = Path(tempfile.mkdtemp(prefix="jitgen-"))
    else:
        path = parent / unique_name()
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without flock: then the age alone has to tell
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield path
    finally:
        if path not in _kept:
            discard(path)
            os.close(descriptor)


def keep(path: Path) -> None:
    """Keep the build area `path` until this process ends: it could not be published."""
    _kept[path] = os.getpid()


@atexit.register
def remove_kept() -> None:
    """Remove what this process kept; a forked child leaves its parent's folders alone."""
    for path, owner in list(_kept.items()):
        if owner == os.getpid():
            discard(path)


def sweep(parent: Path, older_than_s: float, *, dry_run: bool = False) -> list[Path]:
    """
    Remove what lies in `parent`, is older than `older_than_s` seconds and belongs to no process.

    Returns what was removed, or would be in a dry run.
    """
    try:
        found = sorted(parent.iterdir())
    except OSError:
        return []
    now = time.time()
    swept = []
    for path in found:
        with suppress(OSError):
            if now - path.lstat().st_mtime > older_than_s and not is_locked(path):
                swept.append(path)
                if not dry_run:
                    discard(path)
    return swept


def discard(path: Path) -> None:
    """Remove the folder or file `path`; a symbolic link is removed and not followed."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
