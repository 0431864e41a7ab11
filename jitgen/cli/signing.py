# SPDX-License-Identifier: Apache-2.0
"""
Warnings of commands that sign, if signatures of their key would not be accepted on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.cli.output import Output
from jitgen.errors import SettingError, SigningError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.signing.trust import Trust


def trust_of(store: Store) -> Trust | None:
    """Return the trust document of JITGEN_TRUST; None if none is named, or it cannot be used."""
    if settings.trust is None:
        return None
    try:
        return store.trusted.current().trust
    except (SettingError, SigningError):
        return None


def warn_of_key(output: Output, keyid: str, store: Store) -> None:
    """
    Warn if this machine's trust document refuses signatures of the key, or soon will.

    Raises:
        SigningError: The document revokes the key, or has it as a root: nothing that it signs will
            ever count.
    """
    from jitgen.signing.standing import SHOWN, standing

    trust = trust_of(store)
    if trust is None:
        return
    if keyid in {root.keyid for root in trust.roots}:
        raise SigningError(
            f"key {keyid[:SHOWN]} is a root key of trust document {trust.version}, which signs no "
            "entries and must lie where nothing runs; make another with jitgen trust key"
        )
    if keyid in trust.revoked_keys:
        why = trust.revoked_keys[keyid] or "no reason given"
        raise SigningError(
            f"key {keyid[:SHOWN]} is revoked by trust document {trust.version}: {why}; nothing is "
            "signed with it: take another key (jitgen trust rotate), or take the revocation back "
            "(jitgen trust unrevoke)"
        )
    if reason := standing(keyid, trust).reason:
        output.warn(reason)
