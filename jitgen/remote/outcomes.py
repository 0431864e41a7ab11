# SPDX-License-Identifier: Apache-2.0
"""
Why a place elsewhere did not give what was asked of it.

What kind of failure it is decides how long it is remembered, and by whom: see
`jitgen.remote.request_policy`.
None of these leaves the room; a kernel that cannot be fetched is compiled.
"""

from __future__ import annotations

from jitgen.support.failing import is_of_this_process
from jitgen.support.frozen import frozen


@frozen
class Miss:
    """
    That there is no kernel, and why.

    Attributes:
        reason: Why, for people; it names the place.
        is_not_found: Whether the place just does not have it.
    """

    reason: str
    is_not_found: bool = False


class RemoteError(Exception):
    """Base of what a place can answer besides what was asked of it; the message says what."""


class Unreachable(RemoteError):
    """It does not answer, or not as it should, so that asking for something else is no use."""


class Busy(RemoteError):
    """
    It asks to be left alone for a while.

    Attributes:
        seconds: How long.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class NotFound(RemoteError):
    """It does not have it."""


class Untrusted(RemoteError):
    """What it gave is not to be loaded: no trusted key signed it, or it is revoked."""


class Corrupt(RemoteError):
    """What it gave is damaged: its bytes are wrong, and the next time they may be right."""


class Unauthorized(RemoteError):
    """It does not let this process ask: its token is missing or not accepted."""


class Rejected(RemoteError):
    """
    It will not compile this kernel.

    Attributes:
        seconds: For how long that is so.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class LocalFailure(RemoteError):
    """
    Something here is in the way, and other processes of this host may fare better. It says nothing
    about the place, and is not remembered.
    """


def remote_error(error: Exception, words: str) -> RemoteError:
    """
    Return the error of a request that failed: `LocalFailure` where this process lacks descriptors
    or memory, else `Unreachable`.
    """
    if is_of_this_process(error):
        return LocalFailure(f"this process cannot ask now: {words}")
    return Unreachable(words)
