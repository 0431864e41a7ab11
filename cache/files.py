# SPDX-License-Identifier: Apache-2.0
"""Read an entry and check every byte of it; write one so that it survives a power failure."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitgen.cache.entry import LIMITS, META, Entry, Meta
from jitgen.cache.folder import Folder, unique_name
from jitgen.cache.trust import Damaged

TOUCH_S = 3600.0
"""The time of last use is rewritten at most this often, in seconds."""

_TRIES = 3  # to make and lock a draft that sweeps look at meanwhile


def read_entry(folder: Folder, key: str, *, is_used: bool = False) -> Entry:
    """
    Return the entry in the open `folder`, once every digest was checked.

    Each file is read once, and what was read is what was checked and what the entry holds. With
    `is_used`, the folder's time, by which pruning goes, is set to now if older than `TOUCH_S`.

    Raises:
        Damaged: Its content is not what was published, or somebody else could have written it.
        OSError: It cannot be read just now.
    """
    meta = read_meta(folder, key)
    files = {}
    for name, record in meta.files.items():
        files[name] = _read(folder, name, record["bytes"])
        if hashlib.sha256(files[name]).hexdigest() != record["sha256"]:
            raise Damaged(f"{name} does not have its digest")
    if is_used and time.time() - os.fstat(folder.descriptor).st_mtime > TOUCH_S:
        with suppress(OSError):
            folder.touch()
    return Entry(key=key, meta=meta, files=files, directory=folder.path)


def read_meta(folder: Folder, key: str) -> Meta:
    """
    Return the record of entry `key` in `folder`, without reading the files.

    Raises:
        Damaged: It is missing or wrong, or belongs to another key.
        OSError: It cannot be read just now.
    """
    meta = Meta.decode(_read(folder, META))
    if meta.key != key:
        raise Damaged("meta.json belongs to another key")
    return meta


def _read(folder: Folder, name: str, num_bytes: int | None = None) -> bytes:
    try:
        return folder.read(name, LIMITS[name], num_bytes=num_bytes)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None


@contextmanager
def draft(folder: Folder) -> Iterator[tuple[Folder, str]]:
    """
    Yield a new folder in `folder`, and its name there; it is removed at the end, unless moved.

    It is locked: that tells every other process that somebody works there, leaves no file behind,
    and ends with the process.
    """
    name = unique_name()
    with folder.folder(name, create=True) as made:
        for _ in range(_TRIES):
            if made.lock(exclusive=True):
                break
            time.sleep(0.001)  # a sweep looks whether somebody holds it
        try:
            yield made, name
        finally:
            folder.discard(name)


def write_entry(drafts: Folder, entry: Entry, to: Folder) -> None:
    """
    Put `entry` into the folder `to` in one step, written in full and synced before.

    Files are read-only, for an edited one would be a damaged one.

    Raises:
        OSError: The disk is full, `to` holds the entry already, or the like.
    """
    for attempt in range(_TRIES):
        try:
            with draft(drafts) as (folder, name):
                for file, data in entry.files.items():
                    folder.write(file, data, mode=0o444)
                folder.write(META, entry.meta.encode(), mode=0o444)
                folder.sync()
                drafts.move(name, to, entry.key)
            break
        except FileNotFoundError:  # a sweep saw the draft before it was locked
            if attempt == _TRIES - 1:
                raise
    with suppress(OSError):
        to.sync()


def disk_bytes(folder: Folder) -> int:
    """Return the bytes that a folder of files takes on the disk, as ``du`` counts them."""
    with suppress(OSError), os.scandir(folder.descriptor) as found:
        total = os.fstat(folder.descriptor).st_blocks
        return 512 * (total + sum(f.stat(follow_symlinks=False).st_blocks for f in found))
    return 0


def entry_path(base: Path, key: str) -> Path:
    """Return where entry `key` lies below ``<root>/v1``, for messages."""
    return base / "entries" / key[:2] / key
