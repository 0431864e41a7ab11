# SPDX-License-Identifier: Apache-2.0
"""What is to be said of the places elsewhere: how they stand, and whether they answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

from jitgen.cache.entry import is_key
from jitgen.remote.breaker import Breaker
from jitgen.remote.outcomes import Miss
from jitgen.remote.tiers import Remote, Service, backends
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.remote.request_policy import Wanted
    from jitgen.support.codec import one_of
    from jitgen.support.vocabulary import Reason, Seconds, Url

_MOST_SAID = 400  # characters of what a service says


@frozen
class BackendStatus:
    """
    How one place stands.

    Attributes:
        tier: ``remote`` or ``service``.
        url: Where it is.
        state: What is known of it: that it is asked, or why it is not.
    """

    tier: Annotated[str, one_of("remote", "service")]
    url: Url
    state: str


@frozen
class ProbeResult:
    """
    What a place said.

    Attributes:
        tier: ``remote`` or ``service``.
        url: Where it is.
        has_it: Whether it has an entry that may be loaded.
        is_there: Whether it answered as it should, with an entry or that it has none.
        reason: Why there is none; empty where there is.
        seconds: How long it took.
    """

    tier: Annotated[str, one_of("remote", "service")]
    url: Url
    has_it: bool
    is_there: bool
    reason: Reason
    seconds: Seconds


@frozen
class Signer:
    """
    What a compile service says of the key that it signs with.

    Attributes:
        url: Where the service is.
        keyid: Name of the key; empty where it signs nothing, or does not say.
        unready: Why it should be given no requests, as it says; empty where it should.
        reason: Why it says nothing of all this; empty where it does.
    """

    url: str
    keyid: str = ""
    unready: str = ""
    reason: str = ""


class _UnknownKernel(NamedTuple):
    """A kernel that nobody has compiled."""

    key: str = "0" * 64
    name: str = "a kernel that nobody has"


def statuses(store: Store) -> list[BackendStatus]:
    """Return how the places of the settings stand, without asking any."""
    found = []
    for backend in backends(store):
        state = Breaker(store, backend.url).state()
        text = "asked"
        if state is not None:
            text = f"not asked for {state.left_s:.0f} s" if state.left_s else "tried again next"
            text = f"{text}: {state.reason}"
        found.append(BackendStatus(tier=backend.name, url=backend.url, state=text))
    return found


def probe_all(store: Store, wanted: Wanted | None = None) -> list[ProbeResult]:
    """Ask every place for a kernel, or for one that nobody has; nothing is kept."""
    return [_probe(backend, wanted or _UnknownKernel()) for backend in backends(store)]


def _probe(backend: Remote | Service, wanted: Wanted) -> ProbeResult:
    start = time.perf_counter()
    said = backend.probe(wanted)
    is_nothing = isinstance(said, Miss)
    return ProbeResult(
        tier=backend.name,
        url=backend.url,
        has_it=not is_nothing,
        is_there=not isinstance(said, Miss) or said.is_not_found,
        reason=said.reason if isinstance(said, Miss) else "",
        seconds=time.perf_counter() - start,
    )


def signers(store: Store) -> list[Signer]:
    """Ask every compile service with which key it signs."""
    return [_signer(backend) for backend in backends(store) if isinstance(backend, Service)]


def _signer(backend: Service) -> Signer:
    said = backend.describe(_UnknownKernel())
    if isinstance(said, Miss):
        return Signer(url=backend.url, reason=said.reason)
    signing, unready = said.get("signing"), said.get("unready")
    keyid = signing.get("keyid") if isinstance(signing, dict) else None
    return Signer(
        url=backend.url,
        keyid=str(keyid) if is_key(keyid) else "",
        unready=printable(unready)[:_MOST_SAID] if isinstance(unready, str) else "",
    )
