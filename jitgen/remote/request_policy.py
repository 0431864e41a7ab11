# SPDX-License-Identifier: Apache-2.0
"""
What stands around every question to a place elsewhere, so that none can be in the way.

First what needs no asking: what is remembered, what time is left, whether the host has given up on
the place. Then the question, within its time. Then what comes of it: each kind of failure is
remembered by whom it concerns and for as long as it holds, and told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from jitgen.errors import SigningError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.remote.breaker import Breaker
from jitgen.remote.budget import FETCH_S, QUICK_S, allowance, within
from jitgen.remote.negative import CORRUPT_S, NOT_FOUND_S, UNAUTHORIZED_S, UNTRUSTED_S, negatives
from jitgen.remote.outcomes import (
    Busy,
    Corrupt,
    LocalFailure,
    Miss,
    NotFound,
    Rejected,
    RemoteError,
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
"""In the place of a trust document's digest: under none of that name is anything remembered."""


class Wanted(Protocol):
    """What is to be known of a kernel to ask for it; a `KernelSpec` has it."""

    @property
    def key(self) -> str:
        """Digest of its key document."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...


class RequestPolicy:
    """
    Questions to one place, on behalf of one store.

    Args:
        tier: What events call the place.
        url: Where it is.
        store: Where the host remembers.
    """

    def __init__(self, tier: str, url: str, store: Store) -> None:
        self._tier = tier
        self._url = url
        self._store = store
        self._breaker = Breaker(store, url)

    def judge(self, record: bytes, signatures: bytes) -> str:
        """
        Return why an entry is not accepted; see `jitgen.cache.trusted.Trusted.refusal`.

        Raises:
            LocalFailure: The trust document cannot be read: nothing is known against the entry.
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
        Return what `work` returns, or why there is nothing.

        Args:
            spec: The kernel that it is about.
            work: Asks the place; see `jitgen.remote.outcomes` for what it raises.
            cancel: Ends that from another thread.
            purpose: What it is asked for: what is no use asking for one may be for another.
            seconds: How long it may take.

        Raises:
            SettingError: What is fetched must be signed, and JITGEN_TRUST is not set.
            ToolchainError: A package that it needs is not installed.
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
            is_free = isinstance(error, NotFound) and spent < QUICK_S
            if not is_free and not isinstance(error, Rejected):  # that one had thought about it
                allowance.spend(spent)
            # It may hold words of the place's own, and ends on terminals and in logs.
            reason = printable(f"{self._url}: {error}")
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
        """Return what makes it needless to ask; None: nothing does."""
        for name in ((self._url, purpose), (self._url, purpose, spec.key)):
            if miss := negatives.find(name, trust):
                return miss
        if allowance.is_spent():
            return Miss(reason=f"{self._url}: enough time was lost to places that gave nothing")
        return None

    def _remember(
        self, spec: Wanted, purpose: str, error: RemoteError, miss: Miss, trust: str
    ) -> None:
        name = (self._url, purpose, spec.key)
        if isinstance(error, NotFound):
            negatives.remember(name, miss, NOT_FOUND_S)
        elif isinstance(error, (Untrusted, Corrupt)):
            if isinstance(error, Untrusted):
                negatives.remember(name, miss, UNTRUSTED_S, trust)
            else:
                negatives.remember(name, miss, CORRUPT_S)
            warn_once(f"reject {name}", "%s is not taken from %s", spec.name, miss.reason)
            self._emit(EventKind.REJECT, spec, miss.reason)
        elif isinstance(error, Rejected):
            negatives.remember(name, miss, error.seconds)
        elif isinstance(error, Busy):
            negatives.remember(name[:2], miss, error.seconds)
        elif isinstance(error, (Unauthorized, Unreachable)):
            if isinstance(error, Unauthorized):  # the host's other processes may have a good token
                negatives.remember(name[:2], miss, UNAUTHORIZED_S)
            warn_once(
                f"remote {self._url}",
                "%s; what that place may have is compiled here instead",
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
