# SPDX-License-Identifier: Apache-2.0
"""Whether an entry on the disk is still the one that was read, at the cost of two looks."""

from __future__ import annotations

from pathlib import Path

from jitgen.cache.entry import META, SIGNATURES

Stamp = tuple[int, int, int, int]
"""Numbers and times of an entry's record and signatures on the disk."""


def stamp_of(folder: Path) -> Stamp | None:
    """
    Return what changes when the entry in `folder` does, be it only its signatures; None where there
    is none. It says nothing of what is read there.
    """
    try:
        found = (folder / META).stat()
    except OSError:
        return None
    try:
        signed = (folder / SIGNATURES).stat()
    except OSError:
        return (found.st_ino, found.st_mtime_ns, 0, 0)
    return (found.st_ino, found.st_mtime_ns, signed.st_ino, signed.st_mtime_ns)
