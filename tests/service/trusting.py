# SPDX-License-Identifier: Apache-2.0
"""Trust documents for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from jitgen.signing.keys import PrivateKey
from jitgen.signing.trust import Trust, TrustedKey

ROOT = PrivateKey.generate()


def trust_in(
    *keys: PrivateKey, version: int = 1, revoked: Mapping[str, str] | None = None
) -> Trust:
    """Return a trust document, signed by nobody yet, in which `keys` count for a day."""
    now = datetime.now(UTC).replace(microsecond=0)
    day = timedelta(days=1)
    return Trust(
        version=version,
        issued=now,
        expires=now + day,
        roots=(ROOT.public,),
        keys={
            key.keyid: TrustedKey(public=key.public, not_before=now - day, not_after=now + day)
            for key in keys
        },
        revoked=dict(revoked or {}),
    )


def sealed(*keys: PrivateKey, version: int = 1, revoked: Mapping[str, str] | None = None) -> bytes:
    """Return the same, signed."""
    return trust_in(*keys, version=version, revoked=revoked).sealed(ROOT)
