# SPDX-License-Identifier: Apache-2.0
"""
Decides which entries a service hands out under its own signature.

A service that signs hands out entries that a client accepts: those with a valid signature by its
trust document, and its own, which it signs again when their signature is no longer valid. Any other
entry is treated as absent, and compiled. So neither an upload nor an entry that an attacker put
into the root or a shared bucket keeps a client from the kernel that it asked for.

Without a trust document it is unknown which signatures are valid, and any signature is enough. A
service that signs nothing hands out whatever is in its root.
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
    """
    Verdict on an entry: its signatures are accepted, or none are needed; it is the service's own;
    neither.
    """

    COUNTS = "counts"
    OWN = "own"
    NONE = "none"


class Vouching:
    """
    Judges the entries of one service, and signs its own again.

    Attributes:
        built: Database of the entries that it built itself.

    Args:
        settings: The settings of signing, which say whether the service signs.
        revocations: The revocations, with the trust document.
        built: Database of the entries that it built itself.
        signer: Its signer.
        store: Its entries on the disk.
        log: Its log.
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
        """
        Standing of the signing key; None without signing, without a trust document, or before the
        signer has named its key.
        """
        trust = self._revocations.trust
        if not self._is_signing or trust is None or not self._signer.keyid:
            return None
        return standing(self._signer.keyid, trust.trust)

    def refusal(self, record: bytes, signatures: bytes) -> str:
        """Return why an entry's signatures are not accepted; empty if they are."""
        trust = self._revocations.trust
        if trust is not None:
            return judge(record, signatures, trust.trust, _moment(trust.trust)).reason
        if not self._is_signing or _is_signed(signatures):
            return ""
        return "it is not signed"

    def verdict(self, entry: Entry) -> Verdict:
        """Return the verdict on an entry in the root; blocks."""
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
        Return an entry of the service's own with a valid signature, if its key can make one.

        Raises:
            SigningError, ResourceError: The signer does not sign.
        """
        found = self.standing
        if found is not None and found.is_refused:
            return entry  # a new signature would not be valid either
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
        except (
            OSError,
            CacheError,
            SigningError,
        ) as error:  # signed in memory only
            self._log.event("not kept", level="error", key=entry.key, reason=str(error))
        self._log.event("signed again", key=entry.key, keyid=self._signer.keyid)
        return replace(entry, signatures=whole)

    def _is_disowned(self, meta: Meta) -> bool:
        """Return whether the entry is older than ``min_signed_at`` of the trust document."""
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
    """Return the present time; if the trust document has expired, the last second before that."""
    return min(times.now(), trust.expires - timedelta(seconds=1))
