# SPDX-License-Identifier: Apache-2.0
"""
What this service vouches for, among the entries that it finds.

A service that signs hands out what a client accepts: an entry with a signature that counts, by its
trust document; and its own work, which it signs again where the signature counts no longer. All
else is as if it were not there, and compiled. So neither an upload nor what somebody put into the
root or a shared bucket keeps a client from the kernel that it asked for.

Without a trust document it is not known which signatures count; then one at all is enough. A
service that signs nothing vouches for nothing: it hands out what is in its root.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from jitgen.cache import Entry, Meta, Store
from jitgen.errors import CacheError, SigningError
from jitgen.server.built import Built
from jitgen.server.log import Log
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Signing
from jitgen.server.signer_client import SignerClient
from jitgen.signing import dsse, times
from jitgen.signing.policy import judge
from jitgen.signing.standing import Standing, standing
from jitgen.signing.trust import Trust


class Verdict(StrEnum):
    """What this service says of an entry."""

    COUNTS = "counts"
    OWN = "own"
    NONE = "none"


class Vouching:
    """
    What one service vouches for.

    Attributes:
        built: What it built itself.

    Args:
        settings: Whether and as whom it signs.
        revocations: Whose trust document it goes by.
        built: What it built itself.
        signer: Its signer.
        store: Where entries lie.
        log: Where it is told that an entry was signed again.
    """

    def __init__(
        self,
        settings: Signing,
        revocations: Revocations,
        built: Built,
        signer: SignerClient,
        store: Store,
        log: Log,
    ) -> None:
        self._is_signing = settings.is_on
        self._revocations = revocations
        self.built = built
        self._signer = signer
        self._store = store
        self._log = log
        self._again: dict[str, asyncio.Task[Entry]] = {}

    @property
    def standing(self) -> Standing | None:
        """How the signing key stands; None where nothing is signed, or without a document."""
        trust = self._revocations.trust
        if not self._is_signing or trust is None or not self._signer.keyid:
            return None
        return standing(self._signer.keyid, trust.trust)

    def refusal(self, record: bytes, signatures: bytes) -> str:
        """Return why an entry from elsewhere is not taken, by its signatures; empty: it is."""
        trust = self._revocations.trust
        if trust is not None:
            return judge(record, signatures, trust.trust, _moment(trust.trust)).reason
        if not self._is_signing or _is_signed(signatures):
            return ""
        return "nobody signed it"

    def verdict(self, entry: Entry) -> Verdict:
        """Return what this service says of an entry in its root; blocks."""
        if not self._is_signing:
            return Verdict.COUNTS
        record = entry.meta.encode()
        if not self.refusal(record, entry.signatures):
            return Verdict.COUNTS
        if self.built.has(record) and not self._is_disowned(entry.meta):
            return Verdict.OWN
        return Verdict.NONE

    async def signed(self, entry: Entry) -> Entry:
        """
        Return an entry of the service's own with a signature that counts, if the key can make one.

        Raises:
            SigningError, ResourceError: The signer does not sign.
        """
        found = self.standing
        if found is not None and found.is_refused:
            return entry  # a new signature would count no more than the one that it has
        task = self._again.get(entry.key)
        if task is None:
            task = self._again[entry.key] = asyncio.create_task(self._signed(entry))
            task.add_done_callback(lambda _: self._again.pop(entry.key, None))
        return await asyncio.shield(task)

    async def _signed(self, entry: Entry) -> Entry:
        there = await asyncio.to_thread(self._store.read, entry.key)
        if there is not None and there.meta == entry.meta and self.verdict(there) is Verdict.COUNTS:
            return there  # signed since `entry` was read
        made = await self._signer.of(entry.meta.encode())
        whole = dsse.renewed(entry.signatures, made)
        try:
            add = self._store.add_signatures
            await asyncio.to_thread(add, entry.key, made, renews=True)
        except (OSError, CacheError, SigningError) as error:  # it is signed in memory, then
            self._log.event("not kept", level="error", key=entry.key, reason=str(error))
        self._log.event("signed again", key=entry.key, keyid=self._signer.keyid)
        return replace(entry, signatures=whole)

    def _is_disowned(self, meta: Meta) -> bool:
        """Return whether the trust document disowns all that is as old."""
        trust = self._revocations.trust
        if trust is None or trust.trust.min_signed_at is None:
            return False
        try:
            created = datetime.fromisoformat(meta.created)
        except ValueError:
            return True
        return created.tzinfo is None or created < trust.trust.min_signed_at


def _is_signed(signatures: bytes) -> bool:
    try:
        return bool(dsse.decode(signatures))
    except SigningError:
        return False


def _moment(trust: Trust) -> datetime:
    """Return the present, or the last moment of a document that has expired."""
    return min(times.now(), trust.expires - timedelta(seconds=1))
