# SPDX-License-Identifier: Apache-2.0
"""
Measurements and records of prewarmed plans: one small JSON file each, beside the index.

Choosing a kernel reads here before anything runs, so no database is used: a missing file costs one
stat. Separate files also mean that an interrupted measurement loses nothing, and that reading works
in read-only roots and on network file systems. Files appear by renaming, so that no process reads
half of one.

::

    tuned/<device>/<kind>/<name>.json
    prewarmed/<target>/plans/<name>.json

`device` is a digest of the hardware and of every version that generates kernels. The second file
says which plans were prewarmed, and for which devices: see `jitgen.runtime.coverage`. The readers
check the contents of the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jitgen.cache.disk import cause
from jitgen.cache.folder import Folder, Untrusted
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.events import warn_once
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.failing import is_passing

MAX_BYTES = 2**20
"""No file of this kind is larger; a bigger one is not even read."""


_troubles = 0


def troubles() -> int:
    """
    Return how often measurements could not be read in this process although they may exist. If the
    number grows during a choice, this choice must not be remembered.
    """
    return _troubles


def note_trouble(error: Exception) -> None:
    """Count an `error` that kept measurements from being read, if it may pass."""
    global _troubles
    _troubles += is_passing(error)


class Tuned:
    """The measurements under one root; reading never raises because of the disk."""

    top, what = "tuned", "measurements"
    """The folder, and the name of its files in messages."""

    def __init__(self, root: Root, *, is_writable: bool) -> None:
        self._root = root
        self._is_writable = is_writable

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever recorded; costs one stat."""
        try:
            with self._folder():
                return False
        except FileNotFoundError:
            return True
        except (OSError, CacheError) as error:
            note_trouble(error)
            return True

    def read(self, device: str, kind: str, name: str) -> dict[str, object] | None:
        """Return a document; None if there is none, or, with a warning, if it cannot be trusted."""
        try:
            with self._folder(device, kind) as folder:
                document = parse_json(folder.read(f"{name}.json", MAX_BYTES), max_bytes=MAX_BYTES)
            if not isinstance(document, dict):
                raise BadDocument("it holds no JSON object")
        except FileNotFoundError:
            return None
        except (OSError, CacheError, BadDocument) as error:
            path = self._root.base / self.top / device / kind / f"{name}.json"
            reason = f"it {error.reason}" if isinstance(error, Untrusted) else error
            note_trouble(error)
            warn_once(f"{self.top} {path}", "ignoring what %s holds: %s", path, reason)
            return None
        return document

    def write(self, device: str, kind: str, name: str, document: dict[str, object]) -> None:
        """
        Record a document, in place of an earlier one of that name.

        Raises:
            CacheError: The root must not or cannot be written.
        """
        if not self._is_writable:
            raise CacheError(
                f"{self.what} cannot be recorded in {self._root.path}: it is read-only"
            )
        text = json.dumps(document, indent=1, allow_nan=False)
        try:
            with (
                self._root.create() as base,
                base.service("tmp") as drafts,
                base.below(self.top, device, kind, create=True) as folder,
            ):
                folder.replace(f"{name}.json", text.encode("ascii"), drafts)
        except OSError as error:
            raise CacheError(
                f"{self.what} cannot be recorded in {self._root.base / self.top}: {cause(error)}"
            ) from error

    def remove(self, device: str, kind: str, name: str) -> None:
        """Forget a document."""
        if self._is_writable:
            with suppress(OSError, CacheError), self._folder(device, kind) as folder:
                folder.discard(f"{name}.json")

    def names(self, device: str, kind: str) -> list[str]:
        """Return the names of the documents of one kind, sorted."""
        try:
            with self._folder(device, kind) as folder:
                names = folder.names()
                return sorted(n.removesuffix(".json") for n in names if n.endswith(".json"))
        except FileNotFoundError:
            return []
        except (OSError, CacheError) as error:
            note_trouble(error)
            return []

    def count(self, kind: str) -> int:
        """Return how many documents of one kind there are, over all devices."""
        with suppress(OSError, CacheError), self._folder() as folder:
            return sum(len(self.names(device, kind)) for device in folder.names())
        return 0

    def clear(self) -> None:
        """Remove all documents."""
        if self._is_writable:
            with suppress(OSError, CacheError):
                base = self._root.open()
                if base is not None:
                    with base:
                        base.discard(self.top)

    @contextmanager
    def _folder(self, *names: str) -> Iterator[Folder]:
        """
        Yield the folder that `names` lead to below `top`, opened.

        Raises:
            FileNotFoundError: There is none.
            OSError, Damaged, UnsafeCacheRoot: The folder cannot be opened, or cannot be trusted.
        """
        base = self._root.open()
        if base is None:
            raise FileNotFoundError(self._root.base)
        with base, base.below(self.top, *names) as folder:
            yield folder


class Prewarmed(Tuned):
    """The records of prewarmed plans under one root; reading never raises because of the disk."""

    top, what = "prewarmed", "what was prewarmed"
