# SPDX-License-Identifier: Apache-2.0
"""
Decides whether an entry is accepted, by its record, its signatures and a trust document.

One valid signature is enough: an entry with signatures of two keys outlives one of them. An entry
with a revoked digest is refused in spite of any signature. `judge` gives the reason of each
refusal: "not trusted" alone would not help an operator who has just rotated a key.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jitgen.errors import SigningError
from jitgen.signing import dsse, times
from jitgen.signing.statement import PAYLOAD_TYPE, Statement, Subject
from jitgen.signing.trust import Trust, TrustedKey
from jitgen.support.frozen import frozen

SKEW = timedelta(minutes=5)
"""How far the clock of a builder may be ahead."""

_MOST_REASONS = 3


@frozen
class Judgement:
    """
    Judgement of an entry; true if it is accepted.

    Attributes:
        reason: Why it is not accepted; empty if it is.
        statements: The statements of valid signatures, by keyid.
    """

    reason: str
    statements: dict[str, Statement]

    def __bool__(self) -> bool:
        return not self.reason


def judge(record: bytes, signatures: bytes, trust: Trust, now: datetime | None = None) -> Judgement:
    """
    Return whether an entry is accepted; no content of the bytes makes it raise.

    The caller checks that `record` is well-formed, that it belongs to the requested key, and that
    the files have their digests; see `jitgen.cache.Meta.decode`.

    Args:
        record: The bytes of its ``meta.json``.
        signatures: The bytes of its ``signatures.json``; empty if there is none.
        trust: The trust document.
        now: The present time; None: by the clock.
    """
    now = times.now() if now is None else now
    try:
        subject = Subject.of(record)
        envelopes = dsse.decode(signatures)
    except SigningError as error:
        return _refused(str(error))
    if now >= trust.expires:
        return _refused(f"trust document {trust.version} expired at {times.text_of(trust.expires)}")
    for digest in (subject.key, subject.meta_sha256, *subject.files):
        if digest in trust.revoked:
            return _refused(
                f"{digest[:12]} is revoked: {trust.revoked[digest] or 'no reason given'}"
            )
    if not envelopes:
        return _refused("it is not signed")
    statements: dict[str, Statement] = {}
    reasons: dict[str, None] = {}
    for envelope in envelopes:
        for signature in envelope.signatures:
            found = _statement(subject, envelope, signature, trust, now)
            if isinstance(found, Statement):
                statements[signature.keyid] = found
            else:
                reasons[found] = None
    if statements:
        return Judgement(reason="", statements=statements)
    return _refused("; ".join(list(reasons)[:_MOST_REASONS]))


def _refused(reason: str) -> Judgement:
    return Judgement(reason=reason, statements={})


def _statement(
    subject: Subject,
    envelope: dsse.Envelope,
    signature: dsse.Signature,
    trust: Trust,
    now: datetime,
) -> Statement | str:
    """Return the statement of a valid `signature`, or why it is not valid."""
    keyid = signature.keyid
    key = trust.keys.get(keyid)
    if keyid in trust.revoked_keys:
        return f"key {keyid[:12]} is revoked: {trust.revoked_keys[keyid] or 'no reason given'}"
    if key is None:
        return f"key {keyid[:12]} is not in trust document {trust.version}"
    message = dsse.encoding(envelope.payload_type, envelope.payload)
    if not key.public.verifies(signature.sig, message):
        return f"the signature of key {keyid[:12]} is wrong"
    try:
        statement = _decoded(envelope)
        _check(statement, subject, key, trust, now)
    except SigningError as error:
        return f"key {keyid[:12]}: {error}"
    return statement


def _decoded(envelope: dsse.Envelope) -> Statement:
    if envelope.payload_type != PAYLOAD_TYPE:
        raise SigningError("it signed something else than an entry")
    return Statement.decode(envelope.payload)


def _check(said: Statement, subject: Subject, key: TrustedKey, trust: Trust, now: datetime) -> None:
    """
    Raise SigningError if a statement is not about `subject`, or was made outside of its key's
    period, before ``min_signed_at`` or in the future.
    """
    least, signed_at = trust.min_signed_at, said.signed_at
    rules = {
        "it signed another key": said.key != subject.key,
        "it signed another meta.json": said.meta_sha256 != subject.meta_sha256,
        "it signed another toolchain": said.toolchain != subject.toolchain,
        "it signed before min_signed_at": least is not None and signed_at < least,
        "it signed in the future": signed_at > now + SKEW,
        "it signed outside of its time": not key.not_before <= signed_at <= key.not_after,
    }
    for reason, is_broken in rules.items():
        if is_broken:
            raise SigningError(f"{reason} ({times.text_of(signed_at)})")
