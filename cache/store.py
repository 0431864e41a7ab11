# SPDX-License-Identifier: Apache-2.0
"""The store: the interface of the disk cache to the rest of jitgen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from jitgen.cache.disk import cause
from jitgen.cache.entry import Meta, check_key, entry_path
from jitgen.cache.folder import Damaged, Folder
from jitgen.cache.serving import Serving
from jitgen.cache.stamp import Stamp, stamp_of
from jitgen.errors import CacheError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache.absence import Absence
    from jitgen.cache.inventory import Difference, EntryInfo, Stats, Verification
    from jitgen.cache.prune import Pruned
    from jitgen.cache.quarantine import Damage
    from jitgen.cache.tuned import Prewarmed


class Store(Serving):
    """
    Compiled kernels under one root. Safe to use from any thread and any number of processes.

    `Serving` has the methods that serve single entries; those that list and clean the whole store
    are here. A folder that cannot be opened counts as empty in lists and totals.
    """

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry, by key, without verifying it; then those of read-only roots."""
        from jitgen.cache import inventory

        with self._opened() as base:
            found = inventory.entries(base, self.index) if base is not None else []
        yield from found
        if self.bases:
            known = {info.key for info in found}
            yield from inventory.entries_below(self.layers, known)

    def stats(self) -> Stats:
        """Return the totals of the own root; some 0.3 s for 10,000 entries."""
        from jitgen.cache import inventory

        with self._opened() as base:
            return inventory.stats(
                base, self.index, settings.cache_size, tuned=self.tuned.count("buckets")
            )

    def nearest(
        self, document: Mapping[str, object], limit: int = 3
    ) -> list[tuple[Meta, tuple[Difference, ...]]]:
        """
        Return the entries of the same operation that are closest to a key document, each with the
        fields that differ.
        """
        from jitgen.cache import inventory

        return inventory.nearest(self.metas(), document, limit)

    def differences(
        self, key: str, document: Mapping[str, object]
    ) -> list[tuple[Meta, tuple[Difference, ...]]]:
        """
        Compare a key document with entry `key`; return its record with the fields that differ,
        nothing without a good record.
        """
        from jitgen.cache import inventory

        meta = self.meta(key)
        return [] if meta is None else [(meta, inventory.compared(meta, document))]

    def metas(self) -> Iterator[Meta]:
        """Yield the record of every entry whose record is good, in read-only roots too."""
        from jitgen.cache import inventory

        with self._opened() as base:
            if base is not None:
                yield from inventory.metas(base)
        yield from self.layers.metas()

    def meta(self, key: str) -> Meta | None:
        """Return the record of entry `key`, None if there is no good one; verifies nothing else."""
        from jitgen.cache.entry import read_meta

        check_key(key)
        with self._opened() as base:
            if base is not None:
                with suppress(OSError, Damaged), base.below("entries", key[:2], key) as folder:
                    return read_meta(folder, key)
        return next(self.layers.metas(key), None)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """
        Yield every key that begins with `prefix`, then those in read-only roots, which may be the
        same.
        """
        from jitgen.cache import inventory

        with self._opened() as base:
            found = [] if base is None else inventory.keys(base, prefix)
        yield from found
        if self.bases:
            yield from (key for key, _, _ in self.layers.each(prefix))

    def verify(self, *, rebuild: bool = False, dry_run: bool = False) -> list[Verification]:
        """
        Check every byte of every entry; damaged ones are set aside, or hidden if they lie in a
        read-only root, except in a dry run.

        With `rebuild`, the index is started anew from the entries.
        """
        from jitgen.cache import inventory

        results = []
        with self._opened() as base:
            for result in inventory.verify(base) if base is not None else ():
                if base is not None and not result.is_good and not dry_run:
                    self.read(result.key)  # this sets aside what is really damaged
                    results.append(replace(result, fate=inventory.fate(base, result.key)))
                else:
                    results.append(result)
        if self.bases:
            results += self.layers.verify(hides=not dry_run)
        if rebuild and not dry_run:
            self.index.reset()
            with self._opened() as base:
                if base is not None:
                    inventory.known_rows(base, self.index)
        return results

    @property
    def prewarmed(self) -> tuple[Prewarmed, ...]:
        """Records of prewarmed plans, of the own root and then of each base."""
        from jitgen.cache.root import Root
        from jitgen.cache.tuned import Prewarmed

        bases = (Prewarmed(Root(path), is_writable=False) for path in self.bases)
        return (Prewarmed(self._root, is_writable=self.mode == "rw"), *bases)

    def quarantined(self) -> list[Damage]:
        """Return the entries in quarantine, the last first; changes nothing."""
        from jitgen.cache import quarantine

        with self._opened() as base:
            return [] if base is None else quarantine.quarantined(base)

    def damages(self, key: str) -> list[Damage]:
        """
        Return the reasons why there is no good entry `key`: from its place, the quarantine and
        read-only roots. Changes nothing.
        """
        from jitgen.cache import quarantine

        check_key(key)
        with self._opened() as base:
            found = None if base is None else quarantine.damage_in_place(base, key)
        set_aside = [damage for damage in self.quarantined() if damage.key == key]
        return [*([] if found is None else [found]), *set_aside, *self.layers.damages(key)]

    def absences(self, key: str) -> list[Absence]:
        """
        Return why each root does not serve entry `key`: the own one, then the read-only ones.
        Changes nothing.
        """
        from jitgen.cache.absence import Absence, absence_of

        check_key(key)
        place = f"JITGEN_CACHE_DIR {self.root}"
        if self.mode == "off":
            return [Absence(place=place, reason="not used, JITGEN_CACHE=off")]
        found = [absence_of(self._root, key, place), *self.layers.absences(key)]
        return [
            replace(each, reason=self._unsigned(each.entry))
            if each.entry is not None and not each.reason
            else each
            for each in found
        ]

    def empty_quarantine(self) -> int:
        """Empty the quarantine; returns how many entries are gone."""
        from jitgen.cache import quarantine

        if self.mode != "rw":
            return 0
        with self._opened() as base:
            return 0 if base is None else quarantine.empty(base)

    def probe(self) -> None:
        """
        Test whether a kernel can be stored here; the test's files are removed.

        Raises:
            OSError, CacheError: It cannot.
        """
        from jitgen.cache import disk

        disk.probe(self._root)

    @contextmanager
    def notes(self, name: str) -> Iterator[Folder]:
        """
        Yield the folder `name` of the own root, in which the processes of a host leave each other
        notes; it is created if there is none.

        Raises:
            OSError, CacheError: The root cannot be written.
        """
        if self.mode != "rw":
            raise CacheError(f"the cache may not be written ({self.mode})")
        with self._root.create() as base, base.service(name) as folder:
            yield folder

    def add_signatures(self, key: str, signatures: bytes, *, renews: bool = False) -> bool:
        """
        Add the envelopes of `signatures`, the bytes of a ``signatures.json``, to those of entry
        `key` of the own root; returns whether there is such an entry.

        With `renews`, older signatures of the same keys are removed, and the oldest ones if there
        are too many.

        Raises:
            SigningError: `signatures` is not a signatures document, or there would be too many.
            OSError, CacheError: The root cannot be written, or the existing signatures cannot be
                read and would be lost.
        """
        from jitgen.cache.entry import LIMITS, SIGNATURES, read_meta
        from jitgen.signing.dsse import merged, renewed

        check_key(key)
        if self.mode != "rw":
            raise CacheError(f"the cache may not be written ({self.mode})")
        with self._opened() as base, suppress(FileNotFoundError):
            if base is not None:
                with base.service("tmp") as drafts, base.below("entries", key[:2], key) as folder:
                    read_meta(folder, key)
                    before, unread = folder.read_if_there(SIGNATURES, LIMITS[SIGNATURES])
                    if unread:
                        raise CacheError(f"who signed {folder.path} cannot be read: {unread}")
                    combine = renewed if renews else merged
                    data = combine(before, signatures)
                    folder.replace(SIGNATURES, data, drafts)
                    return True
        return False

    def stamp(self, key: str) -> Stamp | None:
        """
        Return a value that changes whenever entry `key` of the own root or its signatures change;
        None if there is no entry. It costs two stats.
        """
        return stamp_of(entry_path(self._root.base, check_key(key)))

    def remove(self, key: str) -> EntryInfo | None:
        """
        Remove entry `key`, its pin and its remembered failure; return what was removed, or None.

        An entry in a read-only root is hidden instead.

        Raises:
            CacheError: The removal cannot be recorded.
        """
        from jitgen.cache import inventory, prune

        check_key(key)
        if self.mode != "rw":
            return None
        info = None
        with self._opened() as base:
            if base is not None:
                found = inventory.entry_info(base, key)
                self.index.forget_failure(key)
                self.unpin(key)
                info = found if prune.remove(base, self.index, key) else None
        if self.bases:
            info = self._hide(key) or info
        return info

    def _hide(self, key: str) -> EntryInfo | None:
        from jitgen.cache import inventory

        found = next((i for i in inventory.entries_below(self.layers, set()) if i.key == key), None)
        try:
            return found if found is not None and self.layers.hide(key) else None
        except OSError as error:
            raise CacheError(f"cannot hide {key[:12]} in {self.root}: {cause(error)}") from error

    def clear(self) -> list[EntryInfo]:
        """
        Remove every entry, pinned ones too, all remembered failures, measurements, records of
        prewarmed plans and leftovers; returns the entries that are gone. Files that other processes
        are writing now stay, and so do read-only roots.
        """
        from jitgen.cache import prune

        if self.mode != "rw":
            return []
        removed: list[EntryInfo] = []
        present = [info for info in self.entries() if not info.base]
        with suppress(OSError, CacheError), self._opened() as base:
            if base is not None:
                with prune.Removing(base, self.index) as removing:
                    removed += (info for info in present if removing.is_removed(info.key))
        self.tuned.clear()
        self.prewarmed[0].clear()
        for key in self.index.failures():
            self.index.forget_failure(key)
        with self._opened() as base:
            if base is not None:
                prune.sweep_leftovers(base, quarantine_s=prune.ALL_S, drafts_s=self._settling_s())
                prune.sweep_rest(base)
                prune.write_ledger(base, 0)
        return removed

    def prune(self, limit_bytes: int | None = None, *, dry_run: bool = False) -> Pruned:
        """
        Remove the least recently used entries until the rest takes at most `limit_bytes`.

        None takes the setting ``cache_size``; 0 removes no entry. The quarantine and leftovers of
        processes that have ended are removed as well, private folders of compilers among them.
        """
        from jitgen.cache import prune, scratch

        limit = settings.cache_size if limit_bytes is None else limit_bytes
        is_dry = dry_run or self.mode != "rw"
        with self._opened() as base:
            if base is None:
                return prune.nothing(is_dry_run=is_dry)
            swept = prune.sweep_leftovers(
                base, quarantine_s=prune.ALL_S, drafts_s=self._settling_s(), dry_run=is_dry
            )
            swept += [path.name for path in scratch.sweep_scratch(dry_run=is_dry)]
            return prune.prune(
                base, self.index, limit, target_bytes=limit, swept=swept, dry_run=is_dry
            )

    def pin(self, key: str) -> None:
        """
        Spare `key` from pruning, with or without an entry.

        Raises:
            OSError, CacheError: The root cannot be written.
        """
        check_key(key)
        if self.mode == "rw":
            with (
                self._root.create() as base,
                base.service("pins") as pins,
                suppress(FileExistsError),
            ):
                pins.write(key, b"", sync=False)

    def unpin(self, key: str) -> None:
        """Let pruning remove `key` again."""
        check_key(key)
        if self.mode == "rw":
            with suppress(OSError, Damaged), self._opened() as base:
                if base is not None:
                    with base.folder("pins") as pins:
                        pins.discard(key)

    def is_pinned(self, key: str) -> bool:
        """Return whether pruning spares `key`."""
        check_key(key)
        with suppress(OSError, Damaged), self._opened() as base:
            if base is not None:
                with base.folder("pins") as pins:
                    return pins.stat(key) is not None
        return False

    @contextmanager
    def _opened(self) -> Iterator[Folder | None]:
        """
        Yield the folder of this format, opened; None where there is none.

        Raises:
            UnsafeCacheRoot: Another user could put code there.
            CacheError: It cannot be opened.
        """
        try:
            base = self._root.open()
        except CacheError:
            raise
        except OSError as error:
            raise CacheError(f"cannot read the kernel cache {self.root}: {cause(error)}") from error
        if base is None:
            yield None
            return
        with base:
            yield base

    def _settling_s(self) -> float:
        """
        Return the age in seconds from which an unlocked draft counts as abandoned. Where locks
        cannot be trusted, that takes longer.
        """
        from jitgen.cache import prune
        from jitgen.cache.root import filesystem_type, is_network

        kind = filesystem_type(self._root.base)
        return prune.STALE_S if is_network(kind) else prune.SETTLING_S
