# SPDX-License-Identifier: Apache-2.0
"""Read an entry and check every byte of it; write one so that it survives a power failure."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from jitgen.cache.area import discard
from jitgen.cache.entry import META, Damaged, Entry, Meta

MAX_FILE_BYTES = 2**30
"""No file of an entry is larger; a bigger one is not even read."""

TOUCH_S = 3600.0
"""The time of last use is rewritten at most this often, in seconds."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# The content is wrong, in contrast to "cannot be read now" (no descriptors left, stale NFS handle).
_WRONG = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EIO, errno.ENXIO})


def read_entry(directory: Path, key: str, *, is_used: bool = False) -> Entry:
    """
    Return the entry in `directory`, once every digest was checked.

    Each file is opened once, relative to the opened folder, so that all of them belong together.
    With `is_used`, the folder's time, by which pruning goes, is set to now if older than `TOUCH_S`.

    Raises:
        FileNotFoundError: There is no such folder.
        Damaged: It is no folder, or its content is not what was published.
        OSError: It cannot be read just now.
    """
    try:
        folder = os.open(directory, _OPEN | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Damaged("the entry is no folder") from None
        raise
    try:
        found = os.fstat(folder)
        try:
            meta = read_meta(folder, key)
            for name, record in meta.files.items():
                data = _read(folder, name, record["bytes"])
                if hashlib.sha256(data).hexdigest() != record["sha256"]:
                    raise Damaged(f"{name} does not have its digest")
        except Damaged as damage:
            raise Damaged(str(damage), found.st_ino) from None
        if is_used and time.time() - found.st_mtime > TOUCH_S:
            with suppress(OSError):
                os.utime(folder)
    finally:
        os.close(folder)
    return Entry(key=key, directory=directory, meta=meta)


def read_meta(folder: int | Path, key: str) -> Meta:
    """
    Return the record of entry `key` in `folder`, a path or a descriptor, without reading the files.

    Raises:
        Damaged: It is missing or wrong, or belongs to another key.
        OSError: It cannot be read just now.
    """
    if isinstance(folder, Path):
        descriptor = os.open(folder, _OPEN | os.O_DIRECTORY)
        try:
            return read_meta(descriptor, key)
        finally:
            os.close(descriptor)
    meta = Meta.decode(_read(folder, META))
    if meta.key != key:
        raise Damaged("meta.json belongs to another key")
    return meta


def _read(folder: int, name: str, num_bytes: int | None = None) -> bytes:
    """Return the bytes of regular file `name` in `folder`; it must have `num_bytes` if given."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Damaged(f"{name} is no regular file")
            if found.st_size > MAX_FILE_BYTES or num_bytes not in (None, found.st_size):
                raise Damaged(f"{name} has {found.st_size} bytes instead of {num_bytes}")
            # One more byte than expected, so that the first short read is the end of the file.
            chunks = [os.read(descriptor, found.st_size + 1)]
            while chunks[-1] and sum(map(len, chunks)) < found.st_size:
                chunks.append(os.read(descriptor, found.st_size + 1))
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _WRONG:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from None
        raise
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def write_entry(directory: Path, meta: Meta) -> None:
    """
    Turn `directory` into a finished entry: add ``meta.json``, drop strangers, sync everything.

    Files become read-only, for an edited one would be a damaged one.

    Raises:
        OSError: The disk is full, or the like.
    """
    for path in list(directory.iterdir()):
        if path.name not in meta.files:
            discard(path)
    with (directory / META).open("xb") as stream:
        stream.write(meta.encode())
    for name in (*meta.files, META):
        descriptor = os.open(directory / name, _OPEN)
        try:
            os.fchmod(descriptor, 0o444)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(directory)


def sync_folder(path: Path) -> None:
    """Make the names in folder `path` survive a power failure; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_bytes(directory: Path) -> int:
    """Return the bytes that a folder of files takes on the disk, as ``du`` counts them."""
    total = 0
    with suppress(OSError), os.scandir(directory) as found:
        total = directory.lstat().st_blocks
        total += sum(child.stat(follow_symlinks=False).st_blocks for child in found)
    return total * 512
