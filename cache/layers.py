# SPDX-License-Identifier: Apache-2.0
"""
Read-only roots (of a container image, of a mounted volume) below the root that is written.

An entry in one of them is loaded like every other, through the bytes that were checked. It cannot
be removed. To hide it, the root that is written gets a whiteout: a small file that names root and
record of the hidden entry, so that the entry of a rebuilt image is seen again, and the same entry
in another root stays.

::

    <root>/v1/whiteouts/<key>         SHA-256 of a root's path and a record, one a line
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.cache.disk import cause
from jitgen.cache.entry import LIMITS, META, Entry, Meta, is_key, read_entry, read_meta
from jitgen.cache.folder import Damaged, Folder, Untrusted
from jitgen.cache.root import Root
from jitgen.errors import CacheError, UnsafeCacheRoot
from jitgen.events import Event, EventKind, events, warn_once

if TYPE_CHECKING:
    from jitgen.cache.absence import Absence
    from jitgen.cache.inventory import Verification
    from jitgen.cache.quarantine import Damage

WHITEOUTS = "whiteouts"
_HIDDEN = "it is hidden: by jitgen cache rm, or because a process could not load it"
_MAX_BYTES = 2**14


class _Illegible(Damaged):
    """A whiteout exists and cannot be read any more."""


class Layers:
    """
    The roots below `upper`, in the order in which they are searched. No method raises because of
    the disk.

    A root that is not safe is left out, with one warning: the others serve.
    """

    def __init__(
        self,
        upper: Root,
        bases: Iterable[Path],
        accepts: Callable[[Entry], bool],
        *,
        is_writable: bool,
    ) -> None:
        self._upper = upper
        self._accepts = accepts
        roots = (Root(path) for path in bases)
        self._roots = tuple(root for root in roots if root.base != upper.base)
        self._is_writable = is_writable

    def look(self) -> None:
        """Open each root once, so that one that cannot serve is reported at the start."""
        for _, entries in self._opened():
            with entries:
                pass

    def read(self, key: str) -> Entry | None:
        """
        Return entry `key`, verified, from the first root that has a good one that is not hidden and
        that the settings accept; None if there is none.

        A damaged one is hidden, so that the next process need not look at it.
        """
        hidden: frozenset[str] | None = None
        for root, entries in self._opened():
            with entries:
                try:
                    with entries.below(key[:2], key) as folder:
                        if hidden is None and (hidden := self._known_hidden(key)) is None:
                            return None
                        if _mark(root, folder) in hidden:
                            continue
                        entry = read_entry(folder, key)
                        # Above, the record may not have been readable: compare it once more.
                        is_hidden = _mark_of(root, entry.meta.encode()) in hidden
                        if not is_hidden and self._accepts(entry):
                            return entry
                except Damaged as damage:
                    self._tell_damage(root, key, str(damage))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    _tell_trouble(root, error)
        return None

    def absences(self, key: str) -> Iterator[Absence]:
        """Yield why each root does not serve entry `key`."""
        from jitgen.cache.absence import absence_of

        for root in self._roots:
            found = absence_of(root, key, f"JITGEN_BASE {root.path}")
            entry = found.entry
            if entry is not None and _mark_of(root, entry.meta.encode()) in self._hidden(key):
                found = replace(found, reason=_HIDDEN)
            yield found

    def each(self, prefix: str = "") -> Iterator[tuple[str, Folder, Root]]:
        """
        Yield key, folder (open until the next one) and root of every entry that is not hidden and
        whose key begins with `prefix`.
        """
        from jitgen.cache.inventory import keys_in

        seen: set[str] = set()
        for root, entries in self._opened():
            with entries, suppress(OSError):
                for key in keys_in(entries, prefix):
                    with suppress(OSError, Damaged), entries.below(key[:2], key) as folder:
                        if key not in seen and _mark(root, folder) not in self._hidden(key):
                            seen.add(key)
                            yield key, folder, root

    def metas(self, prefix: str = "") -> Iterator[Meta]:
        """
        Yield the record of every entry that is not hidden and whose record is good; `prefix` as in
        `each`.
        """
        for key, folder, _ in self.each(prefix):
            with suppress(OSError, Damaged):
                yield read_meta(folder, key)

    def verify(self, *, hides: bool) -> list[Verification]:
        """
        Return for each entry that is not hidden whether it is good; with `hides`, bad entries are
        hidden.
        """
        from jitgen.cache.inventory import verification

        results = []
        for key, folder, root in self.each():
            result = replace(verification(folder, key), base=str(root.path))
            if hides and not result.is_good and self._hides_damage(root, key):
                result = replace(result, fate="hidden")
            results.append(result)
        return results

    def damages(self, key: str) -> Iterator[Damage]:
        """Yield why entry `key` of each root that holds one does not serve; changes nothing."""
        from jitgen.cache.quarantine import damage_in

        for root, entries in self._opened():
            with entries, suppress(OSError, Damaged), entries.below(key[:2], key) as folder:
                is_hidden = _mark(root, folder) in self._hidden(key)
                if found := damage_in(folder, key, otherwise=_HIDDEN if is_hidden else ""):
                    yield found

    def hide(self, key: str, meets: Callable[[Root, Folder], bool] | None = None) -> list[Path]:
        """
        Hide entry `key` in the roots where it `meets` a condition, or in all; returns the roots
        in which it was not hidden before.

        Raises:
            OSError, CacheError: The upper root cannot be written.
        """
        try:
            hidden = self._hidden(key)
        except _Illegible:
            hidden, meets = frozenset(), None  # which ones were hidden is unknown: hide all
        found = {}
        for root, entries in self._opened():
            with entries, suppress(OSError, Damaged), entries.below(key[:2], key) as folder:
                if meets is None or meets(root, folder):
                    found[root.path] = _mark(root, folder)
        new = {path: mark for path, mark in found.items() if mark not in hidden}
        if new:
            text = "".join(f"{mark}\n" for mark in sorted({*hidden, *new.values()}))
            with (
                self._upper.create() as base,
                base.service("tmp") as drafts,
                base.service(WHITEOUTS) as whiteouts,
            ):
                whiteouts.replace(key, text.encode("ascii"), drafts)
        return list(new)

    def hide_record(self, meta: Meta) -> None:
        """Hide the entry that has exactly this record; raises as `hide`."""

        def is_same(_: Root, folder: Folder) -> bool:
            return read_meta(folder, meta.key) == meta

        self.hide(meta.key, is_same)

    def _known_hidden(self, key: str) -> frozenset[str] | None:
        """
        Return the marks of hidden entries of `key`; None if they cannot be read. A damaged whiteout
        is written anew, and hides all that there is now.
        """
        try:
            return self._hidden(key)
        except (OSError, CacheError) as error:
            if self._is_writable and isinstance(error, _Illegible):
                with suppress(OSError, CacheError):
                    self.hide(key)
            warn_once(
                f"whiteouts {key}",
                "%s is not loaded from roots only read: what is hidden of it in %s cannot be read "
                "(%s)",
                key[:12],
                self._upper.path,
                cause(error),
            )
            return None

    def _hidden(self, key: str) -> frozenset[str]:
        """
        Return the marks of the hidden entries of `key`.

        Raises:
            OSError, CacheError: They cannot be read. Then all entries of `key` count as hidden,
                because they may have been revoked.
        """
        base = self._upper.open()
        if base is None:
            return frozenset()
        try:
            with base, base.folder(WHITEOUTS) as whiteouts:
                marks = whiteouts.read(key, _MAX_BYTES).decode("ascii", "replace").split()
        except FileNotFoundError:
            return frozenset()
        except Untrusted:
            raise
        except Damaged as damage:
            raise _Illegible(str(damage)) from None
        if not marks or not all(map(is_key, marks)):
            raise _Illegible(f"{WHITEOUTS}/{key} is no list of what is hidden")
        return frozenset(marks)

    def _opened(self) -> Iterator[tuple[Root, Folder]]:
        """Yield each root, and its folder of entries, opened; the caller closes it."""
        for root in self._roots:
            try:
                base = root.open()
                if base is None:
                    _tell_missing(root)
                    continue
                with base:
                    entries = root.entries(base)
            except FileNotFoundError:
                continue
            except (UnsafeCacheRoot, OSError) as error:
                _tell_trouble(root, error)
                continue
            yield root, entries

    def _hides_damage(self, root: Root, key: str) -> bool:
        """Hide entry `key` of `root` if whiteouts can be written; returns whether it was hidden."""
        with suppress(OSError, CacheError):
            return self._is_writable and bool(self.hide(key, lambda other, _: other is root))
        return False

    def _tell_damage(self, root: Root, key: str, reason: str) -> None:
        where = f"{reason}, in {root.path}, which is only read"
        is_hidden = self._hides_damage(root, key)
        how = "it is hidden from now on" if is_hidden else "every process finds it again"
        warn_once(f"cache base {key}", "entry %s is damaged (%s); %s", key[:12], where, how)
        events.emit(Event(kind=EventKind.QUARANTINE, key=key, detail=where))


def _mark(root: Root, folder: Folder) -> str:
    """Return the digest of a root's path and an entry's record: its line in a whiteout."""
    try:
        record = folder.read(META, LIMITS[META])
    except (Damaged, FileNotFoundError):
        record = b""
    return _mark_of(root, record)


def _mark_of(root: Root, record: bytes) -> str:
    return hashlib.sha256(os.fsencode(root.path) + b"\0" + record).hexdigest()


def _tell_missing(root: Root) -> None:
    """
    Warn of a root that does not exist. A root without entries gives no warning: it may be filled
    later.
    """
    if not root.path.is_dir():
        warn_once(
            f"cache base {root.path}",
            "not reading JITGEN_BASE %s: there is no such folder",
            root.path,
        )


def _tell_trouble(root: Root, error: Exception) -> None:
    reason = cause(error)
    hint = "; give everybody leave to read it: chmod -R a+rX" if _is_closed(error) else ""
    warn_once(
        f"cache base {root.path}", "not reading JITGEN_BASE %s: %s%s", root.path, reason, hint
    )


def _is_closed(error: Exception) -> bool:
    return isinstance(error, PermissionError) and not isinstance(error, UnsafeCacheRoot)
