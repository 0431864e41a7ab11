# SPDX-License-Identifier: Apache-2.0
"""Trust documents for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jitgen.signing.keys import PrivateKey
from jitgen.signing.trust import Trust, TrustedKey

ROOT = PrivateKey.generate()


DAY = timedelta(days=1)


def trust_in(
    *keys: PrivateKey,
    version: int = 1,
    revoked: Mapping[str, str] | None = None,
    begins: timedelta = -DAY,
    ends: timedelta = 100 * DAY,
    expires: timedelta = 200 * DAY,
    revoked_keys: Mapping[str, str] | None = None,
    min_signed_at: timedelta | None = None,
) -> Trust:
    """
    Return a trust document, not signed yet, in which `keys` sign from `begins` to `ends`,
    both counted from now.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    return Trust(
        version=version,
        issued=now,
        expires=now + expires,
        roots=(ROOT.public,),
        keys={
            key.keyid: TrustedKey(public=key.public, not_before=now + begins, not_after=now + ends)
            for key in keys
        },
        revoked_keys=dict(revoked_keys or {}),
        revoked=dict(revoked or {}),
        min_signed_at=None if min_signed_at is None else now + min_signed_at,
    )


def sealed(*keys: PrivateKey, **changes: Any) -> bytes:
    """Return the trust document that `trust_in` makes, signed."""
    return trust_in(*keys, **changes).sealed(ROOT)
