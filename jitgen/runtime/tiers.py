# SPDX-License-Identifier: Apache-2.0
"""
The places where compiled kernels are stored (tiers, which are searched in order), and how a kernel
gets there: fetched from another host, or compiled and published.

A tier is a class with `get` and `put`; events and statistics have its name. Entries are verified,
and exactly the checked bytes run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.errors import CompileError, RememberedFailure, ToolchainError
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime import kernel
from jitgen.runtime.spec import KernelSpec
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Entry, Meta, Store
    from jitgen.cache.absence import Absence
    from jitgen.compile.compile import Where
    from jitgen.compile.compiler import Artifact
    from jitgen.compile.workers import Stop


COMPILED = "compiled"
"""Tier of a kernel that this process has just compiled."""


class Tier(Protocol):
    """A place with compiled kernels. Safe to use from any thread."""

    name: str
    """Name of the tier in events and statistics."""

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the verified entry of `spec`, or None. Never compiles."""
        ...

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry | None:
        """Store a compiled kernel and return its entry; None if this tier is read-only."""
        ...


class Memory:
    """Kernels that this process compiled and could not publish, for example with ``cache=off``."""

    name = "memory"

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the entry of `spec` that `keep` stored; None if there is none."""
        return self._entries.get(spec.key)

    def put(self, _meta: Meta, _files: Mapping[str, bytes]) -> Entry | None:
        """Return None, because a kernel is stored on disk first; see `keep`."""
        return None

    def keep(self, entry: Entry) -> None:
        """Keep an entry that no other tier could store."""
        self._entries[entry.key] = entry


class Disk:
    """The store: shared by the processes of a machine, or of a fleet."""

    name = "disk"

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the entry under the store's own root, or None."""
        return self._store.read_own(spec.key)

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry:
        """Publish a kernel. If other processes will not find it, `Entry.why_private` says why."""
        return self._store.publish(meta, files)


class Base:
    """The roots of JITGEN_BASE, searched in order; they are read and never written."""

    name = "base"

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the entry of the first root with a good entry that is not hidden, or None."""
        return self._store.read_bases(spec.key)

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> None:
        """Do nothing: bases are never written."""


class Tiers:
    """
    The tiers of one session, in the order in which they are searched.

    Attributes:
        store: The store of the tiers on disk.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._memory = Memory()
        self._tiers: tuple[Tier, ...] = (self._memory, Disk(store), Base(store))

    def get(self, spec: KernelSpec) -> tuple[Entry, str] | str:
        """
        Return the first entry that this CPU can run, and the name of its tier; or the reason why
        there is none.
        """
        obstacle = "not in the cache"
        for tier in self._tiers:
            entry = tier.get(spec)
            if entry is not None:
                reason = kernel.unsupported_isa(entry)
                if not reason:
                    return entry, tier.name
                obstacle = reason
        return obstacle

    def absences(self, spec: KernelSpec) -> list[Absence]:
        """Return for each place on this machine why it does not have the kernel."""
        from jitgen.cache.absence import Absence

        found = [Absence(place="memory", reason="not loaded")]
        for each in self.store.absences(spec.key):
            reason = each.reason
            if each.entry is not None and not reason:
                reason = kernel.unsupported_isa(each.entry) or "there since just now"
            found.append(replace(each, reason=reason))
        return found

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry:
        """
        Store a compiled kernel in the first tier that accepts it; in memory, too, if other
        processes will not find it.
        """
        for tier in self._tiers:
            entry = tier.put(meta, files)
            if entry is not None:
                if entry.why_private:
                    self._memory.keep(entry)
                return entry
        raise AssertionError("the disk always gives an entry back")

    def keep(self, entry: Entry) -> None:
        """Keep an entry for this process only."""
        self._memory.keep(entry)

    @property
    def has_elsewhere(self) -> bool:
        """Whether the settings name remote caches or a service."""
        return bool(settings.remote or settings.service)

    def elsewhere(self, spec: KernelSpec) -> bool:
        """
        Return whether a remote cache or service has a good entry of `spec` for this CPU; stores
        nothing. Raises as `fetch`.
        """
        if not self.has_elsewhere or spec.is_edited:
            return False
        from jitgen.cache import Entry
        from jitgen.remote.outcomes import Miss
        from jitgen.remote.tiers import backends

        for backend in backends(self.store):
            found = backend.probe(spec)
            if not isinstance(found, Miss):
                entry = Entry.of(found.meta, found.files)
                return not kernel.unsupported_isa(entry)
        return False

    def fetch(self, spec: KernelSpec, *, may_compile: bool) -> tuple[Entry, str] | str:
        """
        Return the entry of `spec` from the first remote cache or service that has one for this CPU,
        and the name of its tier; or, in one line, the reason why there is none.

        The entry is written to the store; if that is not possible, it is kept in memory. This
        function waits for networks: never call it while a CUDA graph is captured, or before the
        tiers of this machine were searched. An edited kernel is never fetched.

        Args:
            spec: The kernel.
            may_compile: Whether a service is asked to compile it.

        Raises:
            SettingError: Fetched kernels must be signed, and JITGEN_TRUST is not set.
            ToolchainError: A package that fetching needs is not installed.
        """
        if not self.has_elsewhere or spec.is_edited:
            return ""
        from jitgen.remote.outcomes import Miss
        from jitgen.remote.tiers import backends

        reasons = []
        for backend in backends(self.store):
            found = backend.fetch(spec, may_compile=may_compile)
            if isinstance(found, Miss):
                reasons.append(found.reason)
                continue
            if found.why_private:
                self._memory.keep(found)
            reason = kernel.unsupported_isa(found)
            if not reason:
                return found, backend.name
            reasons.append(f"{backend.url}: {reason}")
        return "; ".join(reasons)


