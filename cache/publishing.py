# SPDX-License-Identifier: Apache-2.0
"""
Puts entries into the store, also if something stands in their place, and takes entries out of it.

A finished folder is renamed into place. If several processes do this, one succeeds; the others find
a good entry there and use it. Anything else in its place is set aside first: a damaged entry, a
file in the place of a folder, a shard that another user could have written.

A rename takes an entry away in one step, too, so that no reader sees half of it. Not every file
system can do that. On the lower layer of an overlay, where the files of a container's image lie, a
folder cannot be renamed: there the files are removed one by one, which leaves whiteouts in the
layer above. And files of another user can only be renamed within their folder. Whether something is
gone is checked afterwards, never assumed.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

from jitgen.cache.entry import META, Entry, read_entry, write_entry
from jitgen.cache.folder import ASIDE, Damaged, Folder, unique_name

_SKEW_S = 60.0
_CANNOT_RENAME = frozenset({errno.EXDEV, errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS})


def set_aside(parent: Folder, name: str, quarantine: Folder, new_name: str) -> str:
    """
    Make `name` vanish from `parent`: move it into `quarantine` as `new_name`; if that is not
    possible, hide it in `parent` under another name; if neither is, remove it. Returns ``moved``
    for the first two, ``removed``, or an empty text if it is still there.

    Raises:
        FileNotFoundError: `name` does not exist.
    """
    try:
        parent.move(name, quarantine, new_name)
    except OSError as error:
        if error.errno not in _CANNOT_RENAME:
            raise
    else:
        with suppress(OSError):  # sweeps count from now; of a link, its own time is set
            os.utime(new_name, dir_fd=quarantine.descriptor, follow_symlinks=False)
        return "moved"
    with suppress(OSError):
        parent.move(name, parent, f"{ASIDE}{unique_name()}")
        return "moved"
    return "removed" if _remove_in_place(parent, name) else ""


def remove(parent: Folder, name: str, drafts: Folder) -> bool:
    """Remove the folder `name` from `parent`; returns whether it was there and is gone."""
    grave = unique_name()
    try:
        parent.move(name, drafts, grave)
    except FileNotFoundError:
        return False
    except OSError:
        return _remove_in_place(parent, name)
    drafts.discard(grave)
    return True


def _remove_in_place(parent: Folder, name: str) -> bool:
    """Remove entry `name` file by file, its record first; return whether the entry is gone."""
    with suppress(OSError, Damaged), parent.folder(name) as folder:
        folder.discard(META)
    return parent.discard(name)


def sweep(folder: Folder, older_than_s: float, *, dry_run: bool = False) -> list[str]:
    """
    Remove everything in `folder` that is older than `older_than_s` seconds and locked by no
    process.

    Returns the names of what was removed, or would be in a dry run.
    """
    swept = []
    for name in sorted(folder.names()):
        with suppress(OSError):
            found = folder.stat(name)
            if found is None or age(found.st_mtime) <= older_than_s or is_held(folder, name):
                continue
            if dry_run or folder.discard(name):
                swept.append(name)
    return swept


def sweep_beside(folder: Folder, *, dry_run: bool = False) -> list[str]:
    """Remove what `set_aside` could only rename within `folder`; returns the names."""
    names = [name for name in sorted(folder.names()) if name.startswith(ASIDE)]
    return [name for name in names if dry_run or folder.discard(name)]


def is_held(folder: Folder, name: str) -> bool:
    """Return whether a process holds the lock of the file or folder `name` now."""
    try:
        descriptor = os.open(
            name,
            os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
            dir_fd=folder.descriptor,
        )
    except OSError:
        return False
    with Folder(descriptor, folder.path / name, is_shared=folder.is_shared) as opened:
        return not opened.lock(exclusive=False)


def age(mtime: float) -> float:
    """
    Return the seconds since `mtime`.

    A time in the future, as a clock that was set back leaves behind, counts as infinitely long ago:
    else such files would stay for ever.
    """
    seconds = time.time() - mtime
    return seconds if seconds > -_SKEW_S else math.inf


_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


def publish_entry(
    base: Folder, entries: Folder, entry: Entry, accepts: Callable[[Entry], bool]
) -> bool:
    """
    Put `entry` into `entries`, with drafts and a quarantine in `base`.

    Returns True if this process put it there, and False if a good entry that every reader `accepts`
    was there already.

    Raises:
        OSError: The disk is full or read-only, or the like.
        Damaged: Something is in the way that cannot be moved.
    """
    with base.service("tmp") as drafts, entries.service(entry.key[:2]) as shard:
        for is_last in (False, True):
            try:
                _write(drafts, entry, shard)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if is_good(shard, entry.key, accepts):
                    return False
                if is_last:
                    raise
                clear_way(base, shard, entry.key)
            else:
                return True
    raise AssertionError("one of the two rounds returned or raised")


def _write(drafts: Folder, entry: Entry, shard: Folder) -> None:
    try:
        write_entry(drafts, entry, shard)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        write_entry(shard, entry, shard)  # the entries lie on a disk of their own


def clear_way(base: Folder, parent: Folder, name: str) -> str:
    """Set `name` in `parent` aside; returns ``moved``, ``removed``, or "" if it stays."""
    with suppress(FileNotFoundError), base.service("quarantine") as quarantine:
        return set_aside(parent, name, quarantine, f"{name}-{unique_name()[:8]}")
    return "removed"


def is_good(shard: Folder, key: str, accepts: Callable[[Entry], bool]) -> bool:
    """
    Return whether there is an entry `key` whose every byte is right, and which is accepted.

    An entry that the disk cannot read also counts as bad: the caller can replace it, while
    otherwise every process would compile the kernel.
    """
    try:
        with shard.folder(key) as folder:
            return accepts(read_entry(folder, key))
    except (Damaged, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno == errno.EIO:
            return False
        raise
