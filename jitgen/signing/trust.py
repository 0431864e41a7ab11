# SPDX-License-Identifier: Apache-2.0
"""
The trust document: which keys may sign entries and when, and what is revoked.

It is one DSSE envelope in a file, signed by a root key that is kept offline. Its holder decides
which keys may sign entries and when, revokes keys and digests, and can refuse everything that was
signed before a given time. The document has a version, so that an old one cannot replace a newer
one, and it expires, so that withholding a newer one is noticed.

The document names its roots and must be signed by one of them. A machine trusts its first document
because an operator installed it. A later one must follow from it: a root of the previous one signed
it, too. A new root key comes in a document that the old and the new root sign; a machine that
missed that document needs it to go on. So the field ``before``, beside the envelope, holds the
earlier documents in which roots changed; each has its own signatures, and each leads to the
document by such steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, fields, replace
from datetime import datetime
from typing import Self, TypeGuard

from jitgen.errors import SigningError
from jitgen.signing import dsse, times
from jitgen.signing.keys import PrivateKey, PublicKey, is_digest
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

TYPE = "jitgen.trust.v1"
PAYLOAD_TYPE = "application/vnd.jitgen.trust.v1+json"
MAX_BYTES = 2**22
"""Largest file, with the documents in ``before``: every process that fetches reads it."""

MAX_BEFORE = 32
"""
Most documents in ``before``: enough for a new root every year for a lifetime. The oldest are
dropped first; a machine with nothing later than those must be given a new document by hand.
"""

_MAX_DOCUMENT = 2**20  # without ``before``: some 8,000 revoked digests
_MAX_ROOTS = 8
_MAX_KEYS = 64
_MAX_REASON = 200
_MAX_VERSION = 2**53


@frozen
class TrustedKey:
    """
    A key that may sign entries.

    Attributes:
        public: The key.
        not_before: Start of the period in which it may sign.
        not_after: End of that period. Signatures from within it stay valid.
        comment: Description, for people.
    """

    public: PublicKey
    not_before: datetime
    not_after: datetime
    comment: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the key as JSON values."""
        return {
            "keyid": self.public.keyid,
            "public": self.public.text,
            "not_before": times.text_of(self.not_before),
            "not_after": times.text_of(self.not_after),
            "comment": self.comment,
        }

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the key that `to_json` wrote; raises SigningError."""
        values = _object(document, {"keyid", "public", "not_before", "not_after", "comment"})
        public = PublicKey.parse(values["public"])
        if values["keyid"] != public.keyid or not is_comment(values["comment"]):
            raise SigningError("a key of the trust document has a bad keyid or comment")
        return cls(
            public=public,
            not_before=times.moment_of(values["not_before"], "not_before of a key"),
            not_after=times.moment_of(values["not_after"], "not_after of a key"),
            comment=values["comment"],
        )


@frozen
class Trust:
    """
    The content of a trust document.

    Attributes:
        version: Grows with each document.
        issued: Time at which it was signed.
        expires: When it expires; from then on no entry is accepted.
        roots: Keys that may sign trust documents, unless they are revoked.
        keys: Keys that may sign entries, by keyid.
        revoked_keys: Keyids whose signatures are all refused, and why.
        revoked: Digests that are refused in spite of any signature, and why: of a ``meta.json``, of
            a file, or an entry's key.
        min_signed_at: Signatures from before it are refused; None: no such bound.
    """

    version: int
    issued: datetime
    expires: datetime
    roots: tuple[PublicKey, ...]
    keys: Mapping[str, TrustedKey] = field(default_factory=dict)
    revoked_keys: Mapping[str, str] = field(default_factory=dict)
    revoked: Mapping[str, str] = field(default_factory=dict)
    min_signed_at: datetime | None = None

    @property
    def standing_roots(self) -> tuple[PublicKey, ...]:
        """The roots that are not revoked: only they can sign a later document."""
        return tuple(root for root in self.roots if root.keyid not in self.revoked_keys)

    def to_json(self) -> dict[str, object]:
        """Return the document as JSON values, as they are signed."""
        return {
            "type": TYPE,
            "version": self.version,
            "issued": times.text_of(self.issued),
            "expires": times.text_of(self.expires),
            "roots": [root.text for root in self.roots],
            "keys": [key.to_json() for key in self.keys.values()],
            "revoked_keys": dict(self.revoked_keys),
            "revoked": dict(self.revoked),
            "min_signed_at": times.text_of(self.min_signed_at) if self.min_signed_at else None,
        }

    @classmethod
    def from_json(cls, document: object) -> Self:
        """
        Return the document that `to_json` wrote.

        Raises:
            SigningError: A field is missing, unknown or out of bounds.
        """
        values = _object(document, {spec.name for spec in fields(cls)} | {"type"})
        if values["type"] != TYPE:
            raise SigningError(f"it is of type {shown(values['type'])}, not {TYPE}")
        version, least = values["version"], values["min_signed_at"]
        if type(version) is not int or not 0 < version <= _MAX_VERSION:
            raise SigningError(f"the trust document has the version {shown(version)}")
        keys = [TrustedKey.from_json(one) for one in _list(values["keys"], 0, _MAX_KEYS)]
        return cls(
            version=version,
            issued=times.moment_of(values["issued"], "issued"),
            expires=times.moment_of(values["expires"], "expires"),
            roots=tuple(PublicKey.parse(one) for one in _list(values["roots"], 1, _MAX_ROOTS)),
            keys={key.public.keyid: key for key in keys},
            revoked_keys=_reasons(values["revoked_keys"]),
            revoked=_reasons(values["revoked"]),
            min_signed_at=None if least is None else times.moment_of(least, "min_signed_at"),
        )

    def sealed(self, *roots: PrivateKey) -> bytes:
        """
        Return the bytes of the trust document, signed by `roots`.

        Raises:
            SigningError: None of them is an unrevoked root of this document, or it is too large.
        """
        if not {root.public for root in roots} & set(self.standing_roots):
            named = ", ".join(root.keyid[:12] for root in self.standing_roots)
            raise SigningError(
                "the trust document must be signed by one of the roots it names and does not "
                f"revoke, {named}, not by {', '.join(root.keyid[:12] for root in roots)}; "
                "first give it another root, with a document that both sign"
            )
        payload = canonical_json(self.to_json()).encode("ascii")
        envelope = dsse.seal(PAYLOAD_TYPE, payload, *roots)
        data = f"{canonical_json(envelope.to_json())}\n".encode("ascii")
        if len(data) > _MAX_DOCUMENT:
            raise SigningError(
                f"the trust document has {len(data)} bytes, more than the {_MAX_DOCUMENT} that are "
                "read; disown old signatures with min_signed_at instead of one by one"
            )
        return data


@frozen
class SealedTrust:
    """
    A trust document whose signature was verified.

    Attributes:
        trust: Its content.
        envelope: Its envelope, with the signatures.
        before: Earlier documents, each of which leads to it; their own `before` is empty.
        data: Its bytes, including `before`.
        digest: SHA-256 of `data`.
    """

    trust: Trust
    envelope: dsse.Envelope = field(repr=False)
    before: tuple[SealedTrust, ...] = field(repr=False)
    data: bytes = field(repr=False)
    digest: str
    _signed: dict[PublicKey, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def version(self) -> int:
        """Version of the trust document."""
        return self.trust.version

    def is_signed_by(self, public: PublicKey) -> bool:
        """
        Return whether the key `public` signed the document; the result for each key is cached.
        """
        if public not in self._signed:
            self._signed[public] = self.envelope.is_signed_by(public)
        return self._signed[public]

    def follows(self, earlier: SealedTrust) -> bool:
        """Return whether this document may replace `earlier` directly."""
        return self.version > earlier.version and any(
            map(self.is_signed_by, earlier.trust.standing_roots)
        )

    def comes_from(self, earlier: SealedTrust) -> bool:
        """
        Return whether `earlier` leads to this document: it is this one or in `before`, or one of
        these may replace it directly.
        """
        return any(
            one.envelope.payload == earlier.envelope.payload or one.follows(earlier)
            for one in (self, *self.before)
        )


def opened(data: bytes, before: SealedTrust | None = None) -> SealedTrust:
    """
    Return the trust document in `data`, verified.

    Its expiry is not checked here, but when entries are judged by it. That of the documents in its
    field ``before`` is never checked: they only prove the change of roots.

    Args:
        data: Its bytes.
        before: The document that it is to replace; None if it is the first.

    Raises:
        SigningError: It is malformed, none of its own roots signed it, a document in its field
            ``before`` does not lead to it, or it may not replace `before`: its version is not
            later, or no root of `before` signed it or a document that led to it. Revoked roots do
            not count.
    """
    document = _parsed(data, MAX_BYTES)
    earlier = document.pop("before", []) if isinstance(document, dict) else []
    earlier = tuple(_alone(one) for one in _list(earlier, 0, MAX_BEFORE))
    found = _alone(document)
    found = replace(found, before=earlier, data=data, digest=hashlib.sha256(data).hexdigest())
    _check_steps(found)
    if before is not None and found.version <= before.version:
        raise SigningError(
            f"its version {found.version} is not later than {before.version}, which is in use"
        )
    if before is not None and not found.comes_from(before):
        raise SigningError("no root of the trust document in use signed this one")
    return found


def _alone(document: object) -> SealedTrust:
    """Return one trust document without ``before``; one of its own roots must have signed it."""
    envelope = dsse.Envelope.from_json(document)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise SigningError(f"it is no trust document but {shown(envelope.payload_type)}")
    trust = Trust.from_json(_parsed(envelope.payload, _MAX_DOCUMENT))
    if not any(map(envelope.is_signed_by, trust.standing_roots)):
        raise SigningError("no root that the trust document names signed it")
    return joined(trust, envelope, ())


def joined(trust: Trust, envelope: dsse.Envelope, before: tuple[SealedTrust, ...]) -> SealedTrust:
    """Return the document with these parts, which the caller has verified."""
    document = envelope.to_json()
    if before:
        document["before"] = [one.envelope.to_json() for one in before]
    data = f"{canonical_json(document)}\n".encode("ascii")
    digest = hashlib.sha256(data).hexdigest()
    return SealedTrust(trust=trust, envelope=envelope, before=before, data=data, digest=digest)


def _check_steps(found: SealedTrust) -> None:
    """Raise SigningError if a document in `before` does not lead to `found`, step by step."""
    proven = [found]
    for one in sorted(found.before, key=lambda one: -one.version):
        if not any(later.follows(one) for later in reversed(proven)):
            raise SigningError(
                f"it holds version {one.version} as one that led to it, and that does not"
            )
        proven.append(one)


def _parsed(data: bytes, max_bytes: int) -> object:
    try:
        return parse_json(data, max_bytes=max_bytes)
    except BadDocument as error:
        raise SigningError(f"the trust document cannot be read: {error}") from None


def is_comment(value: object) -> TypeGuard[str]:
    """
    Return whether `value` is a comment that a trust document may hold: one line of printable text
    of limited length.
    """
    return isinstance(value, str) and len(value) <= _MAX_REASON and (value or " ").isprintable()


def _object(document: object, names: set[str]) -> Mapping[str, object]:
    if not isinstance(document, dict) or document.keys() != names:
        found = sorted(document.keys() ^ names) if isinstance(document, dict) else "no object"
        raise SigningError(f"the trust document has missing or unknown fields: {shown(found)}")
    return document


def _list(value: object, least: int, most: int) -> list[object]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise SigningError(f"the trust document has a list that is not of {least} to {most}")
    return value


def _reasons(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        is_digest(name) and is_comment(reason) for name, reason in value.items()
    ):
        raise SigningError("the trust document has a list of what is revoked that is none")
    return value
