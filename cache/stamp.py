# SPDX-License-Identifier: Apache-2.0
"""
A stamp that tells whether an entry on the disk has changed since it was read; it costs two stats.
"""

from __future__ import annotations

from pathlib import Path

from jitgen.cache.entry import META, SIGNATURES

Stamp = tuple[int, int, int, int]
"""Numbers and times of an entry's record and signatures on the disk."""


def stamp_of(folder: Path) -> Stamp | None:
    """
    Return a value that changes whenever the entry in `folder` or its signatures change; None if
    there is no entry.
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
