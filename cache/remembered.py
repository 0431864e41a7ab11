# SPDX-License-Identifier: Apache-2.0
"""
The latest trust document that any process of a root has seen, stored in that root.

::

    <root>/v1/trust.json         the document, with those that led to it
    <root>/v1/locks/trust.lock   held while the file is replaced

Security rests on this file. Only if there is no such file is nothing remembered. A file that cannot
be read may hold later revocations, so everything that must be signed is refused until it can be
read. It is replaced in one step, under a lock, and only by a document that follows from it: no
process brings back an older one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitgen.cache.disk import cause
from jitgen.cache.folder import Folder
from jitgen.cache.root import Root
from jitgen.errors import CacheError, SigningError
from jitgen.events import warn_once
from jitgen.signing.chain import newest
from jitgen.signing.trust import MAX_BYTES, SealedTrust, opened

TRUST = "trust.json"
_LOCK = "trust.lock"
_PATIENCE_S = 2.0
_POLL_S = 0.01
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_NO_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Remembered:
    """
    The trust document that a root remembers. Safe to use from any thread and number of processes.

    Attributes:
        path: The file that holds it, for messages.
    """

    def __init__(self, root: Root, mode: str) -> None:
        self._root = root
        self._mode = mode
        self.path: Path = root.base / TRUST

    def read(self) -> SealedTrust | None:
        """
        Return the remembered document; None if there is none, or the cache is off.

        Raises:
            SigningError: It cannot be read, or is no trust document.
        """
        if self._mode == "off":
            return None
        try:
            with self._root.enter() as base:
                return self._read(base)
        except FileNotFoundError:  # no root yet
            return None
        except (OSError, CacheError) as error:
            raise self._unreadable(error) from error

    def latest(self, configured: SealedTrust, seen: SealedTrust | None = None) -> SealedTrust:
        """
        Return and remember the latest of three documents: the remembered one, `configured`, and the
        one that this process has used so far, if any.

        Raises:
            SigningError: The remembered document cannot be read, or one of the documents does not
                lead to the latest one.
        """
        kept = self.read()
        known = [one for one in (configured, kept, seen) if one is not None]
        try:
            latest = newest(*known)
        except SigningError as error:
            raise self._unrelated(configured, kept, error) from None
        return latest if kept is not None and kept.data == latest.data else self.keep(latest)

    def keep(self, latest: SealedTrust) -> SealedTrust:
        """
        Remember `latest`; returns it, or a later document that another process has stored
        meanwhile. A root that cannot be written is a warning.

        Raises:
            SigningError: The remembered document cannot be read, or does not belong to `latest`.
        """
        if self._mode != "rw":
            return latest
        try:
            with self._root.create() as base, _alone(base):
                before = self._read(base)
                if before is not None:
                    try:
                        latest = newest(before, latest)
                    except SigningError as error:
                        raise self._unrelated(latest, before, error) from None
                if before is None or before.data != latest.data:
                    base.replace_durably(TRUST, latest.data)
        except (OSError, CacheError) as error:
            warn_once(
                f"remember {self.path} {latest.digest}",
                "trust document %d cannot be remembered in %s (%s): a process that starts goes by "
                "an older one",
                latest.version,
                self.path,
                cause(error),
            )
        return latest

    def adopt(self, chosen: SealedTrust) -> SealedTrust | None:
        """
        Remember `chosen` in place of the remembered document; returns the latter, None if there was
        none or it could not be read.

        Raises:
            SigningError: The remembered document is a later version of `chosen`.
            OSError, CacheError: The root cannot be written.
        """
        if self._mode != "rw":
            raise CacheError(f"the cache may not be written ({self._mode})")
        with self._root.create() as base, _alone(base):
            try:
                before = self._read(base)
            except SigningError:
                before = None
                found = base.stat(TRUST)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    base.discard(TRUST)
            if before is not None and before.version > chosen.version and before.comes_from(chosen):
                raise SigningError(
                    f"{self.path} remembers version {before.version}, which follows from version "
                    f"{chosen.version}: versions only grow; sign a later one instead"
                )
            base.replace_durably(TRUST, chosen.data)
        return before

    def _read(self, base: Folder) -> SealedTrust | None:
        try:
            return opened(base.read(TRUST, MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, CacheError, SigningError) as error:
            raise self._unreadable(error) from error

    def _unrelated(
        self, configured: SealedTrust, kept: SealedTrust | None, error: SigningError
    ) -> SigningError:
        """Return an error that says which two documents do not belong together, and what to do."""
        try:
            newest(configured, configured if kept is None else kept)
        except SigningError as other:
            return SigningError(
                f"{self.path} remembers another trust document, and {other}; put one in place that "
                "has those between them, or, if it is to begin anew, run: "
                f"JITGEN_CACHE_DIR={self._root.path} jitgen trust adopt"
            )
        return SigningError(
            f"this process has gone by another trust document, and {error}; if it is to begin "
            "anew, start this process again"
        )

    def _unreadable(self, error: Exception) -> SigningError:
        return SigningError(
            f"{self.path}, which remembers the latest trust document, cannot be read: "
            f"{cause(error)}; nothing that must be signed is accepted until it can be; if it is "
            "lost, put the latest document where JITGEN_TRUST says and run: jitgen trust adopt"
        )


@contextmanager
def _alone(base: Folder) -> Iterator[None]:
    """
    Hold the lock of the document in `base` during the with block. Without locks on the file system
    nothing is held: another host may replace the document in between, and the next process with a
    later one writes it again.

    Raises:
        OSError, CacheError: The lock cannot be taken.
    """
    with base.service("locks") as locks:
        descriptor = _lock_file(locks)
        try:
            end = time.monotonic() + _PATIENCE_S
            while not _is_locked(descriptor):
                if time.monotonic() > end:
                    raise CacheError(f"another process holds {locks.path / _LOCK}")
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)


def _lock_file(locks: Folder) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(_LOCK, flags, locks.mode(0o666), dir_fd=locks.descriptor)
    except OSError as error:
        if error.errno == errno.EACCES:  # another user's, in a folder that both may write to
            return os.open(_LOCK, _READ, dir_fd=locks.descriptor)
        if error.errno not in _NO_FILE:
            raise
    locks.discard(_LOCK)  # not a regular file
    return os.open(_LOCK, flags, locks.mode(0o666), dir_fd=locks.descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
