# SPDX-License-Identifier: Apache-2.0
"""
The cache of `jitgen verify`: the emulator's stub, and kernels with the PTX of their source.

It is beside compiled kernels, under a root that no other user can write to. Each file has its
SHA-256; a file with another digest counts as missing. If the cache is read-only, it is not used.
All files can be made again, so the total size is limited, and the oldest files are removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.root import Root
from jitgen.errors import CacheError, SettingError
from jitgen.settings import settings

MOST_BYTES = 2**28
"""Limit in bytes for all files: some 500 kernels."""

_MOST_BYTES_EACH = 2**24
_FOLDER, _DIGEST = "emulator", ".sha256"
_TROUBLE = (OSError, CacheError, SettingError)


def find(name: str) -> bytes | None:
    """Return the content of file `name`; None if it is missing, damaged or not readable."""
    if settings.cache == "rw":
        with suppress(Damaged, *_TROUBLE), _opened() as (folder, _):
            content = folder.read(name, _MOST_BYTES_EACH)
            if folder.read(f"{name}{_DIGEST}", 64) == _digest(content):
                return content
    return None


def store(name: str, content: bytes) -> None:
    """Store `content` as file `name`, unless it is too large or the cache cannot be written."""
    if settings.cache == "rw" and len(content) <= _MOST_BYTES_EACH:
        with suppress(*_TROUBLE), _opened() as (folder, drafts):
            folder.replace(name, content, drafts, sync=False)
            folder.replace(f"{name}{_DIGEST}", _digest(content), drafts, sync=False)
            _prune(folder)


@contextmanager
def _opened() -> Iterator[tuple[Folder, Folder]]:
    """
    Yield the folder of these files, and the one for drafts.

    Raises:
        OSError, CacheError, SettingError: The cache cannot be written.
    """
    with (
        Root(settings.cache_dir).create() as base,
        base.service(_FOLDER) as folder,
        base.service("tmp") as drafts,
    ):
        yield folder, drafts


def _prune(folder: Folder) -> None:
    """
    Remove the oldest files until the rest is within the limit; other processes may do so, too.
    """
    files = [(found, name) for name in folder.names() if (found := folder.stat(name)) is not None]
    total = sum(found.st_size for found, _ in files)
    for found, name in sorted(files, key=lambda file: file[0].st_mtime_ns):
        if total <= MOST_BYTES:
            return
        folder.discard(name)
        total -= found.st_size


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode("ascii")
