# SPDX-License-Identifier: Apache-2.0
"""
Where compiled kernels are kept: tiers, asked one after the other.

A tier is one class with `get`, and `put` where it can be written; its name stands in events and
statistics. What it returns is verified, and what runs is the bytes that were checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from jitgen.events import Event, EventKind, events
from jitgen.runtime import kernel
from jitgen.runtime.spec import KernelSpec
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Entry, Meta, Store
    from jitgen.cache.lacking import Lack


class Tier(Protocol):
    """One place of compiled kernels. Safe to use from any thread."""

    name: str
    """What events and statistics call it."""

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the verified entry of `spec`; None where there is none. Never compiles."""
        ...

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry | None:
        """Keep a compiled kernel and return its entry; None where this tier is only read."""
        ...


class Memory:
    """What this process compiled and could not keep anywhere else: with ``cache=off``, say."""

    name = "memory"

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return what `keep` was given."""
        return self._entries.get(spec.key)

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry | None:  # noqa: ARG002
        """Return None: the disk is asked first, see `keep`."""
        return None

    def keep(self, entry: Entry) -> None:
        """Keep an entry that no other tier would."""
        self._entries[entry.key] = entry


class Disk:
    """The store: shared by the processes of a machine, or of a fleet."""

    name = "disk"

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the entry under the store's own root."""
        return self._store.read_own(spec.key)

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry:
        """Publish a kernel; `Entry.why_private` says why others will not find it, if so."""
        return self._store.publish(meta, files)


class Base:
    """The roots of JITGEN_BASE, first asked first: read, never written."""

    name = "base"

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, spec: KernelSpec) -> Entry | None:
        """Return the entry of the first root that has a good one in sight."""
        return self._store.read_bases(spec.key)

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> None:
        """Return None: nothing is written there."""


class Tiers:
    """
    The tiers of one session, in the order in which they are asked.

    Attributes:
        store: The store that the disk's tiers are over.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._memory = Memory()
        self._tiers: tuple[Tier, ...] = (self._memory, Disk(store), Base(store))

    def get(self, spec: KernelSpec) -> tuple[Entry, str] | str:
        """
        Return the first entry that this CPU can run and its tier's name; else why there is none.
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

    def told(self, spec: KernelSpec) -> list[Lack]:
        """Return what each place on this machine says of a kernel that none of them gave."""
        from jitgen.cache.lacking import Lack

        found = [Lack(place="memory", reason="not loaded")]
        for each in self.store.lacks(spec.key):
            reason = each.reason
            if each.entry is not None and not reason:
                reason = kernel.unsupported_isa(each.entry) or "there since just now"
            found.append(replace(each, reason=reason))
        return found

    def put(self, meta: Meta, files: Mapping[str, bytes]) -> Entry:
        """Keep a compiled kernel where the first tier keeps it, else in memory."""
        for tier in self._tiers:
            entry = tier.put(meta, files)
            if entry is not None:
                if entry.why_private:
                    self._memory.keep(entry)
                return entry
        raise AssertionError("the disk always gives an entry back")

    def keep(self, entry: Entry) -> None:
        """Keep an entry for this process alone."""
        self._memory.keep(entry)

    @property
    def has_elsewhere(self) -> bool:
        """Whether the settings name places to fetch from."""
        return bool(settings.remote or settings.service)

    def fetch(self, spec: KernelSpec, *, may_compile: bool) -> tuple[Entry, str] | str:
        """
        Return the entry of `spec` from the first place elsewhere that has one for this CPU, and its
        tier's name; else why there is none, in one line.

        It is in the store by then, or in memory where that cannot be written. This waits for
        networks: never call it while a CUDA graph is captured, nor where a kernel may be at hand.
        Nobody else is asked for a kernel that a person has edited.

        Args:
            spec: The kernel.
            may_compile: Whether a service is asked to compile it.

        Raises:
            SettingError: What is fetched must be signed, and JITGEN_TRUST is not set.
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
    Return the verified entry that this CPU can run, and its tier; None, and a miss is reported, if
    there is none.
    """
    found = tiers.get(spec)
    if not isinstance(found, str):
        return found
    if tells_miss:
        events.emit(Event(kind=EventKind.MISS, kernel=spec.name, key=spec.key, detail=found))
    return None
