# SPDX-License-Identifier: Apache-2.0
"""Keys, trust documents and signatures for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import PAYLOAD_TYPE, Statement
from jitgen.signing.trust import SealedTrust, Trust, TrustedKey, opened

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
YEAR = timedelta(days=365)


def trust_of(root: PrivateKey, *keys: PrivateKey, **changes: Any) -> Trust:
    """Return a trust document in which `keys` sign from a year ago on, for two years."""
    values: dict[str, Any] = {
        "version": 1,
        "issued": NOW - YEAR,
        "expires": NOW + YEAR,
        "roots": (root.public,),
        "keys": {
            key.keyid: TrustedKey(public=key.public, not_before=NOW - YEAR, not_after=NOW + YEAR)
            for key in keys
        },
    }
    return Trust(**(values | changes))


def sealed(root: PrivateKey, *keys: PrivateKey, **changes: Any) -> SealedTrust:
    """Return the document of `trust_of`, signed by `root`."""
    return opened(trust_of(root, *keys, **changes).sealed(root))


def signed(record: bytes, *keys: PrivateKey, at: datetime = NOW) -> bytes:
    """Return the ``signatures.json`` of an entry that every one of `keys` signed."""
    payload = Statement.of(record, "a test", at).encode()
    return dsse.encode([dsse.seal(PAYLOAD_TYPE, payload, *keys)])
