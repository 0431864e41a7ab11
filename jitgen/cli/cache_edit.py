# SPDX-License-Identifier: Apache-2.0
"""The commands under ``jitgen cache`` that check and change the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from jitgen.cache.disk import cause
from jitgen.cache.inventory import Verification
from jitgen.cli.cache import KEY_DIGITS, open_store
from jitgen.cli.lookup import find_key
from jitgen.cli.options import SIZE, confirm, refuse, with_output
from jitgen.cli.output import ExitCode, Output, counted, human_size
from jitgen.errors import CacheError
from jitgen.support import vocabulary as v
from jitgen.support.codec import absent, like
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import EntryInfo, Store


@frozen
class _Verified:
    checked: v.Count
    damaged: Sequence[Verification]
    dry_run: bool


@frozen
class _PrunedKernel:
    """An entry that ``cache prune`` removed, or would remove."""

    key: v.Key
    name: v.Name


@frozen
class _Pruned:
    dry_run: bool
    removed: Sequence[_PrunedKernel]
    freed_bytes: v.Bytes
    kept_bytes: v.Bytes
    swept: Sequence[str]


@frozen
class _RemovedKernel:
    """An entry that was removed, or hidden in a base, or a failure that was forgotten."""

    key: v.Key
    name: v.Name
    failure: bool
    hidden_in: v.File | None = absent()


@frozen
class _Removed:
    dry_run: bool
    removed: Sequence[_RemovedKernel]
    missing: Sequence[v.Key]
    stuck: Sequence[v.Key]


@frozen
class _Cleared:
    dry_run: bool
    removed: v.Count
    left: v.Count
    freed_bytes: v.Bytes
    removed_tuned: v.Count


@frozen
class _Adopted:
    removed: v.Count


@frozen
class _Keys:
    keys: Sequence[v.Key]


_dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
_keys = click.argument("names", metavar="CONFIG-or-KEY...", nargs=-1, required=True)


@click.command()
@click.option("--rebuild", is_flag=True, help="Rebuild the index from the entries.")
@click.option("--signatures", is_flag=True, help="Check the signatures instead.")
@_dry_run
@with_output
def verify(output: Output, rebuild: bool, signatures: bool, dry_run: bool) -> int:
    """
    Check every byte of every entry. Damaged entries are moved to the quarantine, or hidden if their
    root is read-only, and the exit code is 1.

    With --signatures, check instead whether a trusted key has signed each entry; nothing is moved.
    """
    if signatures:
        refuse("not with --signatures, which changes nothing", "rebuild", "dry_run")
        from jitgen.cli.cache_remote import verify_signatures

        return verify_signatures(output)
    store = open_store(changes=rebuild and not dry_run)
    found = store.verify(rebuild=rebuild, dry_run=dry_run)
    damaged = [result for result in found if not result.is_good]

    def human() -> None:
        if damaged:
            output.table(
                ["KEY", "~DAMAGE"],
                [
                    (r.key[:KEY_DIGITS], f"{r.reason} (in {r.base})" if r.base else r.reason)
                    for r in damaged
                ],
            )
        entries = counted(len(found), "entry", "entries")
        fates = Counter(result.fate for result in damaged)
        words = {
            "quarantined": "moved to the quarantine",
            "removed": "removed",
            "hidden": "hidden",
        }
        parts = [
            words[fate] if count == len(damaged) else f"{count} of them {words[fate]}"
            for fate, count in sorted(fates.items())
            if fate
        ]
        output.note(", ".join([f"{entries} checked, {len(damaged)} damaged", *parts]))
        if fates[""] and not dry_run:
            output.warn(
                f"{counted(fates[''], 'damaged entry', 'damaged entries')} cannot be moved away "
                f"here{_why_not(store)}; every process compiles these kernels again"
            )

    document = _Verified(checked=len(found), damaged=damaged, dry_run=dry_run)
    output.report("cache verify", document, human)
    return ExitCode.FAILED if damaged else ExitCode.OK


@click.command()
@click.option("--size", type=SIZE, help="Size to keep, such as 500MiB; default: JITGEN_CACHE_SIZE.")
@_dry_run
@with_output
def prune(output: Output, size: int | None, dry_run: bool) -> None:
    """
    Remove the least recently used entries until the rest fits in the given size.

    Pinned entries, entries of the last minute, and files that running processes are writing are
    kept. Size 0 means no limit: then only leftover files are removed.
    """
    store = open_store(changes=not dry_run)
    pruned = store.prune(size, dry_run=dry_run)

    def human() -> None:
        if pruned.removed:
            output.table(
                ["KEY", ">SIZE", "NAME"],
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

    removed = [like(_PrunedKernel, info) for info in pruned.removed]
    output.report("cache prune", like(_Pruned, pruned, dry_run=dry_run, removed=removed), human)


@click.command()
@_keys
@_dry_run
@with_output
def rm(output: Output, names: tuple[str, ...], dry_run: bool) -> int:
    """Remove entries, and recorded failures to compile, so that the next call tries again."""
    store = open_store(changes=not dry_run)
    keys = list(dict.fromkeys(find_key(name, store) for name in names))
    known = {info.key: info for info in store.entries()}
    failures = store.index.failures()
    removed: list[_RemovedKernel] = []
    missing, stuck = [], []
    for key in keys:
        info, failure = known.get(key), failures.get(key)
        if info is None and failure is None:
            missing.append(key)
            continue
        is_gone = dry_run or store.remove(key) is not None or info is None
        if not is_gone:
            stuck.append(key)
            continue
        name = info.name if info is not None and info.name else failure.name if failure else ""
        hidden_in = (info.base if info is not None else "") or None
        removed.append(
            _RemovedKernel(key=key, name=name, failure=failure is not None, hidden_in=hidden_in)
        )

    def human() -> None:
        for item in removed:
            verb = "hide" if item.hidden_in else "remove"
            verb = f"would {verb}" if dry_run else {"hide": "hid", "remove": "removed"}[verb]
            what = "remembered failure of " if item.failure else ""
            where = f" (it stays in {item.hidden_in})" if item.hidden_in else ""
            output.line(f"{verb} {what}{item.key[:KEY_DIGITS]} {item.name}{where}")
        for key in missing:
            output.warn(f"no entry {key[:KEY_DIGITS]} in {store.root}")
        for key in stuck:
            where = f"{store.root}{_why_not(store)}"
            output.warn(f"entry {key[:KEY_DIGITS]} cannot be removed from {where}")

    document = _Removed(dry_run=dry_run, removed=removed, missing=missing, stuck=stuck)
    output.report("cache rm", document, human)
    return ExitCode.FAILED if missing or stuck else ExitCode.OK


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_dry_run
@with_output
def clear(output: Output, yes: bool, dry_run: bool) -> int:
    """
    Remove every entry (also pinned ones), every recorded failure and every measurement.

    To keep the measurements, export them before: jitgen tune --export FILE.
    """
    store = open_store(changes=not dry_run)
    entries = [info for info in store.entries() if not info.base]
    tuned = store.tuned.count("buckets")
    if not dry_run:
        if not confirm(f"Remove {_everything(store, entries, tuned)}?", is_agreed=yes):
            output.note("nothing was removed")
            return ExitCode.FAILED
        store.clear()
    left = [] if dry_run else [info for info in store.entries() if not info.base]
    kept = {info.key for info in left}
    removed = [info for info in entries if info.key not in kept]
    document = _Cleared(
        dry_run=dry_run,
        removed=len(removed),
        left=len(left),
        freed_bytes=sum(info.disk_bytes for info in removed),
        removed_tuned=tuned,
    )

    def human() -> None:
        verb = "would remove" if dry_run else "removed"
        output.line(f"{verb} {_everything(store, removed, tuned)}")
        if left:
            entries_left = counted(len(left), "entry", "entries")
            output.warn(
                f"{entries_left} cannot be removed{_why_not(store) or ', or came meanwhile'}"
            )

    output.report("cache clear", document, human)
    return ExitCode.FAILED if left else ExitCode.OK


def _everything(store: Store, entries: Sequence[EntryInfo], tuned: int) -> str:
    size = human_size(sum(info.disk_bytes for info in entries))
    what = f"{counted(len(entries), 'entry', 'entries')} ({size})"
    if tuned:
        what += f" and the measurements of {counted(tuned, 'problem')}"
    return f"{what} from {store.root}"


@click.command()
@with_output
def adopt(output: Output) -> None:
    """
    Accept this machine's compiler and linker for storing kernels from now on.

    The cache stores kernels only from the compiler and linker that first published kernels with
    their versions, because other files with the same versions may generate different code. Run this
    after one of them was replaced on purpose, for example by an upgrade of the system.
    """
    store = open_store()
    count = store.builders.forget()
    if left := store.builders.count():
        raise CacheError(
            f"{counted(left, 'record')} in {store.root} cannot be removed{_why_not(store)}"
        )
    text = f"the next to publish in {store.root} is the first; {counted(count, 'record')} removed"
    output.report("cache adopt", _Adopted(removed=count), lambda: output.line(text))


@click.command()
@_keys
@with_output
def pin(output: Output, names: tuple[str, ...]) -> None:
    """Protect entries from pruning until they are unpinned."""
    _set_pins(output, names, is_pinned=True)


@click.command()
@_keys
@with_output
def unpin(output: Output, names: tuple[str, ...]) -> None:
    """Allow pruning to remove entries again."""
    _set_pins(output, names, is_pinned=False)


def _set_pins(output: Output, names: tuple[str, ...], *, is_pinned: bool) -> None:
    store = open_store()
    keys = list(dict.fromkeys(find_key(name, store) for name in names))
    for key in keys:
        try:
            store.pin(key) if is_pinned else store.unpin(key)
        except OSError as error:
            raise CacheError(f"cannot pin in {store.root}: {cause(error)}") from error
    command = "pin" if is_pinned else "unpin"

    def human() -> None:
        for key in keys:
            output.line(f"{command}ned {key[:KEY_DIGITS]}")

    output.report(f"cache {command}", _Keys(keys=keys), human)


def _why_not(store: Store) -> str:
    """Return ``: REASON`` if the store cannot be written, else an empty text."""
    try:
        store.probe()
    except (OSError, CacheError) as error:
        return f": {cause(error)}"
    return ""
