# SPDX-License-Identifier: Apache-2.0
"""
Roots that are read and never written, below the one that is: an image's, a mounted volume's.

An entry in one of them is loaded like every other, through the bytes that were checked. It cannot
be removed; what is to be out of sight gets a whiteout in the root that is written: a small file
with the digest of the record that it hides, so that an image that is built anew is seen again.

::

    <root>/v1/whiteouts/<key>         a SHA-256 in hexadecimal, one a line
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.cache.entry import LIMITS, META, Entry, Meta
from jitgen.cache.files import read_entry, read_meta
from jitgen.cache.folder import Folder
from jitgen.cache.root import Root
from jitgen.cache.trust import Damaged
from jitgen.errors import UnsafeCacheRoot
from jitgen.events import Event, EventKind, events, warn_once

if TYPE_CHECKING:
    from jitgen.cache.survey import Verification

WHITEOUTS = "whiteouts"
_MAX_BYTES = 2**14
_NO_RECORD = hashlib.sha256(b"").hexdigest()


class Layers:
    """
    The roots below `upper`, first asked first. No method raises for what the disks hold.

    A root that is not safe is left out, with one warning: the others serve.
    """

    def __init__(self, upper: Root, bases: Iterable[Path], *, is_writable: bool) -> None:
        self._upper = upper
        self._roots = tuple(Root(path) for path in bases)
        self._is_writable = is_writable

    def read(self, key: str) -> Entry | None:
        """
        Return entry `key`, verified, from the first root that has a good one that is not hidden.

        A damaged one is hidden, so that the next process need not look at it.
        """
        for root, entries in self._opened():
            with entries, suppress(FileNotFoundError):
                try:
                    with entries.below(key[:2], key) as folder:
                        if _record(folder) not in self._hidden(key):
                            return read_entry(folder, key)
                except Damaged as damage:
                    self._tell_damage(root, key, str(damage))
                except OSError as error:
                    _tell_trouble(root, error)
        return None

    def each(self) -> Iterator[tuple[str, Folder, Root]]:
        """Yield key, folder (open until the next one) and root of every entry in sight."""
        from jitgen.cache.survey import keys_in

        seen: set[str] = set()
        for root, entries in self._opened():
            with entries, suppress(OSError):
                for key in keys_in(entries):
                    with suppress(OSError, Damaged), entries.below(key[:2], key) as folder:
                        if key not in seen and _record(folder) not in self._hidden(key):
                            seen.add(key)
                            yield key, folder, root

    def metas(self) -> Iterator[Meta]:
        """Yield the record of every entry in sight that has a good one."""
        for key, folder, _ in self.each():
            with suppress(OSError, Damaged):
                yield read_meta(folder, key)

    def verify(self) -> list[Verification]:
        """Return for each entry in sight whether it is good; changes nothing."""
        from jitgen.cache.survey import verification

        return [verification(folder, key) for key, folder, _ in self.each()]

    def hide(self, key: str) -> list[Path]:
        """
        Put entry `key` out of sight; returns the roots that hold it.

        Raises:
            OSError, CacheError: The upper root cannot be written.
        """
        found = {}
        for root, entries in self._opened():
            with entries, suppress(OSError, Damaged), entries.below(key[:2], key) as folder:
                found[root.path] = _record(folder)
        hidden = self._hidden(key)
        new = {path: record for path, record in found.items() if record not in hidden}
        if new:
            text = "".join(f"{record}\n" for record in sorted({*hidden, *new.values()}))
            with (
                self._upper.create() as base,
                base.service("tmp") as drafts,
                base.service(WHITEOUTS) as whiteouts,
            ):
                whiteouts.replace(key, text.encode("ascii"), drafts)
        return list(new)

    def _hidden(self, key: str) -> frozenset[str]:
        """Return the digests of the records of `key` that are out of sight."""
        try:
            base = self._upper.open()
            if base is None:
                return frozenset()
            with base, base.folder(WHITEOUTS) as whiteouts:
                return frozenset(whiteouts.read(key, _MAX_BYTES).decode("ascii").split())
        except (OSError, Damaged, ValueError):
            return frozenset()

    def _opened(self) -> Iterator[tuple[Root, Folder]]:
        """Yield each root, and its folder of entries, opened; whoever gets it closes it."""
        for root in self._roots:
            try:
                base = root.open()
                if base is None:
                    continue
                with base:
                    entries = root.entries(base)
            except FileNotFoundError:
                continue
            except (UnsafeCacheRoot, OSError) as error:
                _tell_trouble(root, error)
                continue
            yield root, entries

    def _tell_damage(self, root: Root, key: str, reason: str) -> None:
        is_hidden = False
        if self._is_writable:
            with suppress(OSError, UnsafeCacheRoot, Damaged):
                is_hidden = bool(self.hide(key))
        where = f"{reason}, in {root.path}, which is only read"
        how = "it is hidden from now on" if is_hidden else "every process finds it again"
        warn_once(f"cache base {key}", "entry %s is damaged (%s); %s", key[:12], where, how)
        events.emit(Event(kind=EventKind.QUARANTINE, key=key, detail=where))


def _record(folder: Folder) -> str:
    """Return the digest of an entry's record, which stands for the entry."""
    try:
        return hashlib.sha256(folder.read(META, LIMITS[META])).hexdigest()
    except (Damaged, FileNotFoundError):
        return _NO_RECORD


def _tell_trouble(root: Root, error: Exception) -> None:
    reason = getattr(error, "strerror", None) or str(error)
    hint = "; give everybody leave to read it: chmod -R a+rX" if _is_closed(error) else ""
    warn_once(f"cache base {root.path}", "not reading %s: %s%s", root.path, reason, hint)


def _is_closed(error: Exception) -> bool:
    return isinstance(error, PermissionError) and not isinstance(error, UnsafeCacheRoot)
