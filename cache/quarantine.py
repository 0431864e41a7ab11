# SPDX-License-Identifier: Apache-2.0
"""
Lists the quarantine: which entries were set aside, when, and for which fault.

No reason is written when an entry is set aside, because a disk that damages entries would damage
that as well. The reason is found by reading the entry again.

::

    <root>/v1/quarantine/<key>-<8 hex digits>    an entry as it was, until it is swept after a day
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from jitgen.cache.entry import disk_bytes, is_key, read_meta
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.inventory import verification
from jitgen.cache.prune import ALL_S
from jitgen.cache.publishing import sweep
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.support import vocabulary as v

_NAME = re.compile(r"(.+)-[0-9a-f]{8}")

UNLOADABLE = "every byte is right, but a process could not load it"
"""Reason for an entry in quarantine that has no damage."""


@frozen
class Damage:
    """
    A damaged entry, or something else in the place of one.

    Attributes:
        key: Its key; empty if the file or folder is not an entry.
        name: Name of the kernel; empty where its record cannot be read.
        reason: The fault that was found.
        path: Path at which it lies.
        set_aside: Time at which it was set aside, seconds since 1970; None: it is in its place
            still.
        disk_bytes: Disk space in bytes, as ``du`` counts it.
    """

    key: v.Key
    name: v.Name
    reason: v.Reason
    path: v.File
    set_aside: v.Since1970 | None = None
    disk_bytes: v.Bytes = 0


def quarantined(base: Folder) -> list[Damage]:
    """Return the entries in quarantine, the last first; none if the folder cannot be listed."""
    found = []
    with suppress(OSError, Damaged), base.folder("quarantine") as quarantine:
        for name in quarantine.names():
            with suppress(OSError):
                known = quarantine.stat(name)
                if known is not None:
                    found.append(_examined(quarantine, name, known.st_mtime))
    return sorted(found, key=lambda damage: (-(damage.set_aside or 0), damage.path))


def damage_in_place(base: Folder, key: str) -> Damage | None:
    """Return the damage of entry `key` in its usual place; None if it is good or absent."""
    path = str(base.path / "entries" / key[:2] / key)
    try:
        with base.below("entries", key[:2], key) as folder:
            return damage_in(folder, key)
    except FileNotFoundError:
        return None
    except (OSError, Damaged) as error:
        return Damage(key=key, name="", reason=str(error), path=path)


def damage_in(folder: Folder, key: str, *, otherwise: str = "") -> Damage | None:
    """
    Return the damage of the entry in `folder`. If the entry is good, the reason is `otherwise`, or
    the result is None if `otherwise` is empty.
    """
    reason = verification(folder, key).reason or otherwise
    if not reason:
        return None
    name, size = "", disk_bytes(folder)
    with suppress(OSError, Damaged):
        name = read_meta(folder, key).name
    return Damage(key=key, name=name, reason=reason, path=str(folder.path), disk_bytes=size)


def empty(base: Folder) -> int:
    """Remove the contents of the quarantine; return how many entries were removed."""
    with suppress(OSError, Damaged), base.folder("quarantine") as quarantine:
        return len(sweep(quarantine, ALL_S))
    return 0


def _examined(quarantine: Folder, name: str, set_aside: float) -> Damage:
    match = _NAME.fullmatch(name)
    original = match[1] if match else name
    key, path = original if is_key(original) else "", str(quarantine.path / name)
    reason = f"it stood where {original} should be"
    if key:
        try:
            with quarantine.folder(name) as folder:
                found = damage_in(folder, key, otherwise=UNLOADABLE)
                if found is not None:
                    return replace(found, set_aside=set_aside)
        except Damaged as damage:
            reason = damage.reason
    return Damage(key=key, name="", reason=reason, path=path, set_aside=set_aside)
