# SPDX-License-Identifier: Apache-2.0
"""
The statement about an entry that is signed.

It identifies the entry by the digest of ``meta.json``, which holds the key document and the digests
of the files. It also has the entry's key, so that a signature that belongs to another entry is
recognised without reading either entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Self

from jitgen.errors import SigningError
from jitgen.signing import times
from jitgen.signing.keys import is_digest
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen

TYPE = "jitgen.entry.v1"
PAYLOAD_TYPE = "application/vnd.jitgen.entry.v1+json"
MAX_BUILDER = 200
"""Characters of a builder's name."""

_MAX_BYTES = 2**14
_FIELDS = {"type", "key", "meta_sha256", "builder", "toolchain", "signed_at"}


@frozen
class Subject:
    """
    The facts of an entry that its signatures are judged by.

    Attributes:
        key: Its key.
        meta_sha256: SHA-256 of its ``meta.json``.
        files: SHA-256 of each of its files.
        toolchain: Versions of its toolchain, from the key document.
    """

    key: str
    meta_sha256: str
    files: tuple[str, ...]
    toolchain: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: bytes) -> Self:
        """
        Return the facts in `record`, the bytes of a ``meta.json``.

        `jitgen.cache.Meta.decode` checks the record completely; this does not.

        Raises:
            SigningError: It is not a record.
        """
        try:
            document = parse_json(record)
            key, document_of_key = document["key"], document["key_document"]
            files = tuple(one["sha256"] for one in document["files"].values())
            toolchain = document_of_key.get("toolchain", {})
        except (BadDocument, LookupError, TypeError, AttributeError):
            raise SigningError("meta.json is no record of an entry") from None
        if not all(is_digest(one) for one in (key, *files)) or not _is_texts(toolchain):
            raise SigningError("meta.json is no record of an entry")
        digest = hashlib.sha256(record).hexdigest()
        return cls(key=key, meta_sha256=digest, files=files, toolchain=toolchain)


@frozen
class Statement:
    """
    A builder's statement about one entry.

    Attributes:
        key: The entry's key.
        meta_sha256: SHA-256 of its ``meta.json``, byte for byte.
        builder: Name of the builder, for people.
        toolchain: Versions of its toolchain, as in the key document.
        signed_at: Time of the signature.
    """

    key: str
    meta_sha256: str
    builder: str
    toolchain: dict[str, str]
    signed_at: datetime

    @classmethod
    def of(cls, record: bytes, builder: str, signed_at: datetime | None = None) -> Self:
        """
        Return the statement that `builder` built the entry whose ``meta.json`` is `record`.

        Raises:
            SigningError: `record` is not a record, or `builder` is malformed.
        """
        if not _is_name(builder):
            raise SigningError(f"a builder's name has 1 to {MAX_BUILDER} printable characters")
        subject = Subject.of(record)
        return cls(
            key=subject.key,
            meta_sha256=subject.meta_sha256,
            builder=builder,
            toolchain=dict(subject.toolchain),
            signed_at=(signed_at or times.now()).replace(microsecond=0),
        )

    def encode(self) -> bytes:
        """Return the bytes to sign: canonical JSON."""
        return canonical_json(
            {
                "type": TYPE,
                "key": self.key,
                "meta_sha256": self.meta_sha256,
                "builder": self.builder,
                "toolchain": self.toolchain,
                "signed_at": times.text_of(self.signed_at),
            }
        ).encode("ascii")

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """
        Return the statement in `payload`.

        Raises:
            SigningError: It is malformed.
        """
        try:
            document: object = parse_json(payload, max_bytes=_MAX_BYTES)
        except BadDocument as error:
            raise SigningError(f"a statement cannot be read: {error}") from None
        if not isinstance(document, dict) or document.keys() != _FIELDS:
            raise SigningError("a statement has missing or unknown fields")
        kind = document.pop("type")
        if kind != TYPE:
            raise SigningError(f"a statement is not of type {TYPE}")
        if not is_digest(document["key"]) or not is_digest(document["meta_sha256"]):
            raise SigningError("a statement has a bad key or meta_sha256")
        if not _is_name(document["builder"]) or not _is_texts(document["toolchain"]):
            raise SigningError("a statement has a bad builder or toolchain")
        signed_at = times.moment_of(document.pop("signed_at"), "signed_at of a statement")
        return cls(signed_at=signed_at, **document)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_BUILDER and value.isprintable()


def _is_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())
