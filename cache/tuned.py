# SPDX-License-Identifier: Apache-2.0
"""
What was measured, kept beside the index: one small JSON file for each fact.

Choosing a kernel asks here before anything runs, so that no database is opened for it: a fact that
is not there costs one look at the disk. A file of its own for each also means that a measurement
that is broken off loses nothing, and that reading works where nothing may be written, and on
network file systems. Files appear by renaming, so that nobody reads half of one.

::

    tuned/<device>/<kind>/<name>.json

`device` stands for the hardware and for all that generates kernels; what the documents say is for
their reader to judge.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitgen.cache.area import discard, unique_name
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.events import warn_once

MAX_BYTES = 2**20
"""No file of this kind is larger; a bigger one is not even read."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Tuned:
    """
    The measurements under one root, which whoever opened the store has checked; reading never
    raises for what the disk holds.
    """

    def __init__(self, root: Root, *, is_writable: bool) -> None:
        self._root = root
        self._folder = root.base / "tuned"
        self._is_writable = is_writable

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever recorded: one look at the disk."""
        return not self._folder.is_dir()

    def read(self, device: str, kind: str, name: str) -> dict[str, Any] | None:
        """
        Return a document; None where there is none, or where it cannot be trusted, with a warning.
        """
        path = self._path(device, kind, name)
        try:
            document = json.loads(_bytes(path))
            if not isinstance(document, dict):
                raise ValueError("it holds no JSON object")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            warn_once(f"tuned {path}", "ignoring what %s holds: %s", path, error)
            return None
        return document

    def write(self, device: str, kind: str, name: str, document: dict[str, Any]) -> None:
        """
        Record a document, in place of an earlier one of that name.

        Raises:
            CacheError: The root may not be written, or cannot.
        """
        path = self._path(device, kind, name)
        if not self._is_writable:
            raise CacheError(
                f"measurements cannot be recorded in {self._root.path}: it is read-only"
            )
        draft = self._root.tmp / unique_name()
        try:
            self._root.create()
            for folder in (self._folder, path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(draft, _WRITE, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                json.dump(document, stream, indent=1)
                stream.flush()
                os.fsync(descriptor)
            draft.replace(path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            reason = error.strerror or error
            raise CacheError(f"measurements cannot be recorded in {path}: {reason}") from error

    def remove(self, device: str, kind: str, name: str) -> None:
        """Forget a document."""
        if self._is_writable:
            with suppress(OSError):
                self._path(device, kind, name).unlink()

    def names(self, device: str, kind: str) -> list[str]:
        """Return the names of the documents of one kind, sorted."""
        return sorted(path.stem for path in self._files(device, kind))

    def count(self, kind: str) -> int:
        """Return how many documents of one kind there are, over all devices."""
        return len(self._files("*", kind))

    def clear(self) -> None:
        """Forget everything."""
        if self._is_writable:
            discard(self._folder)

    def _files(self, device: str, kind: str) -> list[Path]:
        with suppress(OSError):
            return list(self._folder.glob(f"{device}/{kind}/*.json"))
        return []

    def _path(self, device: str, kind: str, name: str) -> Path:
        return self._folder / device / kind / f"{name}.json"


def _bytes(path: Path) -> bytes:
    """Return the content of a regular file that nobody else can write to."""
    descriptor = os.open(path, _READ)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise ValueError(f"it belongs to user {found.st_uid}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(
                f"other users may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
            )
        if found.st_size > MAX_BYTES:
            raise ValueError(f"it has {found.st_size} bytes, and no such file has that many")
        return stream.read(MAX_BYTES + 1)