def readable(
    tiers: Tiers, spec: KernelSpec, *, tells_miss: bool = True
) -> tuple[Entry, str] | None:
    """
    Return the verified entry that this CPU can run, and its tier. If there is none, return None,
    and report a miss if `tells_miss` is set.
    """
    found = tiers.get(spec)
    if not isinstance(found, str):
        return found
    if tells_miss:
        events.emit(Event(kind=EventKind.MISS, kernel=spec.name, key=spec.key, detail=found))
    return None


_WAIT_S = 0.01
"""Seconds in which a free lock is acquired; if it takes longer, another process held the lock."""


def fetch(tiers: Tiers, spec: KernelSpec) -> tuple[Entry, str] | str:
    """
    Return the entry of `spec` from another process or host that compiled it, and the name of its
    tier; or the reason why there is none. One process of a host fetches a kernel while the others
    wait for it.

    Raises:
        As `Tiers.fetch`.
    """
    if not tiers.has_elsewhere:
        return ""
    with tiers.store.lock(spec.key, settings.lock_timeout) as is_locked:
        found = readable(tiers, spec, tells_miss=False) if is_locked else None
        return found or tiers.fetch(spec, may_compile=False)


def build(
    tiers: Tiers,
    spec: KernelSpec,
    *,
    where: Where | None = None,
    timeout_s: float | None = None,
    failure_ttl_s: float | None = None,
    stop: Stop | None = None,
    fetches: bool = True,
) -> tuple[Entry, str]:
    """
    Return the entry of `spec` and its tier: fetched from another host, or compiled and published,
    unless another process of this host publishes it meanwhile.

    Waits for the key's lock up to JITGEN_LOCK_TIMEOUT seconds and then compiles privately. A
    certain refusal of the compiler is remembered for JITGEN_FAILURE_TTL seconds, so that a fleet
    does not repeat it; failures for lack of a resource of this machine are not shared.

    Args:
        tiers: The tiers in which it is searched, and published.
        spec: The kernel to compile.
        where: Where to compile it; None for what JITGEN_COMPILE says.
        timeout_s: Time limit of a separate process; None for JITGEN_COMPILE_TIMEOUT.
        failure_ttl_s: How long a refusal is remembered; None for JITGEN_FAILURE_TTL.
        stop: Object by which another thread ends such a process.
        fetches: Whether other hosts are tried first.

    Raises:
        CompileError: The compiler refused it.
        RememberedFailure: The compiler refused it recently.
        ResourceError: Memory, processes, descriptors, disk or time ran out.
        ToolchainError: The compiler is not installed.
    """
    from jitgen.compile import compile as compiling

    store, name = tiers.store, spec.key
    if failure := store.index.failure(name):
        raise RememberedFailure(
            spec.name,
            f"{failure.reason} (remembered from the last try; retry with: jitgen cache rm "
            f"{name[:12]})",
        )
    start = time.perf_counter()
    try:
        # Events are delivered after the lock is released.
        with events.held(), store.lock(name, settings.lock_timeout) as is_locked:
            _tell_wait(spec, time.perf_counter() - start)
            if is_locked:
                found = readable(tiers, spec, tells_miss=False)
                if found is not None:
                    return found
            fetched = tiers.fetch(spec, may_compile=True) if fetches else ""
            if not isinstance(fetched, str):
                return fetched
            artifact = compiling.compile_kernel(
                spec.config,
                spec.arch,
                where or compiling.usual(),
                timeout_s=settings.compile_timeout if timeout_s is None else timeout_s,
                stop=stop,
                text=spec.text,
            )
            entry = _publish(tiers, spec, artifact)
    except CompileError as error:
        if error.is_certain:
            ttl_s = settings.failure_ttl if failure_ttl_s is None else failure_ttl_s
            store.index.remember_failure(name, spec.name, error.reason, ttl_s)
        raise
    except ToolchainError as error:  # of a machine that only runs kernels, for example
        raise ToolchainError(f"{spec.name}: {error}") from error
    events.emit(
        Event(
            kind=EventKind.COMPILE,
            kernel=entry.meta.name,
            key=entry.key,
            seconds=entry.meta.compile_s,
        )
    )
    return entry, COMPILED


