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
from jitgen.cli.lookup import Named, find
from jitgen.cli.options import ARCH, with_output
from jitgen.cli.output import Column, ExitCode, Output, counted, human_size
from jitgen.config import Arch
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import EntryInfo, Store

_LAST_SECOND = 253402300799.0  # of the year 9999

KEY_DIGITS = 12
"""Digits of a key in tables: enough to name one among millions."""

_HERE = "jitgen.cli.cache"
_EDIT = "jitgen.cli.cache_edit"
_COMMANDS = {
    "dir": (f"{_HERE}:show_dir", "Print the root of the cache."),
    "ls": (f"{_HERE}:ls", "List the entries, or the remembered failures."),
    "stats": (f"{_HERE}:stats", "Print totals."),
    "explain": (f"{_HERE}:explain", "Say why a kernel is, or is not, in the cache."),
    "verify": (f"{_EDIT}:verify", "Check every byte of every entry."),
    "prune": (f"{_EDIT}:prune", "Remove the least recently used entries above a size."),
    "rm": (f"{_EDIT}:rm", "Remove entries, and forget that they failed."),
    "clear": (f"{_EDIT}:clear", "Remove everything."),
    "pin": (f"{_EDIT}:pin", "Spare entries from pruning."),
    "unpin": (f"{_EDIT}:unpin", "Let pruning remove entries again."),
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
    document = {"root": str(root), "origin": origin, "exists": is_there, "bases": bases}

    def human() -> None:
        output.line(str(root))
        if bases:
            output.note(f"and, only read: {', '.join(bases)}")

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

    output.result("cache ls", {"entries": [_entry_json(info) for info in found]}, human)


def _line(output: Output, info: EntryInfo) -> tuple[str, ...]:
    return (
        info.key[:KEY_DIGITS],
        output.size(info.size_bytes),
        str(info.hits),
        _when(output, info.last_use),
        "yes" if info.is_pinned else "",
        info.name or "(damaged; see: jitgen cache verify)",
    )


def _entry_json(info: EntryInfo) -> dict[str, Any]:
    return asdict(info) | {"last_use": _iso(info.last_use)}


def _iso(seconds: float) -> str:
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
                (key[:KEY_DIGITS], _when(output, failure.expires), failure.name, failure.reason)
                for key, failure in found.items()
            ]
            output.table(columns, rows)
        output.note(f"{counted(len(found), 'remembered failure')} in {store.root}")

    document = [
        {
            "key": key,
            "name": failure.name,
            "reason": failure.reason,
            "expires": _iso(failure.expires),
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

    def human() -> None:
        limit = output.size(totals.limit_bytes) if totals.limit_bytes else "none"
        output.fields(
            [
                ("root", str(store.root)),
                *(("  only read", str(path)) for path in store.bases),
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
    output.result("cache stats", document, human)


@click.command()
@click.argument("config_or_key", metavar="CONFIG-or-KEY")
@click.option(
    "--limit", type=click.IntRange(1), default=3, show_default=True, help="Entries shown."
)
@with_output
def explain(output: Output, config_or_key: str, limit: int) -> int:
    """
    Say whether a kernel would be loaded from the cache, and if not, field by field why.

    With a KEY: how that entry differs from what the installed toolchain would look for.
    """
    from jitgen.cache import Store
    from jitgen.runtime import key as keys

    store = Store.open()
    named = find(config_or_key, store)
    document = keys.document(named.config, named.arch)
    wanted = keys.digest(document)
    state, reason = _state(store, named, wanted)
    if named.is_key and named.key != wanted:
        every = store.nearest(document, store.stats().entries)
        nearest = [(meta, fields) for meta, fields in every if meta.key == named.key]
    else:
        nearest = store.nearest(document, limit) if state == "miss" else []

    def human() -> None:
        output.fields([("name", named.name), ("key", wanted), (state, reason)])
        for meta, differences in nearest:
            output.line()
            output.line(f"entry {meta.key[:KEY_DIGITS]} {meta.name} differs in", style="bold")
            output.table(
                [Column("FIELD"), Column("WANTED"), Column("FOUND")],
                [(item.field, _short(item.wanted), _short(item.found)) for item in differences],
            )

    found = {
        **named.to_json(),
        "key": wanted,
        "state": state,
        "reason": reason,
        "key_document": document,
        "nearest": [
            {"key": meta.key, "name": meta.name, "differences": [asdict(d) for d in differences]}
            for meta, differences in nearest
        ],
    }
    output.result("cache explain", found, human)
    return ExitCode.OK


def _state(store: Store, named: Named, wanted: str) -> tuple[str, str]:
    """Return ``hit``, ``miss`` or ``failed``, and the reason."""
    from jitgen.runtime.loader import unsupported_isa
    from jitgen.targets.legality import check

    verdict = check(named.config, named.arch)
    if not verdict:
        return "refused", f"{verdict.code}: {verdict.reason}"
    failure = store.index.failure(wanted)
    if failure is not None:
        return "failed", f"{failure.reason} (retry with: jitgen cache rm {wanted[:KEY_DIGITS]})"
    entry = store.read(wanted)
    if entry is None:
        reason = "no entry has this key"
        return "miss", f"{reason}; the nearest are below" if any(store.entries()) else reason
    missing = unsupported_isa(entry)
    return ("miss", missing) if missing else ("hit", str(entry.directory))


def _short(value: Any) -> str:
    """Return a value of a key document, digests cut to what tells them apart."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:KEY_DIGITS]}..."


def _when(output: Output, seconds: float) -> str:
    """Return a time: relative for people, ISO 8601 for programs."""
    if not output.is_terminal:
        return _iso(seconds)
    delta = time.time() - seconds
    text = _span(abs(delta))
    return f"{text} ago" if delta >= 0 else f"in {text}"


def _span(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
