# SPDX-License-Identifier: Apache-2.0
"""
Decides whether a file or folder is trusted, by its owner and by the users who may write to it.

Another user could have written a file that is run, or that decides what is run. `distrust` and
`distrust_parent` judge an opened file or folder by its ``stat`` result. The cache and
`jitgen.ownership.files` follow these rules.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jitgen.settings import settings

OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a mode that let other users than the owner write."""


def distrust(found: os.stat_result) -> str:
    """Return why a folder or file is not trusted; empty if it is."""
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    if found.st_mode & OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def distrust_parent(found: os.stat_result) -> str:
    """
    Return why a folder above a trusted one is not trusted itself; empty if it is.

    Its owner, and every user who may write to it, can replace the folder below. A folder with the
    sticky bit, like ``/tmp``, may be writable for all users, since only owners can rename there. A
    group may have write access, as in private groups and project folders: a folder that its members
    put in the place of the cache would not belong to this user. The owner of ``/`` is trusted like
    the superuser, who has another number inside a user namespace.
    """
    if reason := stranger(found):
        return reason
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "can be written by everybody"
    return ""


def shared_folders() -> tuple[Path, ...]:
    """Return the folders of JITGEN_TRUST_SHARED, resolved: trusted although others may write."""
    return tuple(Path(os.path.realpath(path)) for path in settings.trust_shared)


def is_shared(path: Path, shared: tuple[Path, ...]) -> bool:
    """Return whether the resolved `path` is one of the folders `shared`, or below one."""
    return any(path == folder or folder in path.parents for folder in shared)


def stranger(found: os.stat_result) -> str:
    """
    Return whose a file or folder is, as a text, if its owner is neither this user, the superuser
    nor the owner of ``/``; else an empty text.
    """
    user = os.geteuid()
    if found.st_uid not in (user, 0) and found.st_uid != _owner_of_everything():
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    return ""


def _owner_of_everything() -> int:
    try:
        return Path("/").stat().st_uid
    except OSError:
        return 0
