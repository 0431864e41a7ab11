# SPDX-License-Identifier: Apache-2.0
"""
Changes of a trust document: each returns the next version, which must be signed again.

Only `restored` removes a revocation. Each change also renews the document: it is valid for `valid`
from now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from jitgen.errors import SigningError
from jitgen.signing import times
from jitgen.signing.keys import PublicKey
from jitgen.signing.trust import Trust, TrustedKey

VALID = timedelta(days=365)
SIGNS = timedelta(days=400)
OVERLAP = timedelta(days=30)
"""How long the replaced keys stay valid after a rotation, until every builder has the new one."""


def begun(root: PublicKey, valid: timedelta = VALID) -> Trust:
    """Return the first document of a root; no key may sign entries yet."""
    now = times.now().replace(microsecond=0)
    return Trust(version=1, issued=now, expires=now + valid, roots=(root,))


def _next(trust: Trust, valid: timedelta) -> Trust:
    now = times.now().replace(microsecond=0)
    return replace(trust, version=trust.version + 1, issued=now, expires=now + valid)


def added(
    trust: Trust,
    key: PublicKey,
    *,
    comment: str = "",
    signs: timedelta = SIGNS,
    valid: timedelta = VALID,
) -> Trust:
    """
    Return the next version, in which `key` may sign from now on, for `signs`.

    If the key is there already, its period is extended, and its earlier signatures stay valid.

    Raises:
        SigningError: It is a root key, or is revoked.
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
    return _next(replace(trust, keys={**trust.keys, key.keyid: mine}), valid)


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
    Return the next version, in which `key` may sign from now on, and the keys that it replaces only
    for `overlap`.

    Args:
        trust: The previous version.
        key: The new key.
        comment: Description of the key, for people.
        replaces: Keyids of the keys that it replaces; none: all others.
        overlap: For how long these may still sign.
        signs: For how long `key` may sign.
        valid: For how long the document is valid.

    Raises:
        SigningError: `key` is a root key or is revoked, or one of `replaces` is not in the
            document.
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
    """Return the next version, whose one root is `root`; a previous root must sign it, too."""
    return _next(replace(trust, roots=(root,)), valid)


def revoked(
    trust: Trust,
    digests: tuple[str, ...],
    *,
    reason: str = "",
    before: datetime | None = None,
    valid: timedelta = VALID,
) -> Trust:
    """
    Return the next version, in which `digests` are revoked.

    Args:
        trust: The previous version.
        digests: Keyids; keys of entries; digests of a ``meta.json`` or of a file.
        reason: Why they are revoked.
        before: Also refuse all signatures from before this time.
        valid: For how long the document is valid.
    """
    known = trust.keys.keys() | {root.keyid for root in trust.roots}
    keys = {digest: reason for digest in digests if digest in known}
    others = {digest: reason for digest in digests if digest not in known}
    least = max(filter(None, (trust.min_signed_at, before)), default=None)
    return _next(
        replace(
            trust,
            revoked_keys={**trust.revoked_keys, **keys},
            revoked={**trust.revoked, **others},
            min_signed_at=least,
        ),
        valid,
    )


def restored(trust: Trust, digests: tuple[str, ...], valid: timedelta = VALID) -> Trust:
    """
    Return the next version, in which `digests` are not revoked any more: keyids, keys of entries,
    digests of a ``meta.json`` or of a file.

    Raises:
        SigningError: One of them is not revoked.
    """
    if strange := [d for d in digests if d not in trust.revoked_keys and d not in trust.revoked]:
        raise SigningError(
            f"{strange[0][:12]} is not revoked by trust document {trust.version}; jitgen trust "
            "show lists what is"
        )

    def kept(rows: Mapping[str, str]) -> dict[str, str]:
        return {digest: why for digest, why in rows.items() if digest not in digests}

    return _next(
        replace(trust, revoked_keys=kept(trust.revoked_keys), revoked=kept(trust.revoked)), valid
    )


def taken_back(before: Trust, after: Trust) -> dict[str, str]:
    """Return what `before` revokes and `after` does not, with the reasons that it had."""
    earlier = {**before.revoked_keys, **before.revoked}
    later = after.revoked_keys.keys() | after.revoked.keys()
    return {digest: why for digest, why in earlier.items() if digest not in later}
