# SPDX-License-Identifier: Apache-2.0
"""
Envelopes: a payload, its type, and signatures over both (DSSE, version 1).

Signatures are over an encoding of type and payload, so that a signature of a trust document is not
valid for a statement. A statement is believed only after its signature was verified. An entry's
``signatures.json`` holds a list of envelopes; a later signer adds one, and `renewed` drops those
that it replaces.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Self

from jitgen.errors import SigningError
from jitgen.signing.keys import SIGNATURE_BYTES, PrivateKey, PublicKey, Sign, is_digest, unbase64
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen

MAX_BYTES = 2**16
"""Largest ``signatures.json``."""

MAX_ENVELOPES = 16
MAX_SIGNATURES = 16
"""Most signatures of one envelope; both bounds limit the work that an untrusted file can cause."""


@frozen
class Signature:
    """
    One signature.

    Attributes:
        keyid: Name of the key that made it.
        sig: Its 64 bytes.
    """

    keyid: str
    sig: bytes


@frozen
class Envelope:
    """
    A payload and its signatures.

    Attributes:
        payload_type: Media type of the payload.
        payload: The signed bytes.
        signatures: At least one signature.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    def is_signed_by(self, public: PublicKey) -> bool:
        """Return whether `public` made one of the signatures."""
        message = encoding(self.payload_type, self.payload)
        return any(
            signature.keyid == public.keyid and public.verifies(signature.sig, message)
            for signature in self.signatures
        )

    def to_json(self) -> dict[str, object]:
        """Return the envelope as JSON values, in the form of DSSE."""
        return {
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "payloadType": self.payload_type,
            "signatures": [
                {"keyid": one.keyid, "sig": base64.b64encode(one.sig).decode("ascii")}
                for one in self.signatures
            ],
        }

    @classmethod
    def from_json(cls, document: object) -> Self:
        """
        Return the envelope that `to_json` wrote, without verifying its signatures.

        Raises:
            SigningError: It is malformed.
        """
        fields = _fields(document, {"payload", "payloadType", "signatures"}, "an envelope")
        kind, signatures = fields["payloadType"], fields["signatures"]
        if not isinstance(kind, str) or not kind.isascii() or not isinstance(signatures, list):
            raise SigningError("an envelope has a bad payloadType or bad signatures")
        if not 1 <= len(signatures) <= MAX_SIGNATURES:
            raise SigningError(
                f"an envelope has {len(signatures)} signatures, not 1 to {MAX_SIGNATURES}"
            )
        return cls(
            payload_type=kind,
            payload=unbase64(fields["payload"], "the payload of an envelope"),
            signatures=tuple(_signature(one) for one in signatures),
        )


def _signature(document: object) -> Signature:
    fields = _fields(document, {"keyid", "sig"}, "a signature")
    keyid, sig = fields["keyid"], unbase64(fields["sig"], "a signature")
    if not is_digest(keyid) or len(sig) != SIGNATURE_BYTES:
        raise SigningError("a signature has a bad keyid or a wrong length")
    return Signature(keyid=keyid, sig=sig)


def _fields(document: object, names: set[str], what: str) -> Mapping[str, object]:
    if not isinstance(document, dict) or document.keys() != names:
        raise SigningError(f"{what} has missing or unknown fields: it has {sorted(names)}")
    return document


def encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign for a payload: its type and itself, each after its length."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal(payload_type: str, payload: bytes, *keys: PrivateKey) -> Envelope:
    """Return the envelope of a payload, signed by each of `keys`."""
    return seal_with(payload_type, payload, {key.keyid: key.sign for key in keys})


def seal_with(payload_type: str, payload: bytes, signers: Mapping[str, Sign]) -> Envelope:
    """Return the envelope of a payload, signed by the functions `signers`, by keyid."""
    message = encoding(payload_type, payload)
    signatures = (Signature(keyid=keyid, sig=sign(message)) for keyid, sign in signers.items())
    return Envelope(payload_type=payload_type, payload=payload, signatures=tuple(signatures))


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """Return the bytes of a ``signatures.json``; no bytes for no envelopes."""
    listed = [envelope.to_json() for envelope in envelopes]
    return f"{canonical_json({'envelopes': listed})}\n".encode("ascii") if listed else b""


def decode(data: bytes) -> tuple[Envelope, ...]:
    """
    Return the envelopes in `data`, the bytes of a ``signatures.json``; no envelopes for no bytes.

    Raises:
        SigningError: It is malformed or too large.
    """
    if not data:
        return ()
    try:
        document = parse_json(data, max_bytes=MAX_BYTES)
    except BadDocument as error:
        raise SigningError(f"signatures.json cannot be read: {error}") from None
    listed = _fields(document, {"envelopes"}, "signatures.json")["envelopes"]
    if not isinstance(listed, list) or len(listed) > MAX_ENVELOPES:
        raise SigningError(f"signatures.json has no list of at most {MAX_ENVELOPES} envelopes")
    return tuple(Envelope.from_json(one) for one in listed)


def merged(*files: bytes) -> bytes:
    """
    Return a ``signatures.json`` with the envelopes of all of `files`, each once.

    Raises:
        SigningError: One of them is malformed, or they have too many envelopes together.
    """
    envelopes = tuple(dict.fromkeys(one for data in files for one in decode(data)))
    if len(envelopes) > MAX_ENVELOPES:
        raise SigningError(f"{len(envelopes)} envelopes are more than the {MAX_ENVELOPES} allowed")
    return encode(envelopes)


def renewed(old: bytes, new: bytes) -> bytes:
    """
    Return a ``signatures.json`` with the envelopes of `old` and `new`.

    An envelope of `old` is dropped if each of its keys signed again in `new`. If there would be too
    many, the oldest are dropped. A malformed `old` counts as empty.

    Raises:
        SigningError: `new` is malformed.
    """
    made = decode(new)
    again = {one.keyid for envelope in made for one in envelope.signatures}
    try:
        earlier = [
            envelope
            for envelope in decode(old)
            if not {one.keyid for one in envelope.signatures} <= again
        ]
    except SigningError:
        earlier = []
    while len(earlier) + len(made) > MAX_ENVELOPES or len(encode([*earlier, *made])) > MAX_BYTES:
        if not earlier:
            raise SigningError(f"{len(made)} envelopes are more than a signatures.json holds")
        earlier.pop(0)
    return encode([*earlier, *made])
