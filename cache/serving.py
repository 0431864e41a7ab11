# SPDX-License-Identifier: Apache-2.0
"""
The part of the store that serves: read an entry, publish one, lock a key, set a bad one aside.

Reading takes no lock and trusts nothing: every byte is checked, and the bytes that were checked are
what an entry holds. Publishing takes no lock either (see `publishing`). Locks only keep two
processes from compiling the same kernel. Trouble with the disk is a warning, and the caller goes on
without the cache; the one error that it raises is for a root which is not safe.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast

from jitgen.cache.disk import cause, remedy
from jitgen.cache.entry import Entry, Meta, check_key, disk_bytes, entry_path, read_entry
from jitgen.cache.folder import Damaged, Folder, Untrusted
from jitgen.cache.root import Root
from jitgen.errors import CacheError, UnsafeCacheRoot
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.settings import settings
from jitgen.support import forks
from jitgen.support.variables import NoHomeFolder

if TYPE_CHECKING:
    from jitgen.cache.builders import Builders
    from jitgen.cache.index import NullIndex
    from jitgen.cache.layers import Layers
    from jitgen.cache.trusted import Trusted
    from jitgen.cache.tuned import Tuned

Mode = Literal["rw", "ro", "off"]

_NOWHERE = Path("/nonexistent/jitgen")


class Serving:
    """
    The part of a store that serves entries.

    Attributes:
        mode: ``rw``; ``ro``: nothing on the disk is changed; ``off``: there is no store.
        root: The root as it was asked for.
        bases: Read-only roots that are searched after the own root.
    """

    def __init__(self, root: Path, mode: Mode, bases: Iterable[Path] = ()) -> None:
        self.mode = mode
        self.root = root
        self.bases = tuple(bases) if mode != "off" else ()
        # Nothing can exist below the null device, so no method has to check for "off".
        self._root = Root(Path(os.devnull) / "off" if mode == "off" else root)
        self._index: NullIndex | None = None
        try:
            self._root.check()
        except UnsafeCacheRoot:
            raise
        except OSError as error:
            self._warn_unreadable("", error)

    @classmethod
    def open(cls, root: Path | None = None, *, mode: Mode | None = None) -> Self:
        """
        Return the store under `root`; the default of each argument is a setting. Nothing is created
        yet.

        Without a place for a cache, as in a container whose user has no home folder, there is none:
        that is a warning.

        Raises:
            UnsafeCacheRoot: Another user could put code there.
            SettingError: A setting has a bad value.
        """
        chosen = cast(Mode, settings.cache) if mode is None else mode
        try:
            return cls(settings.cache_dir if root is None else root, chosen, settings.base)
        except NoHomeFolder as error:
            if chosen != "off":
                warn_once("cache home", "kernels compiled now are not kept: %s", error)
            return cls(_NOWHERE, "off")

    @property
    def index(self) -> NullIndex:
        """
        Uses, sizes and failures. A stand-in that keeps nothing where the mode is not ``rw``, the
        root is on a network file system, or, with JITGEN_VERIFY=always, others can write to it.
        """
        if self._index is None:
            self._index = self._make_index()
        return self._index

    @property
    def tuned(self) -> Tuned:
        """The measurements of kernels; they can be read wherever entries can."""
        from jitgen.cache.tuned import Tuned

        return Tuned(self._root, is_writable=self.mode == "rw")

    @property
    def builders(self) -> Builders:
        """Record of the compilers and linkers that publish here."""
        from jitgen.cache.builders import Builders

        return Builders(self._root)

    @property
    def trusted(self) -> Trusted:
        """Finds the trust document in use, and judges entries by it; needs ``jitgen[signing]``."""
        from jitgen.cache.trusted import Trusted

        return Trusted(self._root, self.mode)

    @property
    def layers(self) -> Layers:
        """The roots that are only read."""
        from jitgen.cache.layers import Layers

        return Layers(self._root, self.bases, self.accepts, is_writable=self.mode == "rw")

    def accepts(self, entry: Entry) -> bool:
        """
        Return whether `entry`, which was read from a root, may be loaded: with JITGEN_VERIFY=always
        it must be signed. An unsigned one is reported, and left where it is, because the trusted
        keys may change.
        """
        reason = self._unsigned(entry)
        if reason:
            where = entry.directory or self.root
            warn_once(f"reject {where}", "%s is not loaded: %s", where, reason)
            events.emit(
                Event(kind=EventKind.REJECT, kernel=entry.meta.name, key=entry.key, detail=reason)
            )
        return not reason

    def _unsigned(self, entry: Entry) -> str:
        if settings.verify != "always":
            return ""
        if entry.unread:
            return f"who signed it cannot be read: {entry.unread}"
        return self.trusted.refusal(entry.meta.encode(), entry.signatures)

    def read(self, key: str) -> Entry | None:
        """
        Return entry `key` from the own root, else from the bases, else None; see `read_own`,
        `read_bases`.
        """
        return self.read_own(key) or self.read_bases(key)

    def read_bases(self, key: str) -> Entry | None:
        """
        Return entry `key`, verified, from the roots that are only read; None if no root has it.
        """
        return self.layers.read(key) if self.bases and self.mode != "off" else None

    def read_own(self, key: str) -> Entry | None:
        """
        Return entry `key` of the own root, every byte of it verified; None where there is none.

        A damaged entry, and one that another user could have written, is set aside, reported by an
        event, and missing from then on.

        Raises:
            ValueError: `key` is no key.
            UnsafeCacheRoot: Another user could have put the entry there.
        """
        check_key(key)
        if self.mode == "off":
            return None
        try:
            base = self._root.open()
            if base is not None:
                with base, self._root.entries(base) as entries:
                    return self._read(base, entries, key)
        except UnsafeCacheRoot:
            raise
        except FileNotFoundError:
            pass
        except OSError as error:  # no descriptors left, a stale handle: the entry may be good
            self._warn_unreadable(key, error)
        return None

    def _read(
        self, base: Folder, entries: Folder, key: str, *, is_again: bool = False
    ) -> Entry | None:
        """Return entry `key`; None also if something else in its place was set aside."""
        try:
            with entries.folder(key[:2]) as shard:
                try:
                    with shard.folder(key) as folder:
                        try:
                            entry = read_entry(folder, key, is_used=self.mode == "rw")
                            return entry if self.accepts(entry) else None
                        except Damaged as damage:
                            # The folder is open, so no other one can have its inode number.
                            if _is_at(folder, shard, key):
                                self._set_aside(base, shard, key, damage)
                                return None
                    # It was removed while it was read; there may be a new one.
                    return None if is_again else self._read(base, entries, key, is_again=True)
                except Damaged as damage:
                    self._set_aside(base, shard, key, damage)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            self._set_aside(base, entries, key[:2], damage, key)
        return None

    def _set_aside(
        self, base: Folder, parent: Folder, name: str, damage: Damaged, key: str = ""
    ) -> None:
        from jitgen.cache.publishing import clear_way

        how = ""
        if self.mode == "rw":
            with suppress(OSError, Damaged):
                how = clear_way(base, parent, name)
                self.index.forget([key or name])
        if isinstance(damage, Untrusted):
            warn_once(f"trust {parent.path / name}", "%s: nothing is loaded from there", damage)
        elif not how:
            warn_once(
                f"damage {name}",
                "%s is damaged (%s) and cannot be moved away, so every process compiles it again",
                parent.path / name,
                damage,
            )
        events.emit(Event(kind=EventKind.QUARANTINE, key=key or name, detail=str(damage)))

    def quarantine(self, entry: Entry, reason: str) -> None:
        """
        Set `entry` aside, for `reason`, so that it is a miss from now on.

        Only an entry with exactly this record is set aside, not one that was published since then.
        """
        from jitgen.cache.publishing import clear_way

        with suppress(OSError, CacheError):
            base = self._root.open() if self.mode == "rw" else None
            if base is not None:
                with (
                    base,
                    base.below("entries", entry.key[:2]) as shard,
                    shard.folder(entry.key) as folder,
                ):
                    is_same = read_entry(folder, entry.key).meta == entry.meta
                    if is_same and _is_at(folder, shard, entry.key):
                        clear_way(base, shard, entry.key)
                        self.index.forget([entry.key])
        if self.bases and self.mode == "rw":
            with suppress(OSError, CacheError):
                self.layers.hide_record(entry.meta)
        events.emit(Event(kind=EventKind.QUARANTINE, key=entry.key, detail=reason))

    def publish(
        self,
        meta: Meta,
        files: Mapping[str, bytes],
        signatures: bytes = b"",
        *,
        is_fetched: bool = False,
    ) -> Entry:
        """
        Put an entry of `files` into the store; returns it, to be loaded.

        The digests in `meta` are filled in. The returned entry holds our own bytes, even if another
        process was faster; if it cannot be stored, its `why_private` says why. With
        JITGEN_VERIFY=always unsigned entries are not stored, because no process would load them.

        Args:
            meta: Its record.
            files: Its files.
            signatures: The bytes of its ``signatures.json``; empty: there is none.
            is_fetched: Whether it was built elsewhere, so that the compiler here does not matter.

        Raises:
            Damaged: The source or the library is missing, or `meta` contradicts itself.
        """
        from jitgen.cache.builders import other_builder
        from jitgen.cache.publishing import publish_entry

        entry = Entry.of(meta, files, signatures)
        if self.mode != "rw":
            return replace(entry, why_private=f"the cache may not be written ({self.mode})")
        if reason := self._unsigned(entry):
            return replace(entry, why_private=f"JITGEN_VERIFY=always: {reason}")
        try:
            with self._root.create() as base:
                if not is_fetched and (reason := other_builder(base, entry.meta, self.root)):
                    return replace(entry, why_private=reason)
                with self._root.entries(base, create=True) as entries:
                    is_new = publish_entry(
                        base, entries, entry, lambda found: not self._unsigned(found)
                    )
                if is_new:
                    entry = replace(entry, directory=entry_path(self._root.base, entry.key))
                    self._account(base, entry)
        except (OSError, CacheError) as error:
            self.warn_unwritable(error)
            return replace(entry, directory=None, why_private=cause(error))
        return entry

    def lock(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """
        Hold the lock of `key`; yields whether it is held.

        False after `timeout_s` seconds, and where there are no locks: compile privately then.
        """
        check_key(key)
        if self.mode == "rw":
            from jitgen.cache.publishing import clear_way

            try:
                with self._root.create() as base, base.service("locks") as locks:
                    path = locks.path / f"{key}.lock"
                    found = locks.stat(path.name)
                    if found is not None and not stat.S_ISREG(found.st_mode):
                        clear_way(base, locks, path.name)
                        found = None
                    if found is None:
                        with suppress(FileExistsError):
                            locks.write(path.name, b"", sync=False)
            except (OSError, CacheError) as error:  # if publishing fails too, it warns
                events.emit(Event(kind=EventKind.ERROR, kernel="cache", detail=cause(error)))
            else:
                return key_lock(path, timeout_s)
        return nullcontext(False)

    def _make_index(self) -> NullIndex:
        from jitgen.cache.index import Index, NullIndex
        from jitgen.cache.root import filesystem_type, is_network

        if self.mode != "rw":
            return NullIndex(f"the cache is {self.mode}")
        kind = filesystem_type(self._root.base)
        if settings.verify == "always" and self._root.is_open():
            return NullIndex(f"others can write to {self.root}")
        if is_network(kind):
            reason = f"{self.root} is on a network file system ({kind})"
            warn_once("cache index", "no index of the kernel cache: %s", reason)
            return NullIndex(reason)
        return Index(self._root)

    def _account(self, base: Folder, entry: Entry) -> None:
        """Record a publish in the index, sweep leftovers, and prune if too much is stored."""
        import jitgen.cache.prune as prune  # noqa: PLR0402  # `from jitgen.cache` would look it up twice
        from jitgen.cache.rows import IndexRow

        meta, size = entry.meta, 0
        with suppress(OSError, Damaged), base.below("entries", meta.key[:2], meta.key) as folder:
            size = disk_bytes(folder)
        self.index.record_entry(
            meta.key,
            IndexRow(name=meta.name, arch=meta.arch, size_bytes=meta.size_bytes, disk_bytes=size),
        )
        self.index.forget_failure(meta.key)
        with suppress(OSError, CacheError):
            prune.sweep_leftovers(base, quarantine_s=prune.QUARANTINE_S, drafts_s=prune.STALE_S)
            limit = settings.cache_size
            if limit:
                total = prune.grow_ledger(base, size)
                if total is None or total > limit:
                    target_bytes = int(limit * prune.LOW_WATER)
                    prune.prune(base, self.index, limit, target_bytes=target_bytes)

    def _warn_unreadable(self, key: str, error: OSError) -> None:
        hint = ""
        if isinstance(error, PermissionError):
            hint = "; its owner can give everybody leave to read it: chmod -R a+rX"
        reason = cause(error)
        warn_once("cache read", "cannot read the kernel cache %s (%s)%s", self.root, reason, hint)
        events.emit(Event(kind=EventKind.ERROR, key=key, kernel="cache", detail=reason))

    def warn_unwritable(self, error: Exception) -> None:
        """Say once in this process that the store cannot be written, and why."""
        reason, advice = cause(error), remedy(error)
        warn_once(
            "cache write",
            "cannot write the kernel cache %s (%s); kernels compiled now are not kept%s",
            self.root,
            reason,
            f": {advice}" if advice else "",
        )
        events.emit(Event(kind=EventKind.ERROR, kernel="cache", detail=reason))


def _is_at(folder: Folder, parent: Folder, name: str) -> bool:
    """Return whether `name` in `parent` is still the open `folder`."""
    found = parent.stat(name)
    own = os.fstat(folder.descriptor)
    return found is not None and (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


@contextmanager
def key_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """
    Hold the lock file `path`; yields whether it is held.

    It is the operating system's ``flock``, which ends with its process. Where a file system has
    none, or keeps it to one host, two processes compile the same kernel and both results are good,
    for correctness rests on publishing by rename. Lock files stay behind on purpose: removing one
    would let two processes hold it.

    False after `timeout_s` seconds of waiting, and at once where `path` is a symbolic link, where
    locks do not work, and where this thread holds it already. Never raises for any of these.
    """
    # The import takes 10 ms, and only compiles need it, not loads from the disk.
    from filelock import Timeout, UnixFileLock

    forks.wait_before("filelock")
    lock = UnixFileLock(
        path, timeout=timeout_s, thread_local=False, mode=0o600, fallback_to_soft=False
    )
    try:
        with forks.idle():  # a fork need not wait for another process meanwhile
            lock.acquire()
    except Timeout:
        is_held = False
    except (OSError, RuntimeError) as error:
        warn_once("cache lock", "cannot lock %s (%s); compiling without the lock", path, error)
        is_held = False
    else:
        is_held = True
    try:
        yield is_held
    finally:
        if is_held:
            with suppress(OSError):  # a network file system that went away: the lock went with it
                lock.release()
