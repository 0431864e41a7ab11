# SPDX-License-Identifier: Apache-2.0
"""
The store: what the rest of jitgen asks the disk cache for.

Reading takes no lock and trusts nothing: every byte is checked against its digest. Publishing takes
no lock either: a finished folder is renamed into place, which one of several processes wins, and
the others go on with their own bytes. Locks only keep two processes from compiling the same kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from jitgen.cache.area import build_area, keep, unique_name
from jitgen.cache.entry import Damaged, Entry, Meta, describe_files
from jitgen.cache.files import disk_bytes, read_entry, sync_folder, write_entry
from jitgen.cache.root import Root, filesystem_type, is_network
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache.index import NullIndex
    from jitgen.cache.prune import Pruned
    from jitgen.cache.survey import Difference, EntryInfo, Stats, Verification
    from jitgen.cache.tuned import Tuned

Mode = Literal["rw", "ro", "off"]


class Store:
    """
    Compiled kernels under one root. Safe to use from any thread and any number of processes.

    Attributes:
        mode: ``rw``; ``ro``: nothing on the disk is changed; ``off``: there is no store.
        root: The root as it was asked for.
    """

    def __init__(self, root: Path, mode: Mode) -> None:
        self.mode = mode
        self.root = root
        # Below the null device nothing exists and nothing can: no method needs to ask for "off".
        self._root = Root(Path(os.devnull) / "off" if mode == "off" else root)
        self._is_checked = mode == "off" or self._root.check()
        self._index: NullIndex | None = None

    @classmethod
    def open(cls, root: Path | None = None, *, mode: Mode | None = None) -> Self:
        """
        Return the store under `root`; both default to the settings. Nothing is created yet.

        Raises:
            UnsafeCacheRoot: Somebody else could put code there.
        """
        chosen = cast(Mode, settings.cache) if mode is None else mode
        return cls(settings.cache_dir if root is None else root, chosen)

    @property
    def index(self) -> NullIndex:
        """Uses, sizes and failures; a stand-in where the disk is not written, or is remote."""
        if self._index is None:
            self._index = self._make_index()
        return self._index

    @property
    def tuned(self) -> Tuned:
        """What was measured here; it can be read wherever entries can."""
        from jitgen.cache.tuned import Tuned

        return Tuned(self._root, is_writable=self.mode == "rw")

    def read(self, key: str) -> Entry | None:
        """
        Return entry `key`, every byte of it verified; None where there is none.

        A damaged entry is moved to the quarantine, told as an event, and missing from then on.

        Raises:
            ValueError: `key` is no key.
            UnsafeCacheRoot: Somebody else could have put the entry there.
        """
        directory = self._root.entry(key)
        if self.mode == "off":
            return None
        if not self._is_checked:
            self._is_checked = self._root.check()
        try:
            return read_entry(directory, key, is_used=self.mode == "rw")
        except FileNotFoundError:
            return None
        except Damaged as damage:
            self.quarantine(key, str(damage), inode=damage.inode)
        except OSError as error:  # no descriptors left, a stale handle: the entry may be good
            warn_once("cache read", "cannot read cache entry %s: %s", directory, error)
            events.emit(Event(kind=EventKind.ERROR, key=key, detail=str(error)))
        return None

    @contextmanager
    def workdir(self, *, is_private: bool = False) -> Iterator[Path]:
        """
        Yield an empty folder to build an entry in; it is removed at the end, unless published.

        It lies in the store, on the same file system, or outside if `is_private` or where the store
        cannot be written.
        """
        with ExitStack() as stack:
            path: Path | None = None
            if self.mode == "rw" and not is_private:
                try:
                    self._root.create()
                    path = stack.enter_context(build_area(self._root.tmp))
                except OSError as error:
                    self.warn_unwritable(error)
            yield path or stack.enter_context(build_area(None))

    def publish(self, workdir: Path, meta: Meta) -> Entry:
        """
        Publish the files in `workdir`, which `workdir` yielded; returns the entry to load.

        `meta.files` is filled in. Files that no entry may hold are dropped. Where another process
        was faster, or the disk cannot be written, the entry is that of our own bytes, which stay
        in a private folder until this process ends.

        Raises:
            Damaged: The source or the library is missing, or `meta` contradicts itself.
        """
        meta = Meta.from_json(replace(meta, files=describe_files(workdir)).to_json())
        target = self._root.entry(meta.key)
        private = Entry(key=meta.key, directory=workdir, meta=meta)
        if self.mode != "rw" or workdir.parent != self._root.tmp:
            keep(workdir)
            return private
        try:
            write_entry(workdir, meta)
            self._root.create()
            target.parent.mkdir(mode=0o700, exist_ok=True)
            workdir.rename(target)
        except OSError as error:
            keep(workdir)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                self.warn_unwritable(error)
            return private
        with suppress(OSError):
            sync_folder(target.parent)
        self._account(target, meta)
        return replace(private, directory=target)

    def lock(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """
        Hold the lock of `key`; yields whether it is held.

        False after `timeout_s` seconds, and where there are no locks: compile privately then.
        """
        path = self._root.lock(key)
        if self.mode == "rw":
            try:
                self._root.create()
            except OSError as error:
                self.warn_unwritable(error)
            else:
                from jitgen.cache.lock import key_lock

                return key_lock(path, timeout_s)
        return nullcontext(False)

    def quarantine(self, key: str, reason: str, *, inode: int = 0) -> None:
        """
        Move entry `key` aside, for `reason`, so that it is a miss from now on.

        With `inode`, only that folder is moved, and not one that was published since.
        """
        source = self._root.entry(key)
        if self.mode == "rw":
            aside = self._root.quarantine / f"{key}-{unique_name()[:8]}"
            with suppress(OSError):
                if inode in (0, source.lstat().st_ino):
                    aside.parent.mkdir(mode=0o700, exist_ok=True)
                    source.rename(aside)
                    self.index.forget([key])
                    os.utime(aside, follow_symlinks=False)  # the sweep counts from now
        events.emit(Event(kind=EventKind.QUARANTINE, key=key, detail=reason))

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry, by key, without verifying it."""
        from jitgen.cache import survey

        return survey.entries(self._root, self.index)

    def stats(self) -> Stats:
        """Return the totals; some 0.3 s for 10,000 entries."""
        from jitgen.cache import survey

        return survey.stats(
            self._root, self.index, settings.cache_size, tuned=self.tuned.count("buckets")
        )

    def nearest(
        self, document: Mapping[str, Any], limit: int = 3
    ) -> list[tuple[Meta, tuple[Difference, ...]]]:
        """Return the entries closest to a key document, and field by field in what they differ."""
        from jitgen.cache import survey

        return survey.nearest(self._root, document, limit)

    def verify(self, *, rebuild: bool = False, dry_run: bool = False) -> list[Verification]:
        """
        Check every byte of every entry; damaged ones are quarantined, except in a dry run.

        With `rebuild`, the index is started anew from the entries.
        """
        from jitgen.cache import survey

        results = []
        for result, damage in survey.verify(self._root):
            if damage is not None and not dry_run:
                self.quarantine(result.key, str(damage), inode=damage.inode)
            results.append(result)
        if rebuild and not dry_run:
            self.index.reset()
            survey.known_rows(self._root, self.index)
        return results

    def remove(self, key: str) -> EntryInfo | None:
        """Remove entry `key`, its pin and its remembered failure; returns what was removed."""
        from jitgen.cache import prune, survey

        path = self._root.entry(key)
        if self.mode != "rw":
            return None
        info = None
        if os.path.lexists(path):
            info = survey.entry_info(self._root, key)
        self.index.forget_failure(key)
        self.unpin(key)
        return info if prune.remove(self._root, self.index, key) else None

    def clear(self) -> list[EntryInfo]:
        """
        Remove every entry, pinned ones too, all remembered failures, all measurements and all
        leftovers.
        """
        from jitgen.cache import prune

        removed = [info for info in list(self.entries()) if self.remove(info.key)]
        if self.mode == "rw":
            self.tuned.clear()
            for key in self.index.failures():
                self.index.forget_failure(key)
            prune.sweep_leftovers(self._root, quarantine_s=0.0)
            prune.write_ledger(self._root, 0)
        return removed

    def prune(self, limit_bytes: int | None = None, *, dry_run: bool = False) -> Pruned:
        """
        Remove the least recently used entries until the rest takes at most `limit_bytes`.

        None takes the setting ``cache_size``; 0 removes no entry. Leftovers are removed as well.
        """
        from jitgen.cache import prune

        limit = settings.cache_size if limit_bytes is None else limit_bytes
        is_dry = dry_run or self.mode != "rw"
        swept = prune.sweep_leftovers(self._root, quarantine_s=0.0, dry_run=is_dry)
        return prune.prune(
            self._root, self.index, limit, target_bytes=limit, swept=swept, dry_run=is_dry
        )

    def pin(self, key: str) -> None:
        """
        Spare `key` from pruning, with or without an entry.

        Raises:
            OSError: The root cannot be written.
        """
        path = self._root.pin(key)
        if self.mode == "rw":
            self._root.create()
            path.touch(mode=0o600)

    def unpin(self, key: str) -> None:
        """Let pruning remove `key` again."""
        with suppress(OSError):
            if self.mode == "rw":
                self._root.pin(key).unlink()

    def is_pinned(self, key: str) -> bool:
        """Return whether pruning spares `key`."""
        return os.path.lexists(self._root.pin(key))

    def _make_index(self) -> NullIndex:
        from jitgen.cache.index import Index, NullIndex

        if self.mode != "rw":
            return NullIndex(f"the cache is {self.mode}")
        kind = filesystem_type(self._root.base)
        if is_network(kind):
            reason = f"{self.root} is on a network file system ({kind})"
            warn_once("cache index", "no index of the kernel cache: %s", reason)
            return NullIndex(reason)
        return Index(self._root)

    def _account(self, target: Path, meta: Meta) -> None:
        """After a publish: tell the index, and prune where the limit is passed."""
        from jitgen.cache import prune
        from jitgen.cache.rows import Row

        size = disk_bytes(target)
        self.index.record_entry(
            meta.key,
            Row(name=meta.name, arch=meta.arch, size_bytes=meta.size_bytes, disk_bytes=size),
        )
        self.index.forget_failure(meta.key)
        prune.sweep_leftovers(self._root, quarantine_s=prune.QUARANTINE_S)
        limit = settings.cache_size
        if limit:
            total = prune.grow_ledger(self._root, size)
            if total is None or total > limit:
                target_bytes = int(limit * prune.LOW_WATER)
                prune.prune(self._root, self.index, limit, target_bytes=target_bytes)

    def warn_unwritable(self, error: Exception) -> None:
        """Say once in this process that the store cannot be written, and why."""
        warn_once(
            "cache write",
            "cannot write the kernel cache %s (%s); kernels compiled now are not kept",
            self.root,
            error,
        )
        events.emit(Event(kind=EventKind.ERROR, kernel="cache", detail=str(error)))