def _tell_wait(spec: KernelSpec, seconds: float) -> None:
    if seconds >= _WAIT_S:
        events.emit(Event(kind=EventKind.QUEUE, kernel=spec.name, key=spec.key, seconds=seconds))


def record(spec: KernelSpec, artifact: Artifact) -> Meta:
    """Return the record of `artifact`, without its files and its builder."""
    from jitgen.cache import Meta

    return Meta(
        key=spec.key,
        key_document=spec.document,
        name=spec.name,
        arch=str(spec.arch),
        config=spec.config.to_json(),
        symbol=artifact.symbol,
        library=artifact.library,
        files={},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        compile_s=round(artifact.compile_s, 3),
        link_s=round(artifact.link_s, 3),
        host_isa=(toolchain.host_level(spec.arch),),
        jitgen=__version__,
    )


def _publish(tiers: Tiers, spec: KernelSpec, artifact: Artifact) -> Entry:
    """Publish `artifact` and return its entry; one with `why_private` serves only this process."""
    from jitgen.compile.provenance import builder

    meta = record(spec, artifact)
    if artifact.why_private:
        warn_once(
            f"private {artifact.why_private}",
            "kernels compiled now serve this process only and are not kept: %s",
            artifact.why_private,
        )
        return _private(tiers, meta, artifact, artifact.why_private)
    if tiers.store.mode == "rw":
        try:
            meta = replace(meta, builder=builder(tiers.store.builders))
        except OSError as error:  # no descriptors left, for example; it may work later
            return _private(tiers, meta, artifact, f"who built it? {error}")
    return tiers.put(meta, artifact.files)


def _private(tiers: Tiers, meta: Meta, artifact: Artifact, why: str) -> Entry:
    """Keep a kernel in memory, for this process only; return its entry, which says `why`."""
    from jitgen.cache import Entry

    entry = replace(Entry.of(meta, artifact.files), why_private=why)
    tiers.keep(entry)
    return entry
