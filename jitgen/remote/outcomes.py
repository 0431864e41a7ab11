# SPDX-License-Identifier: Apache-2.0
"""
Why a place elsewhere did not give what was asked of it.

What kind of failure it is decides how long it is remembered, and by whom: see
`jitgen.remote.guard`.
None of these leaves the room; a kernel that cannot be fetched is compiled.
"""

from __future__ import annotations

from jitgen.support.failing import is_of_this_process
from jitgen.support.frozen import frozen


@frozen
class Nothing:
    """
    That there is no kernel, and why.

    Attributes:
        reason: Why, for people; it names the place.
        is_absent: Whether the place just does not have it.
    """

    reason: str
    is_absent: bool = False


class Trouble(Exception):
    """Base of what a place can answer besides what was asked of it; the message says what."""


class Unreachable(Trouble):
    """It does not answer, or not as it should, so that asking for something else is no use."""


class Busy(Trouble):
    """
    It asks to be left alone for a while.

    Attributes:
        seconds: How long.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Absent(Trouble):
    """It does not have it."""


class Refused(Trouble):
    """What it gave is not to be loaded: no trusted key signed it, or it is revoked."""


class Spoiled(Trouble):
    """What it gave is damaged: its bytes are wrong, and the next time they may be right."""


class Denied(Trouble):
    """It does not let this process ask: its token is missing or not accepted."""


class Declined(Trouble):
    """
    It will not compile this kernel.

    Attributes:
        seconds: For how long that is so.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Unusable(Trouble):
    """
    Something here is in the way, and other processes of this host may fare better. It says nothing
    about the place, and is not remembered.
    """


def trouble_of(error: Exception, words: str) -> Trouble:
    """Return what it means that a place could not be asked: for want of descriptors, `Unusable`."""
    if is_of_this_process(error):
        return Unusable(f"this process cannot ask now: {words}")
    return Unreachable(words)
