# SPDX-License-Identifier: Apache-2.0
"""
Standing of a signing key in a trust document: whether its new signatures are valid, and how long.

If a builder's key is not in the document, or no longer, signing still works, but every client
refuses the entries. So builders, and ``jitgen doctor``, compare key and document.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from jitgen.signing import times
from jitgen.signing.trust import Trust
from jitgen.support.frozen import frozen

SOON = timedelta(days=30)
"""Time before the end of a key or document from which on a warning is given."""

SHOWN = 12
"""Digits of a keyid in messages."""


class State(StrEnum):
    """State of a key in a trust document."""

    GOOD = "good"
    ENDS_SOON = "ends soon"
    ABSENT = "absent"
    REVOKED = "revoked"
    EARLY = "early"
    OVER = "over"
    DISOWNED = "disowned"
    EXPIRED = "expired"


@frozen
class Standing:
    """
    Standing of one key in one document, at one time.

    Attributes:
        state: The state.
        reason: What is wrong or ends soon, and what to do; empty if all is well.
        ends: When the key or the document ends, so that new signatures are not valid any more; None
            if they are not valid now.
    """

    state: State
    reason: str = ""
    ends: datetime | None = None

    @property
    def is_refused(self) -> bool:
        """Whether clients refuse what the key signs now."""
        return self.state not in (State.GOOD, State.ENDS_SOON)


def standing(keyid: str, trust: Trust, now: datetime | None = None) -> Standing:
    """
    Return the standing of the key `keyid` in `trust`.

    Args:
        keyid: The key's name.
        trust: The document.
        now: The present time; None: by the clock.
    """
    now = times.now() if now is None else now
    for state, is_so, why in _refusals(keyid, trust, now):
        if is_so:
            return Standing(state=state, reason=f"{why}; {_ALL}")
    last = trust.keys[keyid].not_after
    ends = min(last, trust.expires)
    if ends - now > SOON:
        return Standing(state=State.GOOD, ends=ends)
    if last <= trust.expires:
        why = f"key {keyid[:SHOWN]} signs until {times.text_of(ends)}; {_OTHER}"
    else:
        why = f"trust document {trust.version} expires at {times.text_of(ends)}; {_RENEW}"
    return Standing(state=State.ENDS_SOON, reason=why, ends=ends)


def _refusals(keyid: str, trust: Trust, now: datetime) -> tuple[tuple[State, bool, str], ...]:
    """Return each reason to refuse the key's signatures: state, whether it applies, text."""
    name, document = f"key {keyid[:SHOWN]}", f"trust document {trust.version}"
    key = trust.keys.get(keyid)
    first, last = (now, now) if key is None else (key.not_before, key.not_after)
    least = trust.min_signed_at or now
    why = trust.revoked_keys.get(keyid) or "no reason given"
    return (
        (
            State.EXPIRED,
            now >= trust.expires,
            f"{document} expired at {times.text_of(trust.expires)}; {_RENEW}",
        ),
        (
            State.REVOKED,
            keyid in trust.revoked_keys,
            f"{name} is revoked by {document}: {why}; {_OTHER}",
        ),
        (
            State.ABSENT,
            key is None,
            f"{name} is not in {document}; jitgen trust add puts it there",
        ),
        (State.EARLY, now < first, f"{name} signs from {times.text_of(first)} on"),
        (State.OVER, now > last, f"{name} signed until {times.text_of(last)}; {_OTHER}"),
        (
            State.DISOWNED,
            now < least,
            f"{document} refuses what is signed before {times.text_of(least)}",
        ),
    )


_RENEW = "jitgen trust add, rotate or revoke renews it"
_OTHER = "jitgen trust rotate puts another key in its place"
_ALL = "until then every client refuses what the key signs"
