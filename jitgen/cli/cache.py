# SPDX-License-Identifier: Apache-2.0
"""
``jitgen cache``: inspect the store on disk.

Nothing here imports torch, the compiler or Jinja: listing 10,000 entries takes a fraction of a
second, most of which is Python's own start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cache.inventory import EntryInfo, Stats
from jitgen.cache.traffic import TIERS, Traffic
from jitgen.cli.lazy import LazyGroup
from jitgen.cli.options import ARCH, refuse, with_output
from jitgen.cli.output import Output, counted, human_size, human_time
from jitgen.config import Arch
from jitgen.errors import CacheError
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import inline, like, one_of
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.remote.probe import BackendStatus

_NO_KEY = "0" * 64
"""A key that no entry has."""

_NO_FOLDER = "there is no such folder"

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


@frozen
class _Roots:
    root: v.File
    origin: str
    exists: bool
    bases: Sequence[v.File]
    elsewhere: Sequence[v.Url]


@frozen
class _Entries:
    entries: Sequence[EntryInfo]


@frozen
class _FailedKernel:
    """A kernel that failed to compile, and the time until which it is not tried again."""

    key: v.Key
    name: v.Name
    reason: v.Reason
    expires: v.Since1970


@frozen
class _Failures:
    failures: Sequence[_FailedKernel]


@frozen
class _LeftAlone:
    """A cache or service that is not read at present, and the reason."""

    place: str
    reason: v.Reason


@frozen
class _Totals:
    root: v.File
    bases: Sequence[v.File]
    mode: Annotated[str, one_of("rw", "ro", "off")]
    totals: Stats = inline()
    elsewhere: Sequence[Annotated[object, "jitgen.remote.probe:BackendStatus"]]
    traffic: Traffic
    left_alone: Sequence[_LeftAlone]


@click.group(cls=LazyGroup, commands_at=_COMMANDS)
def cache() -> None:
    """Inspect the disk cache and clean it."""


@click.command("dir")
@with_output
def show_dir(output: Output) -> None:
    """Print the root of the cache, whether or not it exists."""
    root, origin = settings.origin("cache_dir")
    is_there = False
    with suppress(OSError):  # Path.is_dir raises where a folder above may not be searched
        is_there = root.is_dir()
    elsewhere = [*settings.remote, *([settings.service] if settings.service else [])]
    found = _Roots(
        root=root, origin=origin, exists=is_there, bases=settings.base, elsewhere=elsewhere
    )

    def human() -> None:
        output.line(str(root))
        if found.bases:
            output.note(f"and, only read: {', '.join(map(str, found.bases))}")
        if elsewhere:
            output.note(f"and, fetched from: {', '.join(elsewhere)}")

    output.report("cache dir", found, human)


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
    """
    List the entries; with --failures, the kernels that failed to compile and are not tried again
    for now.
    """
    store = open_store(changes=False)
    if failures:
        refuse("not with --failures, which lists all that are remembered", "arch", "sort")
        _list_failures(store, output)
        return
    found = sorted((e for e in store.entries() if arch in (None, e.arch)), key=_ORDER[sort])

    def human() -> None:
        if found:
            columns = ["KEY", ">SIZE", ">HITS", "LAST USE", "PINNED", "NAME"]
            output.table(columns, [_line(output, info) for info in found])
        unread = {each.place: each.reason for each in _left_alone(store, ())} if store.bases else {}
        for base in ("", *map(str, store.bases)):
            if reason := unread.get(f"JITGEN_BASE {base}"):
                output.note(f"not read: {base}, {reason}")
                continue
            here = [info for info in found if info.base == base]
            size = human_size(sum(info.size_bytes for info in here))
            where = f"{base}, which is only read" if base else str(store.root)
            output.note(f"{counted(len(here), 'entry', 'entries')}, {size}, in {where}")
        for place in _elsewhere(store):
            output.note(f"not listed: the kernels of {_standing(place)}")

    output.report("cache ls", _Entries(entries=found), human)


def _line(output: Output, info: EntryInfo) -> tuple[str, ...]:
    return (
        info.key[:KEY_DIGITS],
        output.size(info.size_bytes),
        str(info.hits),
        when(output, info.last_use),
        "yes" if info.is_pinned else "",
        info.name or "(damaged; see: jitgen cache verify)",
    )


def _list_failures(store: Store, output: Output) -> None:
    found = store.index.failures()

    def human() -> None:
        if found:
            columns = ["KEY", "EXPIRES", "NAME", "~REASON"]
            rows = [
                (key[:KEY_DIGITS], when(output, failure.expires), failure.name, failure.reason)
                for key, failure in found.items()
            ]
            output.table(columns, rows)
        output.note(f"{counted(len(found), 'remembered failure')} in {store.root}")

    rows = [like(_FailedKernel, failure, key=key) for key, failure in found.items()]
    output.report("cache ls", _Failures(failures=rows), human)


@click.command()
@with_output
def stats(output: Output) -> None:
    """
    Print totals, where kernels came from in the last 30 days, and the misses that took longest.

    A kernel counts once in each process, at its first request. A hit came from this machine
    (memory, disk, base); a miss came from a remote cache, the service or the compiler, or was not
    found.
    """
    store = open_store(changes=False)
    totals = store.stats()
    elsewhere = _elsewhere(store)
    traffic, alone = store.index.traffic(), _left_alone(store, elsewhere)

    def human() -> None:
        limit = output.size(totals.limit_bytes) if totals.limit_bytes else "none"
        output.fields(
            [
                ("root", str(store.root)),
                *(("  only read", str(path)) for path in store.bases),
                *((f"  {place.tier}", _standing(place)) for place in elsewhere),
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
        _print_traffic(output, traffic)
        for each in alone:
            output.note(f"left alone: {each.place}: {each.reason}")

    document = _Totals(
        root=store.root,
        bases=store.bases,
        mode=store.mode,
        totals=totals,
        elsewhere=elsewhere,
        traffic=traffic,
        left_alone=alone,
    )
    output.report("cache stats", document, human)


_SHOWN_DAYS = 7


def _print_traffic(output: Output, traffic: Traffic) -> None:
    """Print the requests of the last days by tier, their totals, and the slowest misses."""
    if not traffic.days:
        return
    rows = [(day.date, day) for day in traffic.days[:_SHOWN_DAYS]]
    rows.append((f"{counted(len(traffic.days), 'day')}", traffic.total))
    output.line()
    output.table(
        ["DAY", *(f">{tier.upper()}" for tier in TIERS), ">HIT RATE", ">LOST"],
        [
            (
                name,
                *(str(day.tiers[tier].kernels) if tier in day.tiers else "" for tier in TIERS),
                "" if day.hit_rate is None else f"{day.hit_rate * 100:.1f} %",
                human_time(day.lost_s) if day.lost_s else "",
            )
            for name, day in rows
        ],
    )
    if traffic.worst:
        output.line()
        output.table(
            [">WAITED", "FROM", "WHEN", "NAME"],
            [
                (human_time(miss.seconds), miss.tier, when(output, miss.at), miss.name)
                for miss in traffic.worst
            ],
        )


def _left_alone(store: Store, elsewhere: Sequence[BackendStatus]) -> list[_LeftAlone]:
    """
    Return the configured caches and services that are not read at present, each with the reason.
    """
    from jitgen.cache.absence import NOT_THERE

    found = [
        _LeftAlone(place=each.place, reason=each.reason)
        for each in store.absences(_NO_KEY)
        if each.reason != NOT_THERE
        and not (each.reason == _NO_FOLDER and each.place.startswith("JITGEN_CACHE_DIR"))
    ]
    found += [
        _LeftAlone(place=each.url, reason=each.state) for each in elsewhere if each.state != "asked"
    ]
    return found


def _elsewhere(store: Store) -> list[BackendStatus]:
    """
    Return the state of each remote cache and service that is recorded on this machine; sends no
    request.
    """
    if not (settings.remote or settings.service):
        return []
    from jitgen.remote.probe import statuses

    return statuses(store)


def _standing(place: BackendStatus) -> str:
    """Return a place's URL, and why it is not asked now."""
    return place.url if place.state == "asked" else f"{place.url} ({place.state})"


def open_store(*, changes: bool = True) -> Store:
    """
    Open the store.

    Raises:
        CacheError: Its root is not a folder; or `changes` is set and the settings make the cache
            read-only.
    """
    from jitgen.cache import Store

    store = Store.open()
    with suppress(OSError):  # a folder above may not be searched
        there = next(path for path in (store.root, *store.root.parents) if path.exists())
        if not there.is_dir():
            raise CacheError(
                f"{printable(str(there))} is no folder, and a cache is one: set JITGEN_CACHE_DIR"
            )
    if changes and store.mode != "rw":
        raise CacheError(f"the cache may not be changed: JITGEN_CACHE={store.mode}")
    return store


def when(output: Output, seconds: float) -> str:
    """Return a time: relative for people, ISO 8601 for programs."""
    if not output.is_terminal:
        return v.iso(seconds)
    delta = time.time() - seconds
    text = _span(abs(delta))
    return f"{text} ago" if delta >= 0 else f"in {text}"


def _span(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
