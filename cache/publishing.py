# SPDX-License-Identifier: Apache-2.0
"""
Put an entry into the store, past whatever stands in its place.

A finished folder is renamed into place, which one of several processes wins; the others find a good
entry there and are content. What is no good entry is set aside first: a damaged one, a file in the
place of a folder, a shard that somebody else could have written.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from jitgen.cache.entry import Entry, read_entry, write_entry
from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.cache.removal import set_aside

_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


def publish_entry(base: Folder, entries: Folder, entry: Entry) -> bool:
    """
    Put `entry` into `entries`, with drafts and a quarantine in `base`.

    Returns whether it was this process that did: False where a good entry was there already.

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
                if is_good(shard, entry.key):
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
    """Set `name` in `parent` aside; returns how, as `set_aside` does."""
    with suppress(FileNotFoundError), base.service("quarantine") as quarantine:
        return set_aside(parent, name, quarantine, f"{name}-{unique_name()[:8]}")
    return "removed"


def is_good(shard: Folder, key: str) -> bool:
    """Return whether there is an entry `key` whose every byte is right."""
    try:
        with shard.folder(key) as folder:
            read_entry(folder, key)
    except (Damaged, FileNotFoundError):
        return False
    return True
