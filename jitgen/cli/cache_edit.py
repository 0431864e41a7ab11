# SPDX-License-Identifier: Apache-2.0
"""The commands under ``jitgen cache`` that check and change the store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jitgen.cli.cache import KEY_DIGITS
from jitgen.cli.lookup import find_key
from jitgen.cli.options import SIZE, confirm, with_output
from jitgen.cli.output import Column, ExitCode, Output, counted, human_size
from jitgen.errors import CacheError

if TYPE_CHECKING:
    from jitgen.cache import Store

_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
_keys = click.argument("names", metavar="CONFIG-or-KEY...", nargs=-1, required=True)


@click.command()
@click.option("--rebuild", is_flag=True, help="Start the index anew from the entries.")
@_dry_run
@with_output
def verify(output: Output, rebuild: bool, dry_run: bool) -> int:
    """Check every byte of every entry; move damaged ones to the quarantine, and exit 1 for any."""
    store = _open(changes=rebuild and not dry_run)
    found = store.verify(rebuild=rebuild, dry_run=dry_run)
    damaged = [result for result in found if not result.is_good]

    def human() -> None:
        if damaged:
            output.table(
                [Column("KEY"), Column("DAMAGE", is_prose=True)],
                [(result.key[:KEY_DIGITS], result.reason) for result in damaged],
            )
        entries = counted(len(found), "entry", "entries")
        is_moved = damaged and not dry_run and store.mode == "rw"
        moved = ", moved to the quarantine" if is_moved else ""
        output.note(f"{entries} checked, {len(damaged)} damaged{moved}")

    document = {"checked": len(found), "damaged": [asdict(r) for r in damaged], "dry_run": dry_run}
    output.result("cache verify", document, human)
    return ExitCode.FAILED if damaged else ExitCode.OK


@click.command()
@click.option("--size", type=SIZE, help="What may stay, for example 500MiB; JITGEN_CACHE_SIZE.")
@_dry_run
@with_output
def prune(output: Output, size: int | None, dry_run: bool) -> None:
    """
    Remove the least recently used entries until the rest fits in a size.

    Pinned entries, those of the last minute and leftovers of other processes' work in progress
    stay. Size 0 means no limit: only leftovers are removed.
    """
    store = _open(changes=not dry_run)
    pruned = store.prune(size, dry_run=dry_run)

    def human() -> None:
        if pruned.removed:
            output.table(
                [Column("KEY"), Column("SIZE", is_number=True), Column("NAME")],
                [
                    (info.key[:KEY_DIGITS], output.size(info.disk_bytes), info.name)
                    for info in pruned.removed
                ],
            )
        verb = "would remove" if dry_run else "removed"
        entries = counted(len(pruned.removed), "entry", "entries")
        output.note(
            f"{verb} {entries} and {counted(len(pruned.swept), 'leftover')}: "
            f"{human_size(pruned.freed_bytes)} freed, {human_size(pruned.kept_bytes)} kept"
        )

    document = {
        "dry_run": dry_run,
        "removed": [{"key": info.key, "name": info.name} for info in pruned.removed],
        "freed_bytes": pruned.freed_bytes,
        "kept_bytes": pruned.kept_bytes,
        "swept": list(pruned.swept),
    }
    output.result("cache prune", document, human)


@click.command()
@_keys
@_dry_run
@with_output
def rm(output: Output, names: tuple[str, ...], dry_run: bool) -> int:
    """Remove entries, and forget that they failed to compile, so that the next call tries again."""
    store = _open(changes=not dry_run)
    keys = list(dict.fromkeys(find_key(name, store) for name in names))
    known = {info.key: info.name for info in store.entries()}
    failures = store.index.failures()
    removed, missing = [], []
    for key in keys:
        if key in known or key in failures:
            name = known.get(key) or failures[key].name if key in failures else known[key]
            removed.append({"key": key, "name": name, "failure": key in failures})
            if not dry_run:
                store.remove(key)
        else:
            missing.append(key)

    def human() -> None:
        verb = "would remove" if dry_run else "removed"
        for item in removed:
            what = "remembered failure of " if item["failure"] else ""
            output.line(f"{verb} {what}{str(item['key'])[:KEY_DIGITS]} {item['name']}")
        for key in missing:
            output.warn(f"no entry {key[:KEY_DIGITS]} in {store.root}")

    document = {"dry_run": dry_run, "removed": removed, "missing": missing}
    output.result("cache rm", document, human)
    return ExitCode.FAILED if missing else ExitCode.OK


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_dry_run
@with_output
def clear(output: Output, yes: bool, dry_run: bool) -> int:
    """
    Remove every entry, pinned ones too, every remembered failure and every measurement.

    Measurements can be kept: jitgen tune --export FILE.
    """
    store = _open(changes=not dry_run)
    entries = list(store.entries())
    tuned = store.tuned.count("buckets")
    size = sum(info.disk_bytes for info in entries)
    what = f"{counted(len(entries), 'entry', 'entries')} ({human_size(size)})"
    if tuned:
        what += f" and the measurements of {counted(tuned, 'problem')}"
    what += f" from {store.root}"
    if not dry_run:
        if not confirm(f"Remove {what}?", is_agreed=yes):
            output.note("nothing was removed")
            return ExitCode.FAILED
        entries = store.clear()
    document = {
        "dry_run": dry_run,
        "removed": len(entries),
        "freed_bytes": size,
        "removed_tuned": tuned,
    }
    verb = "would remove" if dry_run else "removed"
    output.result("cache clear", document, lambda: output.line(f"{verb} {what}"))
    return ExitCode.OK


@click.command()
@_keys
@with_output
def pin(output: Output, names: tuple[str, ...]) -> None:
    """Spare entries from pruning until they are unpinned."""
    _set_pins(output, names, is_pinned=True)


@click.command()
@_keys
@with_output
def unpin(output: Output, names: tuple[str, ...]) -> None:
    """Let pruning remove entries again."""
    _set_pins(output, names, is_pinned=False)


def _set_pins(output: Output, names: tuple[str, ...], *, is_pinned: bool) -> None:
    store = _open(changes=True)
    keys = list(dict.fromkeys(find_key(name, store) for name in names))
    for key in keys:
        try:
            store.pin(key) if is_pinned else store.unpin(key)
        except OSError as error:
            raise CacheError(f"cannot pin in {store.root}: {error}") from error
    command = "pin" if is_pinned else "unpin"

    def human() -> None:
        for key in keys:
            output.line(f"{command}ned {key[:KEY_DIGITS]}")

    output.result(f"cache {command}", {"keys": keys}, human)


def _open(*, changes: bool) -> Store:
    """
    Open the store.

    Raises:
        CacheError: It is to be changed, and the settings say that it must not.
    """
    from jitgen.cache import Store

    store = Store.open()
    if changes and store.mode != "rw":
        raise CacheError(f"the cache may not be changed: JITGEN_CACHE={store.mode}")
    return store
