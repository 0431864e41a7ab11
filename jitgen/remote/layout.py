# SPDX-License-Identifier: Apache-2.0
"""
Where an entry lies in an object store, and how it comes and goes.

::

    v1/ac/<2>/<key>.json        the record and its signatures
    v1/cas/<2>/<sha256>.zst     the content of one file, compressed with zstd

Keys and contents lie apart, because equal contents have many keys: another patch release of the
compiler mostly makes the same bytes. Contents are put first and the key last, so that a key never
stands for what is not there, and nothing is put in the place of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jitgen.cache.entry import LIBRARY, LIMITS, META, SIGNATURES, SOURCE, Meta
from jitgen.cache.folder import Damaged
from jitgen.remote import wire
from jitgen.remote.outcomes import Corrupt, NotFound, Untrusted
from jitgen.support.documents import BadDocument, canonical_json, parse_json

if TYPE_CHECKING:
    from jitgen.cache import Entry

MAX_RECORD_BYTES = 2 * (LIMITS[META] + LIMITS[SIGNATURES])
"""Largest object under ``v1/ac``: both parts, and what JSON adds to them."""

TRUST_PATH = "v1/trust.json"

Judge = Callable[[bytes, bytes], str]
"""Says of a record and its signatures why they are not accepted; empty: they are."""


class Readable(Protocol):
    """A place to read from; see `jitgen.remote.objects.Objects` for what its methods raise."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the object at `path`."""
        ...


class Writable(Readable, Protocol):
    """A place to write to as well."""

    def create(self, path: str, data: bytes) -> bool:
        """Put an object where there is none; returns whether there was none."""
        ...

    def replace(self, path: str, data: bytes) -> bool:
        """Put an object, whatever is there; returns True."""
        ...


def record_path(key: str) -> str:
    """Return where the record of entry `key` lies."""
    return f"v1/ac/{key[:2]}/{key}.json"


def content_path(sha256: str) -> str:
    """Return where the content with this digest lies."""
    return f"v1/cas/{sha256[:2]}/{sha256}.zst"


def fetch(backend: Readable, key: str, judge: Judge) -> wire.Packed:
    """
    Return entry `key` of `backend`. Its contents are asked for once its record was accepted.

    Raises:
        NotFound: It is not there.
        Untrusted: It is not accepted.
        Corrupt: It is damaged.
        Unreachable, LocalFailure: The place does not give it.
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


def _content(backend: Readable, name: str, said: dict[str, Any]) -> bytes:
    size: int = said["bytes"]
    if name not in (SOURCE, LIBRARY) or not 0 <= size <= min(LIMITS[name], wire.MAX_BYTES):
        raise Damaged(f"{name} may not travel, or not with {size} bytes")
    # zstd makes nothing longer than this
    most = size + size // 128 + 64
    try:
        return wire.decompress(backend.read(content_path(said["sha256"]), most), size)
    except NotFound:
        raise NotFound(f"its {name} is not there, though its record is") from None


def push(backend: Writable, entry: Entry, *, replaces: bool = False) -> bool:
    """
    Put `entry` into `backend`; returns whether it was not there yet.

    Args:
        backend: Where to.
        entry: What.
        replaces: Whether it takes the place of what is there: to add signatures, after a
            revocation, or because that is damaged.

    Raises:
        Damaged: The entry may not travel.
        Unreachable, LocalFailure: The place does not take it.
    """
    record = entry.meta.encode()
    wire.checked(record, entry.files, entry.key, entry.signatures)
    wire.pack(record, entry.files, entry.signatures)  # says so where it is too large
    put = backend.replace if replaces else backend.create
    for name, content in entry.files.items():
        put(content_path(entry.meta.files[name]["sha256"]), wire.compress(content))
    document = {"meta": record.decode("ascii"), "signatures": entry.signatures.decode("ascii")}
    data = canonical_json(document).encode("ascii")
    return put(record_path(entry.key), data)


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
