# SPDX-License-Identifier: Apache-2.0
"""
The trust document: whose signatures count, for what time, and what does not count any more.

It is one DSSE envelope in a file, signed by a root key that is kept away from everything that runs.
Who holds the root key says by it which keys may sign entries and when, takes keys and digests back,
and can disown everything that was signed before a moment. The document has a version, so that an
old one is not taken for news, and an end, so that one that is withheld is noticed.

The document names its own roots and must be signed by one of them; the first that a machine gets,
it trusts because it was put there. A later one must follow from it: a root of the one before
signed it, too. A new root key arrives in a document that both sign, and a host that has not seen
that one needs it. So beside the envelope, in the field ``before``, stand the earlier documents by
which roots handed over; each is signed for itself, and each leads to the document by such steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, fields, replace
from datetime import datetime
from typing import Any, Self

from jitgen.errors import SigningError
from jitgen.signing import dsse, times
from jitgen.signing.keys import PrivateKey, PublicKey, is_digest
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

TYPE = "jitgen.trust.v1"
PAYLOAD_TYPE = "application/vnd.jitgen.trust.v1+json"
MAX_BYTES = 2**22
"""Largest file of one, with those that led to it: every process that fetches reads it."""

MAX_BEFORE = 32
"""
Most documents that led to one: a root handed over every year for a lifetime. The oldest go first;
who has nothing later than these must be given a new document by hand.
"""

_MAX_DOCUMENT = 2**20  # one alone: some 8,000 revoked digests
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
        not_before: From when it signs.
        not_after: Until when. What it signed before then goes on counting.
        comment: What it is, for people.
    """

    public: PublicKey
    not_before: datetime
    not_after: datetime
    comment: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        return {
            "keyid": self.public.keyid,
            "public": self.public.text,
            "not_before": times.text_of(self.not_before),
            "not_after": times.text_of(self.not_after),
            "comment": self.comment,
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
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
    What a trust document says.

    Attributes:
        version: Grows with each document.
        issued: When it was signed.
        expires: From when it says nothing any more: then nothing is accepted.
        roots: Keys that sign trust documents, unless they are revoked.
        keys: Keys that sign entries, by keyid.
        revoked_keys: Keyids that count for nothing, whenever they signed, and why.
        revoked: Digests that are refused, whoever signed them, and why: of a ``meta.json``, of a
            file, or an entry's key.
        min_signed_at: What was signed before it is refused; None: nothing is for that.
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
        """The roots whose signatures count: a thief of a revoked one writes no later document."""
        return tuple(root for root in self.roots if root.keyid not in self.revoked_keys)

    def to_json(self) -> dict[str, Any]:
        """Return what is signed, as JSON values."""
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
    def from_json(cls, document: Any) -> Self:
        """
        Return what `to_json` wrote.

        Raises:
            SigningError: Something is missing, unknown or out of bounds.
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
            SigningError: None of them is a root of this document that stands, or it is too large.
        """
        if not {root.public for root in roots} & set(self.standing_roots):
            raise SigningError(
                "the trust document must be signed by one of the roots it names and does not "
                "revoke; first give it another root, with a document that both sign"
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
    A trust document whose signature was checked.

    Attributes:
        trust: What it says.
        envelope: That, and who signed it.
        before: Earlier documents, each of which leads to it; without any of their own.
        data: Its bytes, with those of `before`, to be passed on.
        digest: SHA-256 of `data`, by which two are told apart.
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
        """Its version."""
        return self.trust.version

    def is_signed_by(self, public: PublicKey) -> bool:
        """Return whether `public` signed it; each signature is checked once, however many ask."""
        if public not in self._signed:
            self._signed[public] = self.envelope.is_signed_by(public)
        return self._signed[public]

    def follows(self, earlier: SealedTrust) -> bool:
        """Return whether it may take the place of `earlier` in one step."""
        return self.version > earlier.version and any(
            map(self.is_signed_by, earlier.trust.standing_roots)
        )

    def comes_from(self, earlier: SealedTrust) -> bool:
        """Return whether `earlier` leads to it: it is the same, or what `before` has is between."""
        return any(
            one.envelope.payload == earlier.envelope.payload or one.follows(earlier)
            for one in (self, *self.before)
        )


def opened(data: bytes, before: SealedTrust | None = None) -> SealedTrust:
    """
    Return the trust document in `data`.

    Whether it has expired is not looked at: that is for who judges by it. Of the documents that led
    to it neither, for they say nothing any more but which roots came next.

    Args:
        data: Its bytes.
        before: The document that it is to take the place of; None where it is the first.

    Raises:
        SigningError: It is none, none of its own roots signed it, an earlier one in it does not
            lead to it, or it may not take the place of `before`: its version is not later, or no
            root of that one signed it or a document that led to it. A root that is revoked counts
            for none.
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


def _alone(document: Any) -> SealedTrust:
    """Return one trust document, without those before it, whose own root signed it."""
    envelope = dsse.Envelope.from_json(document)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise SigningError(f"it is no trust document but {shown(envelope.payload_type)}")
    trust = Trust.from_json(_parsed(envelope.payload, _MAX_DOCUMENT))
    if not any(map(envelope.is_signed_by, trust.standing_roots)):
        raise SigningError("no root that the trust document names signed it")
    return joined(trust, envelope, ())


def joined(trust: Trust, envelope: dsse.Envelope, before: tuple[SealedTrust, ...]) -> SealedTrust:
    """Return the document of these parts, which were checked."""
    document = envelope.to_json()
    if before:
        document["before"] = [one.envelope.to_json() for one in before]
    data = f"{canonical_json(document)}\n".encode("ascii")
    digest = hashlib.sha256(data).hexdigest()
    return SealedTrust(trust=trust, envelope=envelope, before=before, data=data, digest=digest)


def _check_steps(found: SealedTrust) -> None:
    """Refuse a document with an earlier one that does not lead to it, step by step."""
    proven = [found]
    for one in sorted(found.before, key=lambda one: -one.version):
        if not any(later.follows(one) for later in reversed(proven)):
            raise SigningError(
                f"it holds version {one.version} as one that led to it, and that does not"
            )
        proven.append(one)


def _parsed(data: bytes, max_bytes: int) -> Any:
    try:
        return parse_json(data, max_bytes=max_bytes)
    except BadDocument as error:
        raise SigningError(f"the trust document cannot be read: {error}") from None


def is_comment(value: object) -> bool:
    """Return whether `value` is a line of text that may stand in a trust document."""
    return isinstance(value, str) and len(value) <= _MAX_REASON and (value or " ").isprintable()


def _object(document: Any, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(document, dict) or document.keys() != names:
        found = sorted(document.keys() ^ names) if isinstance(document, dict) else "no object"
        raise SigningError(f"the trust document has missing or unknown fields: {shown(found)}")
    return document


def _list(value: Any, least: int, most: int) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise SigningError(f"the trust document has a list that is not of {least} to {most}")
    return value


def _reasons(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        is_digest(name) and is_comment(reason) for name, reason in value.items()
    ):
        raise SigningError("the trust document has a list of what is revoked that is none")
    return value
