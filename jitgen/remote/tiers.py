# SPDX-License-Identifier: Apache-2.0
"""
The remote tiers: caches of a fleet, and the compile service.

A fetched entry is checked: record, signatures, revocations and every digest, in that order. Then it
is published to the own root, and loaded from the checked bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jitgen.remote import layout
from jitgen.remote.files import Files
from jitgen.remote.outcomes import Miss
from jitgen.remote.refresh import refresh
from jitgen.remote.request_policy import RequestPolicy, Wanted
from jitgen.settings import settings
from jitgen.signing.trust import MAX_BYTES

if TYPE_CHECKING:
    from jitgen.cache import Entry, Meta, Store
    from jitgen.remote.http import Server
    from jitgen.remote.objects import Objects
    from jitgen.remote.wire import Packed
    from jitgen.runtime.spec import KernelSpec


class _Backend:
    """
    The common part of `Remote` and `Service`.

    Attributes:
        name: Its name in events and statistics.
        url: Its URL.
    """

    name = ""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self._store = store
        self._policy = RequestPolicy(self.name, url, store)

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the verified entry of `spec`, without a compile; None if there is none."""
        found = self.fetch(spec, may_compile=False)
        return None if isinstance(found, Miss) else found

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> None:
        """Do nothing: commands write to remotes, and a service stores what it compiles."""

    def fetch(self, spec: KernelSpec, *, may_compile: bool) -> Entry | Miss:
        """Fetch the entry of `spec`, or return a miss: see `Remote` and `Service`."""
        raise NotImplementedError


class Remote(_Backend):
    """One backend of JITGEN_REMOTE: read here, written by ``jitgen cache push``."""

    name = "remote"

    def fetch(self, spec: KernelSpec, *, may_compile: bool = False) -> Entry | Miss:  # noqa: ARG002
        """
        Fetch the entry of `spec`, verify it and publish it to the own root; else return a miss.

        Raises:
            SettingError: Fetched kernels must be signed, and JITGEN_TRUST is not set.
            ToolchainError: A required package is not installed.
        """
        found = self.probe(spec)
        return found if isinstance(found, Miss) else publish(self._store, found)

    def probe(self, spec: Wanted) -> Packed | Miss:
        """Return the verified entry of `spec` without storing it; raises as `fetch`."""
        if self.url.startswith("http"):
            from jitgen.remote.http import WebObjects

            session = _server(self.url).session()
            return self._policy.ask(
                spec, lambda: self._fetched(WebObjects(session), spec), session.cancel
            )
        backend = _opened(self.url)
        return self._policy.ask(spec, lambda: self._fetched(backend, spec), backend.cancel)

    def _fetched(self, backend: layout.Readable, spec: Wanted) -> Packed:
        refresh(self._store, self.url, lambda: backend.read(layout.TRUST_PATH, MAX_BYTES))
        return layout.fetch(backend, spec.key, self._policy.judge)


class Service(_Backend):
    """The compile service of JITGEN_SERVICE: hands out entries, and compiles missing ones."""

    name = "service"

    def fetch(self, spec: KernelSpec, *, may_compile: bool = True) -> Entry | Miss:
        """
        Fetch the entry of `spec`, verify it and publish it to the own root; else return a miss.

        Args:
            spec: The kernel.
            may_compile: Whether to ask the service to compile it, and wait.

        Raises:
            As `Remote.fetch`.
        """
        from jitgen.remote.service import Compiling

        found = self.probe(spec)
        if isinstance(found, Miss) and found.is_not_found and may_compile:
            found = Compiling(_server(self.url), spec, self._policy, self._store).compiled()
        return found if isinstance(found, Miss) else publish(self._store, found)

    def probe(self, spec: Wanted) -> Packed | Miss:
        """Return the verified entry of `spec` without storing it; raises as `fetch`."""
        from jitgen.remote.service import Fetching

        return Fetching(_server(self.url), spec.key, self._policy, self._store).fetched(spec)

    def describe(self, wanted: Wanted) -> dict[str, object] | Miss:
        """Return the service's ``/v1/info``, or a miss; raises as `fetch`."""
        from jitgen.remote.service import Fetching

        return Fetching(_server(self.url), wanted.key, self._policy, self._store).described(wanted)


def publish(store: Store, packed: Packed) -> Entry:
    """Publish a fetched entry to `store`, if that is possible, and return it."""
    return store.publish(packed.meta, packed.files, packed.signatures, is_fetched=True)


def backends(store: Store) -> list[Remote | Service]:
    """Return the backends of the settings, in the order in which they are asked."""
    found: list[Remote | Service] = [Remote(url, store) for url in settings.remote]
    return [*found, Service(settings.service, store)] if settings.service else found


_servers: dict[str, Server] = {}
_objects: dict[tuple[str, int], Objects] = {}


def _server(url: str) -> Server:
    from jitgen.remote.http import Server

    return _servers.get(url) or _servers.setdefault(url, Server(url))


def _opened(url: str) -> Objects | Files:
    """Return the folder or object store at `url`; each forked child opens its own."""
    if url.startswith("file:"):
        return Files(url)
    from jitgen.remote.objects import Objects

    name = (url, os.getpid())
    return _objects.get(name) or _objects.setdefault(name, Objects(url))


def close() -> None:
    """Close idle connections."""
    while _servers:
        _servers.popitem()[1].close()
    _objects.clear()
