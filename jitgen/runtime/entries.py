# SPDX-License-Identifier: Apache-2.0
"""Config to entry: fetch one from elsewhere, or compile one and publish it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.errors import CompileError, RememberedFailure
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime.spec import KernelSpec
from jitgen.runtime.tiers import Tiers, readable
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Entry, Meta
    from jitgen.compile.compile import Where
    from jitgen.compile.compiler import Artifact
    from jitgen.compile.workers import Stop

_WAIT_S = 0.01
"""A lock that nobody holds takes less: what took longer was waiting for another process."""


def fetch(tiers: Tiers, spec: KernelSpec) -> tuple[Entry, str] | str:
    """
    Return the entry of `spec` that somebody else has compiled, and its tier's name; else why there
    is none. One process of a host fetches a kernel while the others wait for it.

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
    Return the entry of `spec` and the tier that it is from: fetched from where somebody else has
    it, or compiled and published, unless another process does so meanwhile.

    Waits for the key's lock up to JITGEN_LOCK_TIMEOUT seconds and then compiles privately. A
    refusal of the compiler's that is certain is remembered for JITGEN_FAILURE_TTL seconds, so that
    a fleet does not try it over and over; what this machine is short of is nobody else's business.

    Args:
        tiers: Where it goes.
        spec: What to compile.
        where: Where to compile it; None for what JITGEN_COMPILE says.
        timeout_s: How long a process of its own may take; None for JITGEN_COMPILE_TIMEOUT.
        failure_ttl_s: How long a refusal is remembered; None for JITGEN_FAILURE_TTL.
        stop: What ends such a process from another thread.
        fetches: Whether places elsewhere are asked first.

    Raises:
        CompileError: The compiler refused it.
        RememberedFailure: It did so not long ago.
        ResourceError: Memory, processes, descriptors or disk ran out, or the time did.
        ToolchainError: The compiler is not installed.
    """
    from jitgen.compile import compile as compiling

    store, name = tiers.store, spec.key
    start = time.perf_counter()
    if failure := store.index.failure(name):
        raise RememberedFailure(
            spec.name,
            f"{failure.reason} (remembered from the last try; retry with: jitgen cache rm "
            f"{name[:12]})",
        )
    try:
        # what is told meanwhile is heard when the lock is free again
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
    events.emit(
        Event(
            kind=EventKind.COMPILE,
            kernel=entry.meta.name,
            key=entry.key,
            seconds=entry.meta.compile_s,
        )
    )
    return entry, "compiled"


def _tell_wait(spec: KernelSpec, seconds: float) -> None:
    if seconds >= _WAIT_S:
        events.emit(Event(kind=EventKind.QUEUE, kernel=spec.name, key=spec.key, seconds=seconds))


def record(spec: KernelSpec, artifact: Artifact) -> Meta:
    """Return what is known of `artifact`, but for its files and who built it."""
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
    """Return the entry of what was compiled, in the store unless there is a doubt about it."""
    from jitgen.compile.provenance import builder

    meta = record(spec, artifact)
    if artifact.doubt:
        warn_once(
            f"doubt {artifact.doubt}",
            "kernels compiled now serve this process only and are not kept: %s",
            artifact.doubt,
        )
        return _private(tiers, meta, artifact, artifact.doubt)
    if tiers.store.mode == "rw":
        try:
            meta = replace(meta, builder=builder(tiers.store.builders))
        except OSError as error:  # no descriptors left, say: another time it can be told
            return _private(tiers, meta, artifact, f"who built it? {error}")
    return tiers.put(meta, artifact.files)


def _private(tiers: Tiers, meta: Meta, artifact: Artifact, why: str) -> Entry:
    """Return the entry of what serves this process only."""
    from jitgen.cache import Entry

    entry = replace(Entry.of(meta, artifact.files), why_private=why)
    tiers.keep(entry)
    return entry
