# SPDX-License-Identifier: Apache-2.0
"""What file system a folder lies on, and whether SQLite may trust its locks."""

from __future__ import annotations

import os
from pathlib import Path

_NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    ]
)


def filesystem_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that holds `path`, such as ``ext4``; empty: unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    target = f"{os.path.realpath(path)}/"
    best, answer = 0, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        columns = left.split()
        if len(columns) < 5 or not right:
            continue
        point = _unescape(columns[4]).rstrip("/") + "/"
        # A later mount on the same point covers the earlier one.
        if target.startswith(point) and len(point) >= best:
            best, answer = len(point), right.split()[0]
    return answer


def is_network(kind: str) -> bool:
    """Return whether file locks of SQLite cannot be trusted on a file system of type `kind`."""
    return kind in _NETWORK or kind.startswith("fuse.") or kind == "fuse"


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks in mountinfo."""
    for code, blank in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", blank)
    return text
