# SPDX-License-Identifier: Apache-2.0
"""
``jitgen cache``: look into the store on disk.

Nothing here imports torch, the compiler or Jinja: listing 10,000 entries takes a fraction of a
second, most of which is Python's own start.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jitgen.cli.lazy import LazyGroup
from jitgen.cli.options import ARCH, with_output
from jitgen.cli.output import Column, Output, counted, human_size
from jitgen.config import Arch
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import EntryInfo, Store
    from jitgen.remote.probe import BackendStatus

_LAST_SECOND = 253402300799.0  # of the year 9999

KEY_DIGITS = 12
"""Digits of a key in tables: enough to name one among millions."""

_HERE = "jitgen.cli.cache"
_WHY = "jitgen.cli.cache_explain"
_EDIT = "jitgen.cli.cache_edit"
_REMOTE = "jitgen.cli.cache_remote"
_COMMANDS = {
    "dir": (f"{_HERE}:show_dir", "Print the root of the cache."),
    "ls": (f"{_HERE}:ls", "List the entries, or the remembered failures."),
    "stats": (f"{_HERE}:stats", "Print totals."),
    "report": ("jitgen.cli.cache_report:report", "Make a page about the whole cache."),
    "explain": (f"{_WHY}:explain", "Say why a kernel is, or is not, in the cache."),
    "quarantine": (f"{_WHY}:quarantine", "List what was set aside as damaged, or remove it."),
    "verify": (f"{_EDIT}:verify", "Check every byte of every entry."),
    "prune": (f"{_EDIT}:prune", "Remove the least recently used entries above a size."),
    "rm": (f"{_EDIT}:rm", "Remove entries, and forget that they failed."),
    "clear": (f"{_EDIT}:clear", "Remove everything."),
    "pin": (f"{_EDIT}:pin", "Spare entries from pruning."),
    "unpin": (f"{_EDIT}:unpin", "Let pruning remove entries again."),
    "sign": (f"{_REMOTE}:sign", "Sign entries with a private key."),
    "push": (f"{_REMOTE}:push", "Put entries into an object store."),
    "pull": (f"{_REMOTE}:pull", "Take entries from an object store."),
    "adopt": (f"{_EDIT}:adopt", "Let this machine's compiler and linker publish from now on."),
}


@click.group(cls=LazyGroup, commands_at=_COMMANDS)
def cache() -> None:
    """Look into the disk cache and clean it."""


@click.command("dir")
@with_output
def show_dir(output: Output) -> None:
    """Print the root of the cache, whether or not it exists."""
    root, origin = settings.origin("cache_dir")
    bases = [str(path) for path in settings.base]
    is_there = False
    with suppress(OSError):  # Path.is_dir raises where a folder above may not be searched
        is_there = root.is_dir()
    elsewhere = [*settings.remote, *([settings.service] if settings.service else [])]
    document = {
        "root": str(root),
        "origin": origin,
        "exists": is_there,
        "bases": bases,
        "elsewhere": elsewhere,
    }

    def human() -> None:
        output.line(str(root))
        if bases:
            output.note(f"and, only read: {', '.join(bases)}")
        if elsewhere:
            output.note(f"and, fetched from: {', '.join(elsewhere)}")

    output.result("cache dir", document, human)


_ORDER = {
    "name": lambda info: (info.name, info.arch, info.key),
    "size": lambda info: (-info.size_bytes, info.name),
    "used": lambda info: (-info.last_use, info.name),
    "hits": lambda info: (-info.hits, info.name),
}


@click.command()
@click.option("--arch", type=ARCH, help="Only entries of this target.")
@click.option("--sort", type=click.Choice(list(_ORDER)), default="name", show_default=True)
@click.option("--failures", is_flag=True, help="List remembered failures instead.")
@with_output
def ls(output: Output, arch: Arch | None, sort: str, failures: bool) -> None:
    """List the entries, or with --failures what did not compile and will not be tried for now."""
    from jitgen.cache import Store

    store = Store.open()
    if failures:
        _list_failures(store, output)
        return
    found = sorted((e for e in store.entries() if arch in (None, e.arch)), key=_ORDER[sort])

    def human() -> None:
        if found:
            columns = [
                Column("KEY"),
                Column("SIZE", is_number=True),
                Column("HITS", is_number=True),
                Column("LAST USE"),
                Column("PINNED"),
                Column("NAME"),
            ]
            output.table(columns, [_line(output, info) for info in found])
        for base in ("", *map(str, store.bases)):
            here = [info for info in found if info.base == base]
            size = human_size(sum(info.size_bytes for info in here))
            where = f"{base}, which is only read" if base else str(store.root)
            output.note(f"{counted(len(here), 'entry', 'entries')}, {size}, in {where}")
        for place in _elsewhere(store):
            output.note(f"what {place.url} has is not listed ({place.state})")

    output.result("cache ls", {"entries": [_entry_json(info) for info in found]}, human)


def _line(output: Output, info: EntryInfo) -> tuple[str, ...]:
    return (
        info.key[:KEY_DIGITS],
        output.size(info.size_bytes),
        str(info.hits),
        when(output, info.last_use),
        "yes" if info.is_pinned else "",
        info.name or "(damaged; see: jitgen cache verify)",
    )


def _entry_json(info: EntryInfo) -> dict[str, Any]:
    return asdict(info) | {"last_use": iso(info.last_use)}


def iso(seconds: float) -> str:
    """Return a time as ISO 8601: the nearest that has one, for a file may have any time."""
    bounded = min(max(seconds, 0.0), _LAST_SECOND)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="seconds")


def _list_failures(store: Store, output: Output) -> None:
    found = store.index.failures()

    def human() -> None:
        if found:
            columns = [
                Column("KEY"),
                Column("EXPIRES"),
                Column("NAME"),
                Column("REASON", is_prose=True),
            ]
            rows = [
                (key[:KEY_DIGITS], when(output, failure.expires), failure.name, failure.reason)
                for key, failure in found.items()
            ]
            output.table(columns, rows)
        output.note(f"{counted(len(found), 'remembered failure')} in {store.root}")

    document = [
        {
            "key": key,
            "name": failure.name,
            "reason": failure.reason,
            "expires": iso(failure.expires),
        }
        for key, failure in found.items()
    ]
    output.result("cache ls", {"failures": document}, human)


@click.command()
@with_output
def stats(output: Output) -> None:
    """Print totals: entries, sizes, hits, failures."""
    from jitgen.cache import Store

    store = Store.open()
    totals = store.stats()
    elsewhere = _elsewhere(store)

    def human() -> None:
        limit = output.size(totals.limit_bytes) if totals.limit_bytes else "none"
        output.fields(
            [
                ("root", str(store.root)),
                *(("  only read", str(path)) for path in store.bases),
                *((f"  {place.tier}", f"{place.url} ({place.state})") for place in elsewhere),
                ("mode", store.mode),
                ("entries", f"{totals.entries:,}" if output.is_terminal else str(totals.entries)),
                *((f"  {arch or 'damaged'}", str(n)) for arch, n in totals.by_arch.items()),
                ("size", output.size(totals.size_bytes)),
                ("on disk", output.size(totals.disk_bytes)),
                ("limit", limit),
                ("hits", str(totals.hits)),
                ("pinned", str(totals.pinned)),
                ("failures", str(totals.failures)),
                ("tuned", str(totals.tuned)),
                ("quarantined", str(totals.quarantined)),
            ]
        )

    bases = [str(path) for path in store.bases]
    document = {"root": str(store.root), "bases": bases, "mode": store.mode, **asdict(totals)}
    document |= {"elsewhere": [asdict(place) for place in elsewhere]}
    output.result("cache stats", document, human)


def _elsewhere(store: Store) -> list[BackendStatus]:
    """Return how the places that kernels are fetched from stand; asks none of them."""
    if not (settings.remote or settings.service):
        return []
    from jitgen.remote.probe import statuses

    return statuses(store)


def when(output: Output, seconds: float) -> str:
    """Return a time: relative for people, ISO 8601 for programs."""
    if not output.is_terminal:
        return iso(seconds)
    delta = time.time() - seconds
    text = _span(abs(delta))
    return f"{text} ago" if delta >= 0 else f"in {text}"


def _span(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
