# SPDX-License-Identifier: Apache-2.0
"""
Who owns a file or a folder, who else may write to it, and whether what lies there is trusted.

What is read and then run, or decides what is run, could have been put there by another user.
`distrust` and `distrust_parent` judge what was opened, by its ``stat`` result. The cache and
`jitgen.ownership.files` follow them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jitgen.settings import settings

OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a mode by which others than the owner may write."""


def distrust(found: os.stat_result) -> str:
    """Return why a folder or file cannot be trusted; an empty reason if it can."""
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    if found.st_mode & OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def distrust_parent(found: os.stat_result) -> str:
    """
    Return why a folder on the way to what is trusted cannot be; an empty reason if it can.

    Its owner, and every user who may write to it, can put another folder in the place of the one
    below. All users may write to one with the sticky bit, as ``/tmp`` has: only owners rename
    there. A group may write: private groups and project folders look so, and what they could put in
    the place of the cache would not belong to this user. The owner of ``/`` is trusted as the
    superuser is, which is another number where this process lives in a user namespace.
    """
    if reason := stranger(found):
        return reason
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "can be written by everybody"
    return ""


def shared_folders() -> tuple[Path, ...]:
    """Return the folders that the settings trust although others may write there, resolved."""
    return tuple(Path(os.path.realpath(path)) for path in settings.trust_shared)


def is_shared(path: Path, shared: tuple[Path, ...]) -> bool:
    """Return whether the resolved `path` is one of `shared`, or lies below one."""
    return any(path == folder or folder in path.parents for folder in shared)


def stranger(found: os.stat_result) -> str:
    """Return whose it is where that is neither this user nor the superuser; empty if it is."""
    user = os.geteuid()
    if found.st_uid not in (user, 0) and found.st_uid != _owner_of_everything():
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    return ""


def _owner_of_everything() -> int:
    try:
        return Path("/").stat().st_uid
    except OSError:
        return 0
