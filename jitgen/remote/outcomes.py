# SPDX-License-Identifier: Apache-2.0
"""
Why a remote backend did not give what was requested.

The kind of the error decides for how long it is remembered, and for which processes; see
`jitgen.remote.request_policy`. None of these errors leaves the package: a kernel that cannot be
fetched is compiled.
"""

from __future__ import annotations

from jitgen.support.failing import is_of_this_process
from jitgen.support.frozen import frozen


@frozen
class Miss:
    """
    A backend gave no kernel.

    Attributes:
        reason: Why, for people; it names the backend.
        is_not_found: Whether the backend is well and just does not have it.
    """

    reason: str
    is_not_found: bool = False


class RemoteError(Exception):
    """
    Base of the errors of a backend; the message says what happened.

    Attributes:
        seconds: For how long this process does not repeat the request; 0: this process does not
            remember the error, though the host may: see `Unreachable`.
        is_of_backend: Whether, in that time, this process makes no other request of the same
            purpose (``fetch``, ``info``, ``compile``) to the backend.

    Args:
        message: What happened.
        seconds: `seconds`, if it is not that of the class.
    """

    seconds = 0.0
    is_of_backend = False

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        if seconds is not None:
            self.seconds = seconds


class Unreachable(RemoteError):
    """
    The backend does not answer, or answers wrongly. `jitgen.remote.breaker` remembers it, for all
    processes of the host.
    """


class Busy(RemoteError):
    """The backend asks for a pause of `seconds`."""

    is_of_backend = True


class NotFound(RemoteError):
    """The backend does not have the entry. It may be under way: another process may compile it."""

    seconds = 30.0


class Untrusted(RemoteError):
    """
    The entry must not be loaded: no trusted key signed it, or it is revoked. It may be signed
    later; a change of the trust document ends the time early.
    """

    seconds = 3600.0


class Revoked(Untrusted):
    """The service says that the entry is revoked; its operator may take that back."""

    seconds = 600.0


class Corrupt(RemoteError):
    """The entry is damaged: some bytes are wrong, and may be right the next time."""

    seconds = 60.0


class Unauthorized(RemoteError):
    """
    The backend refuses this process: its token is missing or not accepted. Other processes of the
    host may have a valid token.
    """

    seconds = 60.0
    is_of_backend = True


class Rejected(RemoteError):
    """The service will not compile this kernel."""

    seconds = 600.0


class LocalFailure(RemoteError):
    """
    The process itself cannot make the request: it lacks descriptors or memory, say. That says
    nothing about the backend, and is not remembered; other processes of the host may succeed.
    """


def remote_error(error: Exception, words: str) -> RemoteError:
    """
    Return the error of a request that failed: `LocalFailure` where this process lacks descriptors
    or memory, else `Unreachable`.
    """
    if is_of_this_process(error):
        return LocalFailure(f"this process cannot ask now: {words}")
    return Unreachable(words)
