# SPDX-License-Identifier: Apache-2.0
"""
Finds the latest of several trust documents, to which all others must lead.

A machine has the configured document, the latest that it remembers, and those that backends hand
out. Their versions may differ, and roots may have changed between them. Unless all of them lead to
the latest one, there are two conflicting documents, and none is used.
"""

from __future__ import annotations

from dataclasses import replace

from jitgen.errors import SigningError
from jitgen.signing import dsse
from jitgen.signing.keys import PublicKey
from jitgen.signing.trust import MAX_BEFORE, MAX_BYTES, SealedTrust, joined


def newest(*documents: SealedTrust) -> SealedTrust:
    """
    Return the latest of `documents`, together with the earlier ones that machines with an older
    document need to reach it.

    Raises:
        SigningError: One of them does not lead to it.
    """
    parts = _parts(documents)
    latest = max(parts, key=lambda one: one.version)
    proven = [latest]
    for one in sorted(parts, key=lambda one: -one.version):
        if one is latest:
            continue
        if not any(later.follows(one) for later in reversed(proven)):
            raise SigningError(
                f"there are two documents of version {one.version}"
                if one.version == latest.version
                else f"version {one.version} does not lead to version {latest.version}"
            )
        proven.append(one)
    made = _fitting(latest, _needed(proven))
    # If a document has this form already, its bytes are kept.
    return next((one for one in documents if _is_same(one, made)), made)


def _is_same(one: SealedTrust, other: SealedTrust) -> bool:
    return [x.envelope for x in (one, *one.before)] == [x.envelope for x in (other, *other.before)]


def _parts(documents: tuple[SealedTrust, ...]) -> list[SealedTrust]:
    """Return every document, with those in its ``before``, each once and separately."""
    found: dict[bytes, SealedTrust] = {}
    for document in documents:
        for one in (document, *document.before):
            payload = one.envelope.payload
            envelope = one.envelope
            if payload in found:
                envelope = _merged(found[payload].envelope, envelope)
            found[payload] = joined(one.trust, envelope, ())
    return list(found.values())


def _merged(first: dsse.Envelope, second: dsse.Envelope) -> dsse.Envelope:
    """
    Return an envelope with the payload that `first` and `second` share and the signatures of the
    two; `first` if these would be too many.
    """
    signatures = tuple(dict.fromkeys((*first.signatures, *second.signatures)))
    return first if len(signatures) > dsse.MAX_SIGNATURES else replace(first, signatures=signatures)


def _needed(proven: list[SealedTrust]) -> list[SealedTrust]:
    """
    Return the documents of `proven`, latest first, that are needed besides the first one.

    A document is not needed if a later one has all of its signatures: a machine that accepts it
    accepts that one, too. A signature of an unknown key counts as absent from the later one.
    """
    known = {root.keyid: root for one in proven for root in one.trust.roots}
    needed = proven[:1]
    for one in proven[1:]:
        if not any(_covers(later, one, known) for later in needed):
            needed.append(one)
    return needed[1:]


def _covers(later: SealedTrust, one: SealedTrust, known: dict[str, PublicKey]) -> bool:
    keyids = {signature.keyid for signature in one.envelope.signatures}
    return all(keyid in known and later.is_signed_by(known[keyid]) for keyid in keyids)


def _fitting(latest: SealedTrust, needed: list[SealedTrust]) -> SealedTrust:
    """Return `latest` with as many of `needed`, latest first, as fit into a file."""
    for count in range(min(len(needed), MAX_BEFORE), -1, -1):
        made = joined(latest.trust, latest.envelope, tuple(reversed(needed[:count])))
        if len(made.data) <= MAX_BYTES:
            return made
    return latest
