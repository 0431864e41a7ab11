# SPDX-License-Identifier: Apache-2.0
"""What ``jitgen doctor`` says of the disk cache: whose it is, what is in it, whether it is kept."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.cli.findings import Finding, Health
from jitgen.cli.output import counted, human_size
from jitgen.errors import JitgenError

if TYPE_CHECKING:
    from jitgen.cache import Store

_ENOUGH_BYTES = 2**26
"""What is free should hold some hundred kernels; else it is told."""


def cache_findings() -> Iterator[Finding]:
    """Yield what is to be said of the roots, what they hold, and whether they can be written."""
    section = "cache"
    try:
        from jitgen.cache import Store
        from jitgen.cache.root import filesystem_type

        store = Store.open()
        yield Finding(section=section, name="root", value=f"{store.root}{_access(store.root)}")
        yield from (_base(section, path) for path in store.bases)
        kind = filesystem_type(store.root)
        yield Finding(section=section, name="file system", value=kind or "unknown")
        totals = store.stats()
        reason = store.index.reason  # it may have turned out just now that there can be none
        yield Finding(
            section=section,
            name="index",
            value=f"none: {reason}" if reason else "in use",
            health=Health.NOTE if reason else Health.OK,
        )
    except (JitgenError, OSError) as error:
        yield Finding(section=section, name="root", value=str(error), health=Health.FAIL)
        return
    entries = f"{counted(totals.entries, 'entry', 'entries')}, {human_size(totals.disk_bytes)}"
    damaged = totals.by_arch.get("", 0)
    yield Finding(
        section=section,
        name="entries",
        value=f"{entries}, {damaged} of them damaged" if damaged else entries,
        health=Health.WARN if damaged else Health.OK,
        advice="see: jitgen cache verify" if damaged else "",
    )
    yield Finding(section=section, name="tuned", value=_tuned(totals.tuned))
    yield Finding(
        section=section,
        name="failures",
        value=str(totals.failures),
        health=Health.WARN if totals.failures else Health.OK,
        advice="see: jitgen cache ls --failures" if totals.failures else "",
    )
    yield Finding(
        section=section,
        name="quarantined",
        value=str(totals.quarantined),
        health=Health.WARN if totals.quarantined else Health.OK,
        advice="damaged entries were set aside, see: jitgen cache quarantine"
        if totals.quarantined
        else "",
    )
    yield _free(section, store.root)
    yield _writable(section, store)


def _base(section: str, path: Path) -> Finding:
    """Say whether a root that is only read can be."""
    from jitgen.cache import Store

    try:
        count = sum(1 for _ in Store(path, "ro").entries())
    except JitgenError as error:
        return Finding(section=section, name="base", value=str(error), health=Health.FAIL)
    is_there = path.is_dir()
    value = f"{path}: {counted(count, 'entry', 'entries')}" if is_there else f"{path}: not there"
    return Finding(
        section=section, name="base", value=value, health=Health.OK if is_there else Health.WARN
    )


def _tuned(count: int) -> str:
    """Return how many problems were measured, here and for the shipped table."""
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
    """Return mode and owner of the root, as text behind its path."""
    try:
        found = root.stat()
    except OSError:
        return " (does not exist yet)"
    return f" (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid})"


def _free(section: str, root: Path) -> Finding:
    """Say how much room the file system of the root has left."""
    from jitgen.cache.disk import room

    try:
        found = room(root)
    except OSError as error:
        return Finding(section=section, name="free", value=str(error), health=Health.WARN)
    value = f"{human_size(found.free_bytes)} of {human_size(found.total_bytes)}"
    is_full = found.free_bytes < _ENOUGH_BYTES or not found.has_inodes
    return Finding(
        section=section,
        name="free",
        value=value if found.has_inodes else f"{value}, but no inodes: no file can be made",
        health=Health.WARN if is_full else Health.OK,
        advice="there may be no room for kernels: make some, or move JITGEN_CACHE_DIR"
        if is_full
        else "",
    )


def _writable(section: str, store: Store) -> Finding:
    """Try whether a kernel would be kept."""
    if store.mode != "rw":
        return Finding(section=section, name="writable", value=f"not wanted ({store.mode})")
    from jitgen.cache.disk import cause, remedy

    try:
        store.probe()
    except (JitgenError, OSError) as error:
        lost = "kernels compiled here are lost when their process ends"
        advice = remedy(error)
        return Finding(
            section=section,
            name="writable",
            value=f"no: {cause(error)}",
            health=Health.WARN,
            advice=f"{lost}: {advice}" if advice else lost,
        )
    return Finding(section=section, name="writable", value="yes")
