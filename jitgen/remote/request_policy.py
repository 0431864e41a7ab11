# SPDX-License-Identifier: Apache-2.0
"""
The policy around every request to a remote backend, so that a bad backend cannot delay kernels.

Before the request: remembered failures, the time left for fetches, and the host's circuit breaker
may make it needless. The request itself has a time limit. After it: each kind of failure is logged,
and remembered for as long as it holds, by this process or by the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from jitgen.errors import SigningError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.remote.breaker import Breaker
from jitgen.remote.budget import FETCH_S, QUICK_S, allowance, within
from jitgen.remote.negative import negatives
from jitgen.remote.outcomes import (
    Corrupt,
    LocalFailure,
    Miss,
    NotFound,
    Rejected,
    RemoteError,
    Revoked,
    Unauthorized,
    Unreachable,
    Untrusted,
)
from jitgen.settings import settings
from jitgen.support.text import printable

if TYPE_CHECKING:
    from jitgen.cache import Store

T = TypeVar("T")

_UNREADABLE = "unreadable"
"""
Used instead of the digest of a trust document that cannot be read; no document has this digest.
"""


class Wanted(Protocol):
    """Properties of a kernel that a request needs; a `KernelSpec` has them."""

    @property
    def key(self) -> str:
        """Digest of the kernel's key document."""
        ...

    @property
    def name(self) -> str:
        """Name of the kernel."""
        ...


class RequestPolicy:
    """
    Decides whether a request to one backend is made, for one store: it limits the time of requests,
    and remembers and logs failures.

    Args:
        tier: Name of the tier in events.
        url: The backend's URL.
        store: The store in which the host remembers failures.
    """

    def __init__(self, tier: str, url: str, store: Store) -> None:
        self._tier = tier
        self._url = url
        self._store = store
        self._breaker = Breaker(store, url)

    def judge(self, record: bytes, signatures: bytes) -> str:
        """
        Return why an entry is not accepted, empty if it is; see
        `jitgen.cache.trusted.Trusted.refusal`.

        Raises:
            LocalFailure: The trust document cannot be read, so the entry cannot be judged.
        """
        if settings.verify == "off":
            return ""
        trusted = self._store.trusted
        try:
            trusted.current()
        except SigningError as error:
            raise LocalFailure(str(error)) from None
        return trusted.refusal(record, signatures)

    def ask(
        self,
        spec: Wanted,
        work: Callable[[], T],
        cancel: Callable[[], object],
        *,
        purpose: str = "fetch",
        seconds: float = FETCH_S,
    ) -> T | Miss:
        """
        Return the result of `work`, or a miss with the reason.

        Args:
            spec: The kernel.
            work: Makes the request; it raises the errors of `jitgen.remote.outcomes`.
            cancel: Called at the time limit, to end `work`, which runs on another thread.
            purpose: Kind of the request: failures are remembered by kind.
            seconds: Time limit in seconds.

        Raises:
            SettingError: Fetched kernels must be signed, and JITGEN_TRUST is not set.
            ToolchainError: A required package is not installed.
        """
        trust = self._trust_digest()
        if known := self._known(spec, purpose, trust):
            return known
        start = time.perf_counter()
        try:
            with self._breaker.attempt():
                found = within(seconds, work, cancel)
        except RemoteError as error:
            spent = time.perf_counter() - start
            # A quick "not there" costs nothing, and a service had to work for a rejection.
            is_free = isinstance(error, NotFound) and spent < QUICK_S
            if not is_free and not isinstance(error, Rejected):
                allowance.spend(spent)
            # It may contain text of the backend, and appears on terminals and in logs.
            is_revoked = isinstance(error, Revoked)
            reason = printable(f"{self._url}: {'it is revoked: ' * is_revoked}{error}")
            miss = Miss(reason=reason, is_not_found=isinstance(error, NotFound))
            self._remember(spec, purpose, error, miss, trust)
            self._emit(EventKind.FETCH, spec, miss.reason, spent)
            return miss
        self._emit(EventKind.FETCH, spec, "", time.perf_counter() - start)
        return found

    def _trust_digest(self) -> str:
        if settings.verify == "off":
            return ""
        try:
            return self._store.trusted.current().digest
        except SigningError as error:
            warn_once(f"trust {error}", "nothing that is fetched is accepted: %s", error)
            return _UNREADABLE

    def _known(self, spec: Wanted, purpose: str, trust: str) -> Miss | None:
        """Return the remembered reason not to ask; None if there is none."""
        for name in ((self._url, purpose), (self._url, purpose, spec.key)):
            if miss := negatives.find(name, trust):
                return miss
        if allowance.is_spent():
            return Miss(reason=f"{self._url}: enough time was lost to requests without a kernel")
        return None

    def _remember(
        self, spec: Wanted, purpose: str, error: RemoteError, miss: Miss, trust: str
    ) -> None:
        kind = (self._url, purpose)
        name = kind if error.is_of_backend else (*kind, spec.key)
        if error.seconds:
            trust = trust if isinstance(error, Untrusted) else ""
            negatives.remember(name, miss, error.seconds, trust)
        if isinstance(error, Revoked):
            warn_once(
                f"revoked {self._url} {spec.key}",
                "%s is revoked at %s: %s; this process compiles it again, unless compiling is off "
                "(JITGEN_ON_MISS=error)",
                spec.name,
                self._url,
                printable(str(error)),
            )
            self._emit(EventKind.REJECT, spec, miss.reason)
        elif isinstance(error, (Untrusted, Corrupt)):
            warn_once(f"reject {name}", "%s is not taken from %s", spec.name, miss.reason)
            self._emit(EventKind.REJECT, spec, miss.reason)
        elif isinstance(error, (Unauthorized, Unreachable)):
            warn_once(
                f"remote {self._url}",
                "%s; kernels from there are compiled here instead",
                miss.reason,
            )

    def _emit(self, kind: EventKind, spec: Wanted, detail: str, seconds: float = 0.0) -> None:
        events.emit(
            Event(
                kind=kind,
                kernel=spec.name,
                key=spec.key,
                tier=self._tier,
                seconds=seconds,
                detail=detail,
            )
        )
