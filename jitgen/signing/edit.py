# SPDX-License-Identifier: Apache-2.0
"""
Changes of a trust document: each makes the next version of it, to be signed anew.

What was revoked stays so; only a new document without it would say otherwise, and nobody writes one
by accident. Every change renews the document: it is valid for as long as is asked, from now.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from jitgen.errors import SigningError
from jitgen.signing import times
from jitgen.signing.keys import PublicKey
from jitgen.signing.trust import Trust, TrustedKey

VALID = timedelta(days=365)
SIGNS = timedelta(days=400)
OVERLAP = timedelta(days=30)
"""How long the keys before go on signing after a rotation, until every builder has the new one."""


def begun(root: PublicKey, valid: timedelta = VALID) -> Trust:
    """Return the first document of a root: nobody signs entries yet."""
    now = times.now().replace(microsecond=0)
    return Trust(version=1, issued=now, expires=now + valid, roots=(root,))


def _next(trust: Trust, valid: timedelta, **changes: Any) -> Trust:
    now = times.now().replace(microsecond=0)
    return replace(trust, version=trust.version + 1, issued=now, expires=now + valid, **changes)


def added(
    trust: Trust,
    key: PublicKey,
    *,
    comment: str = "",
    signs: timedelta = SIGNS,
    valid: timedelta = VALID,
) -> Trust:
    """
    Return the next version, in which `key` signs from now on, for `signs`.

    One that is there already signs on: what it signed before goes on counting.

    Raises:
        SigningError: It is a root key, or was revoked.
    """
    if key in trust.roots:
        raise SigningError("a root key does not sign entries: it must lie where nothing runs")
    if key.keyid in trust.revoked_keys:
        raise SigningError(f"key {key.keyid[:12]} was revoked; make another one")
    now = times.now().replace(microsecond=0)
    before = trust.keys.get(key.keyid)
    mine = TrustedKey(
        public=key,
        not_before=now if before is None else min(now, before.not_before),
        not_after=now + signs,
        comment=comment or ("" if before is None else before.comment),
    )
    return _next(trust, valid, keys={**trust.keys, key.keyid: mine})


def rotated(
    trust: Trust,
    key: PublicKey,
    *,
    comment: str = "",
    replaces: Collection[str] = (),
    overlap: timedelta = OVERLAP,
    signs: timedelta = SIGNS,
    valid: timedelta = VALID,
) -> Trust:
    """
    Return the next version, in which `key` signs from now on, and those that it takes the place of
    only for `overlap`.

    Args:
        trust: The version before.
        key: The new key.
        comment: What it is, for people.
        replaces: Keyids that it takes the place of; none: those of all others.
        overlap: For how long these go on signing.
        signs: For how long `key` signs.
        valid: For how long the document holds.

    Raises:
        SigningError: See `added`; or one of `replaces` is not in the document.
    """
    if strange := [keyid for keyid in replaces if keyid not in trust.keys]:
        raise SigningError(f"key {strange[0][:12]} is not in the trust document")
    end = times.now().replace(microsecond=0) + overlap
    others = {
        keyid: replace(other, not_after=max(other.not_before, min(other.not_after, end)))
        if not replaces or keyid in replaces
        else other
        for keyid, other in trust.keys.items()
    }
    return added(replace(trust, keys=others), key, comment=comment, signs=signs, valid=valid)


def with_root(trust: Trust, root: PublicKey, valid: timedelta = VALID) -> Trust:
    """Return the next version, whose one root is `root`; a root of the one before signs it too."""
    return _next(trust, valid, roots=(root,))


def revoked(
    trust: Trust,
    digests: tuple[str, ...],
    *,
    reason: str = "",
    before: datetime | None = None,
    valid: timedelta = VALID,
) -> Trust:
    """
    Return the next version, by which `digests` count for nothing.

    Args:
        trust: The version before.
        digests: Keyids; keys of entries; digests of a ``meta.json`` or of a file.
        reason: Why.
        before: Besides, everything that was signed before this moment is refused.
        valid: For how long the document holds.
    """
    known = trust.keys.keys() | {root.keyid for root in trust.roots}
    keys = {digest: reason for digest in digests if digest in known}
    others = {digest: reason for digest in digests if digest not in known}
    least = max(filter(None, (trust.min_signed_at, before)), default=None)
    return _next(
        trust,
        valid,
        revoked_keys={**trust.revoked_keys, **keys},
        revoked={**trust.revoked, **others},
        min_signed_at=least,
    )
