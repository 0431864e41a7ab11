# SPDX-License-Identifier: Apache-2.0
"""
Layout of entries in an object store: paths, fetch and push.

::

    v1/ac/<2>/<key>.json        the record and its signatures
    v1/cas/<2>/<sha256>.zst     the content of one file, compressed with zstd

Records and contents are separate objects, because entries with different keys often have equal
contents: another patch release of the compiler mostly makes the same bytes. Contents are uploaded
first and the record last, so that a record never refers to absent contents. Nothing is overwritten,
except to add signatures or where a caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jitgen.cache.entry import LIBRARY, LIMITS, META, SIGNATURES, SOURCE, Meta
from jitgen.cache.folder import Damaged
from jitgen.remote import wire
from jitgen.remote.outcomes import Corrupt, NotFound, Untrusted
from jitgen.support.documents import BadDocument, canonical_json, parse_json

if TYPE_CHECKING:
    from jitgen.cache import Entry
    from jitgen.cache.entry import FileRecord

MAX_RECORD_BYTES = 2 * (LIMITS[META] + LIMITS[SIGNATURES])
"""Largest object under ``v1/ac``: record and signatures, and the escapes that JSON adds."""

TRUST_PATH = "v1/trust.json"

Judge = Callable[[bytes, bytes], str]
"""Returns why a record with its signatures is not accepted; empty if it is."""


class Readable(Protocol):
    """A backend to read from; its methods raise as those of `jitgen.remote.objects.Objects`."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the object at `path`."""
        ...


class Writable(Readable, Protocol):
    """A backend to write to as well."""

    def create(self, path: str, data: bytes) -> bool:
        """Create an object; returns False, and changes nothing, if there is one already."""
        ...

    def replace(self, path: str, data: bytes) -> bool:
        """Create or overwrite an object; returns True."""
        ...


def record_path(key: str) -> str:
    """Return the path of the record of entry `key`."""
    return f"v1/ac/{key[:2]}/{key}.json"


def content_path(sha256: str) -> str:
    """Return the path of the content with this digest."""
    return f"v1/cas/{sha256[:2]}/{sha256}.zst"


def fetch(backend: Readable, key: str, judge: Judge) -> wire.Packed:
    """
    Return entry `key` of `backend`. Its contents are read only after its record was accepted.

    Raises:
        NotFound: The backend does not have it.
        Untrusted: It is not accepted.
        Corrupt: It is damaged.
        Unreachable, LocalFailure: The backend cannot be read.
    """
    try:
        record, signatures = _parsed(backend.read(record_path(key), MAX_RECORD_BYTES))
        meta = Meta.decode(record)
        if meta.key != key:
            raise Damaged("meta.json belongs to another key")
        if reason := judge(record, signatures):
            raise Untrusted(reason)
        files = {name: _content(backend, name, said) for name, said in meta.files.items()}
        return wire.checked(record, files, key, signatures)
    except Damaged as error:
        raise Corrupt(str(error)) from None


def _content(backend: Readable, name: str, said: FileRecord) -> bytes:
    size = said["bytes"]
    if name not in (SOURCE, LIBRARY) or not 0 <= size <= min(LIMITS[name], wire.MAX_BYTES):
        raise Damaged(f"{name} may not travel, or not with {size} bytes")
    # zstd never makes more bytes than this
    most = size + size // 128 + 64
    try:
        return wire.decompress(backend.read(content_path(said["sha256"]), most), size)
    except NotFound:
        raise NotFound(f"its {name} is not there, though its record is") from None


def push(backend: Writable, entry: Entry, *, replaces: bool = False) -> bool:
    """
    Upload `entry` to `backend`; returns whether its record was written: with `replaces` always,
    else if the backend had none.

    Args:
        backend: The destination.
        entry: The entry.
        replaces: Whether to overwrite: to add signatures, after a revocation, or because the one
            there is damaged.

    Raises:
        Damaged: The entry has files that must not leave the host, or is too large.
        Unreachable, LocalFailure: The backend cannot be written.
    """
    record = entry.meta.encode()
    wire.checked(record, entry.files, entry.key, entry.signatures)
    wire.pack(record, entry.files, entry.signatures)  # raises if it is too large
    put = backend.replace if replaces else backend.create
    for name, content in entry.files.items():
        put(content_path(entry.meta.files[name]["sha256"]), wire.compress(content))
    return put(record_path(entry.key), _document(record, entry.signatures))


def sign(backend: Writable, entry: Entry) -> bool:
    """
    Add the signatures of `entry` to those of the same entry in `backend`; returns whether the
    backend lacked one of them. An entry of the same key with another record is left alone.

    Raises:
        Corrupt: The record in the backend cannot be read.
        NotFound, Unreachable, LocalFailure: The backend cannot be read or written.
    """
    from jitgen.signing.dsse import merged

    try:
        path = record_path(entry.key)
        record, before = _parsed(backend.read(path, MAX_RECORD_BYTES))
    except Damaged as error:
        raise Corrupt(f"{error}; overwrite it with --replace") from None
    after = merged(before, entry.signatures)
    if record != entry.meta.encode() or after == before:
        return False
    return backend.replace(path, _document(record, after))


def _document(record: bytes, signatures: bytes) -> bytes:
    """Return the bytes of an object under ``v1/ac``, with a record and its signatures."""
    document = {"meta": record.decode("ascii"), "signatures": signatures.decode("ascii")}
    return canonical_json(document).encode("ascii")


def _parsed(data: bytes) -> tuple[bytes, bytes]:
    """Return the record and the signatures in an object under ``v1/ac``."""
    try:
        document = parse_json(data, max_bytes=MAX_RECORD_BYTES)
    except BadDocument as error:
        raise Damaged(f"its record cannot be read: {error}") from None
    if not isinstance(document, dict) or document.keys() != {"meta", "signatures"}:
        raise Damaged("its record has missing or unknown fields")
    if not all(isinstance(text, str) and text.isascii() for text in document.values()):
        raise Damaged("its record holds something else than text")
    return document["meta"].encode("ascii"), document["signatures"].encode("ascii")
