# SPDX-License-Identifier: Apache-2.0
"""
Who may have written what is read.

Native code is loaded from a cache, so whoever can write there can run code as its reader. Trusted
are this user and the superuser, who can do anything anyway; a folder or file of anybody else's, or
one that others may write to, is not. What counts is what was opened, by its descriptor: a path may
lead elsewhere a moment later.

Where others have to write (a volume that Kubernetes hands out, a folder that a group shares), the
setting `trust_shared` names the folder: nothing at or below it is checked then.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jitgen.errors import CacheError
from jitgen.settings import settings

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Damaged(CacheError):
    """
    Something in the cache is not what was put there; the message says in which way.

    Attributes:
        reason: The message without its subject, where that is a folder or file.
    """

    def __init__(self, reason: str, subject: object = "") -> None:
        super().__init__(f"{subject} {reason}" if subject else reason)
        self.reason = reason


class Untrusted(Damaged):
    """Somebody else could have put it there."""


def distrust(found: os.stat_result) -> str:
    """Return why a folder or file cannot be trusted; an empty reason if it can."""
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    if found.st_mode & _OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def distrust_parent(found: os.stat_result) -> str:
    """
    Return why a folder on the way to the cache cannot be trusted; an empty reason if it can.

    Its owner, and whoever may write to it, can put another folder in the place of the one below.
    Everybody may write to one with the sticky bit, as ``/tmp`` has: only owners rename there. A
    group may write: private groups and project folders look so, and what they could put in the
    place of the cache would not belong to this user. Whoever owns ``/`` is trusted as the superuser
    is, which is another number where this process lives in a user namespace.
    """
    user = os.geteuid()
    if found.st_uid not in (user, 0) and found.st_uid != _owner_of_everything():
        return f"belongs to user {found.st_uid}, not to you (user {user})"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "can be written by everybody"
    return ""


def _owner_of_everything() -> int:
    try:
        return Path("/").stat().st_uid
    except OSError:
        return 0


def shared_folders() -> tuple[Path, ...]:
    """Return the folders that the settings trust although others may write there, resolved."""
    return tuple(Path(os.path.realpath(path)) for path in settings.trust_shared)


def is_shared(path: Path, shared: tuple[Path, ...]) -> bool:
    """Return whether the resolved `path` is one of `shared`, or lies below one."""
    return any(path == folder or folder in path.parents for folder in shared)
