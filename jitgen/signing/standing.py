# SPDX-License-Identifier: Apache-2.0
"""
How a signing key stands in a trust document: whether what it signs now counts, and for how long.

A builder whose key is not in the document, or no longer, signs on, and every client refuses what it
signed. So whoever signs, or asks one who does, compares the two.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from jitgen.signing import times
from jitgen.signing.trust import Trust
from jitgen.support.frozen import frozen

SOON = timedelta(days=30)
"""How long before an end one is warned of it."""

SHOWN = 12
"""Digits of a keyid that people are shown."""


class State(StrEnum):
    """How a key stands."""

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
    How one key stands in one document, at one time.

    Attributes:
        state: In a word.
        reason: What is wrong or ends soon, and what to do; empty where all is well.
        ends: When what it signs counts no longer, by the key or the document; None where it
            does not now.
    """

    state: State
    reason: str = ""
    ends: datetime | None = None

    @property
    def is_refused(self) -> bool:
        """Whether everything that the key signs now is refused."""
        return self.state not in (State.GOOD, State.ENDS_SOON)


def standing(keyid: str, trust: Trust, now: datetime | None = None) -> Standing:
    """
    Return how the key `keyid` stands in `trust`.

    Args:
        keyid: The key's name.
        trust: The document.
        now: The present moment; None for the clock's.
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
    """Return each reason why nothing that the key signs counts, and whether it is so."""
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
