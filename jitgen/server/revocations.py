# SPDX-License-Identifier: Apache-2.0
"""
Revocations: digests of records or files, and keys of entries, that are not handed out any more.

Two lists apply together. An administrator adds to the service's own list over HTTP; that takes
effect at once. The list in the trust document is signed with the root key, and clients check it
themselves. Only the second protects clients that fetch from elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from jitgen.cache.entry import Meta, is_key
from jitgen.cache.remembered import Remembered
from jitgen.errors import SettingError, SigningError
from jitgen.ownership.files import read_trusted
from jitgen.signing.trust import MAX_BYTES as MAX_TRUST_BYTES
from jitgen.signing.trust import SealedTrust, is_comment, opened
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.frozen import frozen

_FILE = "revocations.json"
_MAX_BYTES = 2**24  # largest file: some 100,000 digests with short reasons
MOST = 1000
"""Most digests in one request."""


@frozen
class Revocation:
    """A revoked digest: the reason, the source (a token's name, or ``trust``), and the time."""

    digest: str
    reason: str
    by: str
    at: float


class TooMany(Exception):
    """The service's own list would exceed the size that its next start reads."""


class Revocations:
    """
    The revocations of a service: its own list, and that of the trust document.

    Args:
        folder: Folder of the service's own list.
        trust: File of the trust document; None if there is none.
        remembered: The latest document that an earlier run used; an older file does not replace
            it. None: nothing is remembered.

    Raises:
        SettingError: One of the lists cannot be read.
    """

    def __init__(
        self, folder: Path, trust: Path | None, remembered: Remembered | None = None
    ) -> None:
        self._path = folder / _FILE
        self._trust_path = trust
        self._remembered = remembered
        self._configured = b""
        self.trust: SealedTrust | None = None
        self._own = self._read()
        self._signed: dict[str, Revocation] = {}
        self.reload()

    def reload(self) -> None:
        """
        Read the trust document again; it must be a valid successor of the present one.

        Raises:
            SettingError: It cannot be read, or is no successor: an older version, say.
        """
        if self._trust_path is None:
            return
        try:
            data = read_trusted(self._trust_path, MAX_TRUST_BYTES)
            if data == self._configured:
                return
            found = opened(data, self.trust)
            if self._remembered is not None:
                found = self._remembered.latest(found)
            self.trust = found
            self._configured = data
        except (OSError, BadDocument, SigningError) as error:
            raise SettingError(f"trust document {self._trust_path}: {error}") from error
        at = self.trust.trust.issued.timestamp()
        self._signed = {
            digest: Revocation(digest=digest, reason=reason, by="trust", at=at)
            for digest, reason in self.trust.trust.revoked.items()
        }

    def all(self) -> dict[str, Revocation]:
        """Return every revocation, by digest."""
        return self._own | self._signed

    def of_key(self, key: str) -> Revocation | None:
        """Return the revocation of `key` itself; None if there is none."""
        return self._own.get(key) or self._signed.get(key)

    def of_record(self, record_sha256: str, meta: Meta) -> Revocation | None:
        """Return the revocation of an entry: of its key, its record or a file; else None."""
        if not self._own and not self._signed:
            return None
        files = (str(file["sha256"]) for file in meta.files.values())
        found = (self.of_key(digest) for digest in (meta.key, record_sha256, *files))
        return next((one for one in found if one is not None), None)

    def add(self, digests: Mapping[str, str], by: str) -> int:
        """
        Revoke `digests`, with a reason each; returns how many are new.

        Blocks. It may run on any thread, but not on two at a time.

        Raises:
            TooMany: The list would be too long; nothing is revoked.
            OSError: The list cannot be written; nothing is revoked.
        """
        now = time.time()
        new = {
            digest: Revocation(digest=digest, reason=reason, by=by, at=now)
            for digest, reason in digests.items()
            if digest not in self._own
        }
        if new:
            both = self._own | new
            self._write(both)
            self._own = both
        return len(new)

    def remove(self, digests: Iterable[str]) -> dict[str, Revocation]:
        """
        Take back revocations of the service's own list; returns those that were in it.

        Blocks, as `add`. What the trust document revokes stays revoked.

        Raises:
            OSError: The list cannot be written; nothing is taken back.
        """
        gone = {digest: self._own[digest] for digest in digests if digest in self._own}
        if gone:
            left = {digest: row for digest, row in self._own.items() if digest not in gone}
            self._write(left)
            self._own = left
        return gone

    def signed(self, digests: Iterable[str]) -> list[str]:
        """Return those of `digests` that the trust document revokes."""
        return [digest for digest in digests if digest in self._signed]

    def _read(self) -> dict[str, Revocation]:
        try:
            found = parse_json(read_trusted(self._path, _MAX_BYTES), max_bytes=_MAX_BYTES)
            return {row["digest"]: Revocation(**row) for row in found["revoked"]}
        except FileNotFoundError:
            return {}
        except (OSError, BadDocument, TypeError, KeyError) as error:
            # Without the list the service would hand out revoked entries.
            raise SettingError(f"revocations {self._path} cannot be read: {error}") from error

    def _write(self, rows: Mapping[str, Revocation]) -> None:
        listed = [
            {"digest": row.digest, "reason": row.reason, "by": row.by, "at": row.at}
            for row in rows.values()
        ]
        data = json.dumps({"revoked": listed}).encode("ascii")
        if len(data) > _MAX_BYTES:
            raise TooMany(
                f"the list would have {len(data)} bytes, and {_MAX_BYTES} are the most that a "
                "start reads; revoke by the trust document instead (jitgen trust revoke, and its "
                "--before for all that is old)"
            )
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # else a power failure could restore the previous list
        finally:
            os.close(folder)


def parse_revocations(document: object) -> dict[str, str]:
    """
    Return the reasons by digest of a request's ``{"revoked": {digest: reason}}``.

    Raises:
        ValueError: It is anything else; the message says what is allowed.
    """
    allowed = (
        f'an object {{"revoked": {{digest: reason}}}} of at most {MOST} digests (SHA-256 of a '
        "meta.json or a file, or an entry's key), each with a line of text"
    )
    given = document if isinstance(document, dict) else {}
    revoked = given.get("revoked")
    if not isinstance(revoked, dict) or set(given) != {"revoked"} or len(revoked) > MOST:
        raise ValueError(allowed)
    if not all(is_key(digest) and is_comment(reason) for digest, reason in revoked.items()):
        raise ValueError(allowed)
    return revoked
