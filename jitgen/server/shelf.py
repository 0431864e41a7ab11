# SPDX-License-Identifier: Apache-2.0
"""
The entries of a service: on the disk, packed in memory, and what is revoked among them.

What leaves here was read and checked digest by digest when it was packed, and is served from memory
from then on: to serve an entry of 113 KB from there takes less time than to open a file.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from jitgen.cache import Entry, Meta, Store
from jitgen.remote import wire
from jitgen.server.hot import Body, Hot
from jitgen.server.revocations import Revocation, Revocations
from jitgen.server.settings import Storage
from jitgen.settings import settings as library

ZSTD, IDENTITY = "zstd", "identity"

_KNOWN = 100_000
"""Keys of which it is remembered that the disk has them: 100 bytes each."""


class Revoked(Exception):
    """The entry that was asked for is revoked."""

    def __init__(self, row: Revocation) -> None:
        super().__init__(row.reason)
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """
    An entry as it leaves.

    Attributes:
        meta: Its record.
        etag: SHA-256 of the bytes of the record, with quotes.
        tar: It, packed.
    """

    meta: Meta
    etag: str
    tar: bytes


def packed(entry: Entry) -> Packed:
    """Return `entry` as it leaves; raises Damaged where it is too large to."""
    record = entry.meta.encode()
    return Packed(
        meta=entry.meta,
        etag=f'"{hashlib.sha256(record).hexdigest()}"',
        tar=wire.pack(record, entry.files, entry.signatures),
    )


class Shelf:
    """
    Entries by key. Only the event loop may use it; the disk is read on other threads.

    Attributes:
        store: Where they lie.
        hot: Those in memory.
        revocations: What is not handed out.
    """

    def __init__(self, store: Store, settings: Storage, revocations: Revocations) -> None:
        self.store = store
        self.hot = Hot(settings.memory)
        self._inside = library.parsed({"cache_size": settings.limit})
        self.revocations = revocations
        self._known: dict[str, None] = {}
        self._age = 0

    def at_hand(self, key: str, encoding: str) -> Body | None:
        """Return the body of `key` if it is in memory; raises Revoked."""
        if (row := self.revocations.of_key(key)) is not None:
            raise Revoked(row)
        return self.hot.get(key, encoding)

    async def body(self, key: str, encoding: str) -> Body | None:
        """Return the body of `key`, from memory or the disk; None where there is none."""
        found = self.at_hand(key, encoding)
        if found is not None:
            return found
        other = self.hot.get(key, IDENTITY if encoding == ZSTD else ZSTD)
        if other is not None:  # maybe all that there is: the disk may be full
            return await self._recoded(key, other, encoding)
        entry = await asyncio.to_thread(self.store.read, key)
        # What a person has edited is for this host alone; and what cannot be handed out with its
        # signatures is not, for it would be kept in memory without them.
        if entry is None or entry.meta.is_edited or entry.unread:
            self._known.pop(key, None)
            return None
        return await self.take(entry, encoding)

    def check(self, record: bytes, meta: Meta) -> None:
        """Raise Revoked where the entry with this record is."""
        self._check(hashlib.sha256(record).hexdigest(), meta)

    def _check(self, record_sha256: str, meta: Meta) -> None:
        row = self.revocations.of_record(record_sha256, meta)
        if row is not None:
            raise Revoked(row)

    async def take(self, entry: Entry, encoding: str) -> Body:
        """Return the body of `entry`, and keep it in memory; raises Revoked."""
        made = await asyncio.to_thread(packed, entry)
        return await self.keep(made, encoding)

    async def keep(self, made: Packed, encoding: str) -> Body:
        """Return the body of what was packed, and keep it in memory; raises Revoked."""
        self._check(made.etag.strip('"'), made.meta)
        self.remember(made.meta.key)
        plain = Body(data=made.tar, etag=made.etag, headers=())
        return await self._recoded(made.meta.key, plain, encoding, is_plain=True)

    async def _recoded(
        self, key: str, body: Body, encoding: str, *, is_plain: bool = False
    ) -> Body:
        """Return a body in `encoding`, from one in the other or from a plain one; and keep it."""
        data, age = body.data, self._age
        if encoding == ZSTD:
            data = await asyncio.to_thread(wire.compress, data)
        elif not is_plain:
            data = await asyncio.to_thread(wire.decompress, data)
        headers = _headers(body.etag, encoding, len(data))
        made = Body(data=data, etag=body.etag, headers=headers)
        if age == self._age:  # else it may have been revoked meanwhile
            self.hot.put(key, encoding, made)
        return made

    async def publish(
        self, meta: Meta, files: Mapping[str, bytes], signatures: bytes = b""
    ) -> Entry:
        """Put an entry into the store; `Entry.why_private` says why it is not there, if so."""
        return await asyncio.to_thread(self._publish, meta, files, signatures)

    def _publish(self, meta: Meta, files: Mapping[str, bytes], signatures: bytes) -> Entry:
        with library.inside(self._inside):  # publishing prunes what is above the limit
            return self.store.publish(meta, files, signatures)

    async def missing(self, keys: list[str]) -> list[str]:
        """Return those of `keys` that there is no entry for, or a revoked one."""
        unknown = [key for key in keys if key not in self._known]
        found = await asyncio.to_thread(self._on_disk, unknown) if unknown else ()
        for key in found:
            self.remember(key)
        absent = set(unknown) - set(found)
        return [k for k in keys if k in absent or self.revocations.of_key(k) is not None]

    def _on_disk(self, keys: list[str]) -> list[str]:
        found = ((key, self.store.read(key)) for key in keys)
        return [key for key, entry in found if entry is not None and not entry.meta.is_edited]

    def remember(self, key: str) -> None:
        """Note that there is an entry `key`."""
        self._known[key] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def forget_all(self) -> None:
        """Look everything up again: what is revoked has changed, or the disk."""
        self._age += 1
        self.hot.clear()
        self._known.clear()


def _headers(etag: str, encoding: str, num_bytes: int) -> tuple[tuple[bytes, bytes], ...]:
    headers = [
        (b"content-type", wire.TAR.encode("ascii")),
        (b"content-length", str(num_bytes).encode("ascii")),
        (b"etag", etag.encode("ascii")),
        (b"cache-control", b"private, max-age=0, must-revalidate"),
        (b"vary", b"accept-encoding"),
    ]
    if encoding == ZSTD:
        headers.append((b"content-encoding", b"zstd"))
    return tuple(headers)
