# SPDX-License-Identifier: Apache-2.0
"""Status of the remote backends, and requests that find out whether they answer."""

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

_MOST_SAID = 400  # characters of a service's text


@frozen
class BackendStatus:
    """
    Status of one backend.

    Attributes:
        tier: ``remote`` or ``service``.
        url: Its URL.
        state: ``asked``; or that it is not asked now or is tried again next, and why.
    """

    tier: Annotated[str, one_of("remote", "service")]
    url: Url
    state: str


@frozen
class ProbeResult:
    """
    Answer of one backend.

    Attributes:
        tier: ``remote`` or ``service``.
        url: Its URL.
        has_it: Whether it has an entry that may be loaded.
        is_there: Whether it answered properly: with an entry, or that it has none.
        reason: Why it gave no entry; empty if it gave one.
        seconds: Time of the request.
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
    A compile service's statement about its signing key.

    Attributes:
        url: URL of the service.
        keyid: Name of the key; empty if it signs nothing, or does not say.
        unready: Why it should get no requests, by its own statement; empty if it should.
        reason: Why there is no statement; empty if there is one.
    """

    url: str
    keyid: str = ""
    unready: str = ""
    reason: str = ""


class _UnknownKernel(NamedTuple):
    """A kernel that does not exist, to ask a backend for."""

    key: str = "0" * 64
    name: str = "a kernel that does not exist"


def statuses(store: Store) -> list[BackendStatus]:
    """Return the status of the backends in the settings, without a request to any."""
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
    """Ask each backend for `wanted`, or for a kernel that does not exist; nothing is stored."""
    return [_probe(backend, wanted or _UnknownKernel()) for backend in backends(store)]


def _probe(backend: Remote | Service, wanted: Wanted) -> ProbeResult:
    start = time.perf_counter()
    found = backend.probe(wanted)
    miss = found if isinstance(found, Miss) else None
    return ProbeResult(
        tier=backend.name,
        url=backend.url,
        has_it=miss is None,
        is_there=miss is None or miss.is_not_found,
        reason=miss.reason if miss else "",
        seconds=time.perf_counter() - start,
    )


def signers(store: Store) -> list[Signer]:
    """Ask each compile service for its signing key."""
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
