# SPDX-License-Identifier: Apache-2.0
"""
The trust document in use, and what it says of an entry.

It is the later one of two: that in the file which JITGEN_TRUST names, and the latest that this root
has seen, in ``<root>/v1/trust.json``. So a document that was taken back cannot come again by
putting the old file in its place, and one that the service hands out holds for every process here.
A document in the root counts only if a root key of the configured one signed it.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

from jitgen.cache.disk import cause
from jitgen.cache.folder import Damaged
from jitgen.cache.root import Root
from jitgen.documents import BadDocument
from jitgen.errors import CacheError, SettingError, SigningError
from jitgen.settings import settings
from jitgen.signing.policy import judge
from jitgen.signing.trust import MAX_BYTES, SealedTrust, opened
from jitgen.trusted_files import Stamp
from jitgen.trusted_files import opened as opened_file

TRUST = "trust.json"
_LOOKED = "trust.looked"  # its time is when
FRESH_S = 60.0
"""How long a process goes by what it read before it looks whether another one saw a later one."""


class Trusted:
    """What the settings trust, over one root. Safe to use from any thread."""

    def __init__(self, root: Root, *, is_writable: bool) -> None:
        self._root = root
        self._is_writable = is_writable

    def current(self) -> SealedTrust:
        """
        Return the trust document in use; whether it has expired is for `judge` to say.

        Raises:
            SettingError: JITGEN_TRUST is not set.
            SigningError: The file that it names is no trust document, or others can write to it.
        """
        path = settings.trust
        if path is None:
            raise SettingError(
                f"JITGEN_VERIFY={settings.verify} loads only what is signed, and JITGEN_TRUST does "
                "not say whose signatures count; name a trust document (jitgen trust init makes "
                "one), or set JITGEN_VERIFY=off to load what anybody put there"
            )
        data, stamp = _read(path)
        seen = _seen.get((self._root.base, path))
        if seen is not None and seen[0] == stamp and time.monotonic() < seen[1]:
            return seen[2]
        try:
            configured = opened(data)
        except SigningError as error:
            raise SigningError(f"JITGEN_TRUST={path} is not used: {error}") from None
        kept = self._kept(configured)
        if kept is None:
            self._keep(configured)
        return self._remember(path, stamp, kept or configured)

    def accept(self, data: bytes) -> SealedTrust:
        """
        Go by the trust document in `data` from now on, in every process of this root.

        Raises:
            SigningError: It may not take the place of the one in use.
            SettingError: JITGEN_TRUST is not set.
        """
        later = opened(data, before=self.current())
        self._keep(later)
        return self._remember(settings.trust, _read(settings.trust)[1], later)

    def is_fresh(self, seconds: float) -> bool:
        """Return whether a process here looked for a later document in the last `seconds`."""
        if time.monotonic() - _looked.get(self._root.base, -math.inf) < seconds:
            return True
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base:
                    found = base.stat(_LOOKED)
                    return found is not None and 0 <= time.time() - found.st_mtime < seconds
        return False

    def mark_fresh(self) -> None:
        """Note that a process here has just looked."""
        _looked[self._root.base] = time.monotonic()
        if self._is_writable:
            with suppress(OSError, CacheError), self._root.create() as base:
                base.discard(_LOOKED)
                base.write(_LOOKED, b"", sync=False)

    def refusal(self, record: bytes, signatures: bytes) -> str:
        """
        Return why the entry with this ``meta.json`` and ``signatures.json`` is not to be loaded;
        empty if it is.

        Raises:
            SettingError: JITGEN_TRUST is not set.
        """
        try:
            return judge(record, signatures, self.current().trust).reason
        except SigningError as error:
            return str(error)

    def _kept(self, configured: SealedTrust) -> SealedTrust | None:
        """Return the document that this root keeps, if it is later than `configured`."""
        with suppress(OSError, CacheError, SigningError):
            base = self._root.open()
            if base is not None:
                with base:
                    return opened(base.read(TRUST, MAX_BYTES), before=configured)
        return None

    def _keep(self, trust: SealedTrust) -> None:
        if self._is_writable:
            with (
                suppress(OSError, Damaged, CacheError),
                self._root.create() as base,
                base.service("tmp") as drafts,
            ):
                if base.stat(TRUST) is None or base.read(TRUST, MAX_BYTES) != trust.data:
                    base.replace(TRUST, trust.data, drafts)

    def _remember(self, path: Path, stamp: Stamp, trust: SealedTrust) -> SealedTrust:
        _seen[self._root.base, path] = (stamp, time.monotonic() + FRESH_S, trust)
        return trust


_looked: dict[Path, float] = {}
_seen: dict[tuple[Path, Path], tuple[Stamp, float, SealedTrust]] = {}


def _read(path: Path) -> tuple[bytes, Stamp]:
    """Return the content of a trust file and what changes when it does."""
    try:
        with opened_file(path) as file:
            return file.read(MAX_BYTES), file.stamp
    except BadDocument as error:
        raise SigningError(f"the trust document {path} cannot be read: {error}") from None
    except OSError as error:
        raise SigningError(f"the trust document cannot be read: {cause(error)}") from error
