# SPDX-License-Identifier: Apache-2.0
"""
Finds the trust document in use, and judges entries by it.

It is the latest of three: the file that JITGEN_TRUST names, the latest that this root remembers,
and the latest that this process has used. The older ones must lead to it, each step signed by root
keys of the document before. So putting an old file in place does not bring back a revoked document,
a document from a remote place holds for every process here, and an old file stays valid after any
number of changes of the root key. If one of them cannot be read, or does not belong to the others,
none is in use: everything that must be signed is refused, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jitgen.cache.disk import cause
from jitgen.cache.remembered import Remembered
from jitgen.cache.root import Root
from jitgen.errors import CacheError, SettingError, SigningError
from jitgen.events import warn_once
from jitgen.ownership.files import Stamp
from jitgen.ownership.files import opened as opened_file
from jitgen.settings import settings
from jitgen.signing.chain import newest
from jitgen.signing.policy import judge
from jitgen.signing.trust import MAX_BYTES, SealedTrust, opened
from jitgen.support.documents import BadDocument, parse_json

_LOOKED = "trust.looked"  # which backends were asked, and when
_MAX_LOOKED = 2**14
_EVERYWHERE = "*"
FRESH_S = 60.0
"""
Seconds that a process uses a document before it checks whether another process saw a later one.
"""


class _Seen(NamedTuple):
    """The document that this process uses, until when, and the files that it was read from."""

    latest: SealedTrust
    until: float
    stamp: Stamp | None


class Trusted:
    """Finds the trust document in use under one root. Safe to use from any thread."""

    def __init__(self, root: Root, mode: str) -> None:
        self._root = root
        self._mode = mode
        self.remembered = Remembered(root, mode)

    def current(self) -> SealedTrust:
        """
        Return the trust document in use; whether it has expired is for `judge` to say.

        Raises:
            SettingError: JITGEN_TRUST is not set.
            SigningError: The file that it names is no trust document, or others can write to it; or
                what this root remembers cannot be read, or does not belong to it.
        """
        path = _path()
        data, stamp = _read(path)
        seen = _seen.get((self._root.base, path))
        if seen is not None and seen.stamp == stamp and time.monotonic() < seen.until:
            return seen.latest
        with _lock:
            return self._looked(path, data, stamp)

    def configured(self) -> SealedTrust:
        """Return the document in the file of JITGEN_TRUST; raises as `current`."""
        path = _path()
        return _opened(path, _read(path)[0])

    def accept(self, data: bytes) -> SealedTrust:
        """
        Use the trust document in `data` from now on, in every process of this root.

        Raises:
            SigningError: It may not take the place of the one in use; see `current` for others.
            SettingError: JITGEN_TRUST is not set.
        """
        path = _path()
        configured, stamp = _read(path)
        with _lock:
            before = self._looked(path, configured, stamp)
            latest = newest(before, opened(data, before))
            _tell_taken_back(before, latest)
            # This process uses it even if it cannot be stored. Until it is stored, every use checks
            # the stored document again.
            name = (self._root.base, path)
            _seen[name] = _Seen(latest, -math.inf, stamp)
            latest = self.remembered.keep(latest)
            _seen[name] = _Seen(latest, time.monotonic() + FRESH_S, stamp)
            return latest

    def adopt(self) -> tuple[SealedTrust, SealedTrust | None]:
        """
        Use the file of JITGEN_TRUST from now on in this root, and forget the remembered document.

        Returns that document, and the one that was remembered.

        Raises:
            SettingError, SigningError: It cannot be used; or it is just an older version.
            OSError, CacheError: The root cannot be written.
        """
        path = _path()
        chosen = _opened(path, _read(path)[0])
        with _lock:
            before = self.remembered.adopt(chosen)
            _seen.pop((self._root.base, path), None)
        return chosen, before

    def is_fresh(self, seconds: float, url: str = _EVERYWHERE) -> bool:
        """
        Return whether a process here asked the place at `url` for a later document in the last
        `seconds`.
        """
        places = (_place(url), _EVERYWHERE)
        if any(
            time.monotonic() - _looked.get((self._root.base, x), -math.inf) < seconds
            for x in places
        ):
            return True
        found = self._when()
        return any(0 <= time.time() - found.get(x, -math.inf) < seconds for x in places)

    def mark_fresh(self, url: str = _EVERYWHERE) -> None:
        """Note that a process here has just asked the place at `url`, or all of them."""
        _looked[self._root.base, _place(url)] = time.monotonic()
        if self._mode == "rw":
            found = {**self._when(), _place(url): time.time()}
            data = json.dumps(found).encode("ascii")
            with suppress(OSError, CacheError), self._root.create() as base:
                base.discard(_LOOKED)
                base.write(_LOOKED, data if len(data) <= _MAX_LOOKED else b"", sync=False)

    def refusal(self, record: bytes, signatures: bytes) -> str:
        """
        Return why the entry with this ``meta.json`` and ``signatures.json`` must not be loaded;
        empty if it may be.

        Raises:
            SettingError: JITGEN_TRUST is not set.
        """
        try:
            return judge(record, signatures, self.current().trust).reason
        except SigningError as error:
            return str(error)

    def _looked(self, path: Path, data: bytes, stamp: Stamp) -> SealedTrust:
        """Return the latest document, and remember it."""
        name = (self._root.base, path)
        seen = _seen.get(name)
        configured = _opened(path, data)
        try:
            latest = self.remembered.latest(configured, None if seen is None else seen.latest)
        except SigningError as error:
            raise SigningError(f"JITGEN_TRUST={path} is not used: {error}") from error
        _seen[name] = _Seen(latest, time.monotonic() + FRESH_S, stamp)
        return latest

    def _when(self) -> dict[str, float]:
        """Return when places were asked, seconds since 1970; nothing if that cannot be read."""
        with suppress(OSError, CacheError, BadDocument):
            base = self._root.open()
            if base is not None:
                with base:
                    found = parse_json(base.read(_LOOKED, _MAX_LOOKED))
                    if isinstance(found, dict):
                        return {x: at for x, at in found.items() if isinstance(at, (int, float))}
        return {}


_looked: dict[tuple[Path, str], float] = {}
_seen: dict[tuple[Path, Path], _Seen] = {}
_lock = threading.Lock()
"""
Held while the latest document is found, so that no thread restores one that another has replaced.
"""


def _after_fork() -> None:
    """Give a child a lock that no thread of its parent's holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _tell_taken_back(before: SealedTrust, latest: SealedTrust) -> None:
    """Warn of revocations that the later document withdraws."""
    from jitgen.signing.edit import taken_back

    if found := taken_back(before.trust, latest.trust):
        told = ", ".join(
            f"{digest[:12]} ({why or 'no reason given'})" for digest, why in found.items()
        )
        warn_once(
            f"taken back {latest.digest}",
            "trust document %d takes back what %d revoked: %s",
            latest.version,
            before.version,
            told,
        )


def _path() -> Path:
    path = settings.trust
    if path is None:
        raise SettingError(
            f"JITGEN_VERIFY={settings.verify} loads only what is signed, and JITGEN_TRUST does "
            "not say whose signatures count; name a trust document (jitgen trust init makes one), "
            "or set JITGEN_VERIFY=off to load what anybody put there"
        )
    return Path(path)


def _place(url: str) -> str:
    """Return the name under which ``trust.looked`` lists the place at `url`."""
    return url if url == _EVERYWHERE else hashlib.sha256(url.encode()).hexdigest()[:32]


def _opened(path: Path, data: bytes) -> SealedTrust:
    try:
        return opened(data)
    except SigningError as error:
        raise SigningError(f"JITGEN_TRUST={path} is not used: {error}") from None


def _read(path: Path) -> tuple[bytes, Stamp]:
    """Return the content of a trust file and a stamp that changes with it."""
    try:
        with opened_file(path) as file:
            return file.read(MAX_BYTES), file.stamp
    except BadDocument as error:
        raise SigningError(f"JITGEN_TRUST={path} is not used: {error}") from None
    except OSError as error:
        raise SigningError(f"JITGEN_TRUST={path} cannot be read: {cause(error)}") from error
