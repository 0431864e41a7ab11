# SPDX-License-Identifier: Apache-2.0
"""Finds out why a root does not serve an entry, for messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field

from jitgen.cache.disk import cause
from jitgen.cache.entry import Entry, read_entry
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.root import Root
from jitgen.errors import UnsafeCacheRoot
from jitgen.support.failing import is_passing
from jitgen.support.frozen import frozen

NOT_THERE = "not there"


@frozen
class Absence:
    """
    Why one root does not serve an entry.

    Attributes:
        place: Name of the root in messages: ``JITGEN_BASE /opt/jitgen``.
        reason: Why it does not serve the entry; empty if it has a good one.
        is_passing: Whether the entry may exist but could not be read at this time.
        entry: The entry, where it is good.
    """

    place: str
    reason: str
    is_passing: bool = False
    entry: Entry | None = field(default=None, repr=False)


def absence_of(root: Root, key: str, place: str) -> Absence:
    """
    Return why `root`, which messages call `place`, does not serve entry `key`; changes nothing.
    """
    try:
        base = root.open()
        if base is None:
            reason = NOT_THERE if root.path.is_dir() else "there is no such folder"
            return Absence(place=place, reason=reason)
        with base:
            try:
                with root.entries(base) as entries, entries.below(key[:2], key) as folder:
                    return Absence(place=place, reason="", entry=read_entry(folder, key))
            except FileNotFoundError:
                return Absence(place=place, reason=_set_aside(base, key) or NOT_THERE)
    except (Damaged, UnsafeCacheRoot) as error:
        return Absence(place=place, reason=str(error))
    except OSError as error:
        return Absence(
            place=place, reason=f"cannot be read now, {cause(error)}", is_passing=is_passing(error)
        )


def _set_aside(base: Folder, key: str) -> str:
    """Return a message if entry `key` lies in the quarantine of `base`; empty if not."""
    with suppress(OSError, Damaged), base.folder("quarantine") as quarantine:
        if any(name.startswith(f"{key}-") for name in quarantine.names()):
            return "set aside as damaged, see: jitgen cache quarantine"
    return ""
