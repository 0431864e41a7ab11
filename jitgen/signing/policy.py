# SPDX-License-Identifier: Apache-2.0
"""
Whether an entry is accepted, by its record, its signatures and a trust document.

One good signature is enough: an entry that two keys signed outlives one of them. What was revoked
by its digest is refused whoever signed it. `judge` says for every refusal why, for "not trusted"
alone helps nobody who has just rotated a key.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from jitgen.errors import SigningError
from jitgen.signing import dsse, times
from jitgen.signing.statement import PAYLOAD_TYPE, Statement, Subject
from jitgen.signing.trust import Trust, TrustedKey
from jitgen.support.frozen import frozen

SKEW = timedelta(minutes=5)
"""How far clocks of builders may be ahead."""

_MOST_REASONS = 3


@frozen
class Judgement:
    """
    What was found of an entry. True where it is accepted.

    Attributes:
        reason: Why it is not accepted; empty where it is.
        statements: What is said of it, by keyid, in signatures that count.
    """

    reason: str
    statements: dict[str, Statement]

    def __bool__(self) -> bool:
        return not self.reason


def judge(record: bytes, signatures: bytes, trust: Trust, now: datetime | None = None) -> Judgement:
    """
    Return whether an entry is accepted; never raises for what its bytes hold.

    That `record` is right in itself, that it belongs to the key that was asked for, and that the
    files have their digests, is for the reader to check: `jitgen.cache.Meta.decode` and others do.

    Args:
        record: The bytes of its ``meta.json``.
        signatures: Those of its ``signatures.json``; empty where there is none.
        trust: Whose signatures count.
        now: The present moment; None for the clock's.
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
    """Return the statement that `signature` vouches for, or why it counts for nothing."""
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
    """Raise SigningError where a statement is not about `subject`, or was not made in its time."""
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
