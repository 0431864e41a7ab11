# SPDX-License-Identifier: Apache-2.0
"""
The findings of ``jitgen doctor`` about the disk cache: owner, content, whether it can be written.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.cli.findings import Finding, Health, about
from jitgen.cli.output import counted, human_size
from jitgen.errors import JitgenError

if TYPE_CHECKING:
    from jitgen.cache import Store

_ENOUGH_BYTES = 2**26
"""Free bytes below which a warning is given: some hundred kernels fit."""


def cache_findings() -> Iterator[Finding]:
    """Yield the state of each root: its content, and whether it can be written."""
    section = "cache"
    try:
        from jitgen.cache import Store
        from jitgen.cache.root import filesystem_type

        store = Store.open()
        yield about(section, "root", f"{store.root}{_access(store.root)}")
        yield from (_base(section, path) for path in store.bases)
        kind = filesystem_type(store.root)
        yield about(section, "file system", kind or "unknown")
        totals = store.stats()
        reason = store.index.reason  # the index may just have turned out to be unusable
        yield about(
            section, "index", f"none: {reason}" if reason else "in use", Health.NOTE, when=reason
        )
    except (JitgenError, OSError) as error:
        yield about(section, "root", str(error), Health.FAIL)
        return
    entries = f"{counted(totals.entries, 'entry', 'entries')}, {human_size(totals.disk_bytes)}"
    damaged = totals.by_arch.get("", 0)
    yield about(
        section,
        "entries",
        f"{entries}, {damaged} of them damaged" if damaged else entries,
        Health.WARN,
        "see: jitgen cache verify",
        when=damaged,
    )
    yield about(section, "tuned", _tuned(totals.tuned))
    yield about(
        section,
        "failures",
        str(totals.failures),
        Health.WARN,
        "see: jitgen cache ls --failures",
        when=totals.failures,
    )
    yield about(
        section,
        "quarantined",
        str(totals.quarantined),
        Health.WARN,
        "damaged entries were set aside, see: jitgen cache quarantine",
        when=totals.quarantined,
    )
    yield _free(section, store.root)
    yield _writable(section, store)


def _base(section: str, path: Path) -> Finding:
    """Report whether a read-only root can be read."""
    from jitgen.cache import Store

    try:
        count = sum(1 for _ in Store(path, "ro").entries())
    except JitgenError as error:
        return about(section, "base", str(error), Health.FAIL)
    is_there = path.is_dir()
    value = f"{path}: {counted(count, 'entry', 'entries')}" if is_there else f"{path}: not there"
    return about(section, "base", value, Health.WARN, when=not is_there)


def _tuned(count: int) -> str:
    """
    Return the numbers of measured problems, of this machine and of the shipped table, as text.
    """
    from jitgen.selection import measurements as tuned
    from jitgen.targets.devices import default_arch

    text = f"{counted(count, 'problem')} measured here"
    try:
        arch = default_arch()
        name = tuned.shipped_device(arch)
        shipped = tuned.shipped(arch, name)
    except JitgenError:
        return text  # the target's own line says what is wrong with it
    return f"{text}, {len(shipped)} in the shipped table of {name}" if shipped else text


def _access(root: Path) -> str:
    """Return mode and owner of the root, as text that follows its path."""
    try:
        found = root.stat()
    except OSError:
        return " (does not exist yet)"
    return f" (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid})"


def _free(section: str, root: Path) -> Finding:
    """Report the free space of the file system of the root."""
    from jitgen.cache.disk import disk_space

    try:
        found = disk_space(root)
    except OSError as error:
        return about(section, "free", str(error), Health.WARN)
    value = f"{human_size(found.free_bytes)} of {human_size(found.total_bytes)}"
    is_full = found.free_bytes < _ENOUGH_BYTES or not found.has_inodes
    return about(
        section,
        "free",
        value if found.has_inodes else f"{value}, but no inodes: no file can be made",
        Health.WARN,
        "there may be no room for kernels: make some, or move JITGEN_CACHE_DIR",
        when=is_full,
    )


def _writable(section: str, store: Store) -> Finding:
    """Report whether a kernel could be written to the cache."""
    if store.mode != "rw":
        return about(section, "writable", f"not wanted ({store.mode})")
    from jitgen.cache.disk import cause, remedy

    try:
        store.probe()
    except (JitgenError, OSError) as error:
        lost = "kernels compiled here are lost when their process ends"
        advice = remedy(error)
        return about(
            section,
            "writable",
            f"no: {cause(error)}",
            Health.WARN,
            f"{lost}: {advice}" if advice else lost,
        )
    return about(section, "writable", "yes")
