# SPDX-License-Identifier: Apache-2.0
"""Config to entry: read a usable one from the store, or compile and publish one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.errors import CompileError, RememberedFailure
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime import loader
from jitgen.runtime.key import document, key
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.compile.compile import Where
    from jitgen.compile.compiler import Artifact
    from jitgen.compile.workers import Stop


def readable(store: Store, config: Config, arch: Arch, *, tells_miss: bool = True) -> Entry | None:
    """Return the verified entry that this CPU can run; None, told as a miss, if there is none."""
    entry = store.read(key(config, arch))
    obstacle = "not in the cache" if entry is None else loader.unsupported_isa(entry)
    if not obstacle:
        return entry
    if tells_miss:
        name = config.name(arch)
        events.emit(Event(kind=EventKind.MISS, kernel=name, key=key(config, arch), detail=obstacle))
    return None


def build(
    store: Store,
    config: Config,
    arch: Arch,
    *,
    where: Where | None = None,
    timeout_s: float | None = None,
    failure_ttl_s: float | None = None,
    stop: Stop | None = None,
) -> Entry:
    """
    Compile `config` for `arch` and publish it, unless another process does so meanwhile.

    Waits for the key's lock up to JITGEN_LOCK_TIMEOUT seconds and then compiles privately. A
    refusal of the compiler's that is certain is remembered for JITGEN_FAILURE_TTL seconds, so that
    a fleet does not try it over and over; what this machine is short of is nobody else's business.

    Args:
        store: Where it goes.
        config: What to compile.
        arch: The target.
        where: Where to compile it; None for what JITGEN_COMPILE says.
        timeout_s: How long a process of its own may take; None for JITGEN_COMPILE_TIMEOUT.
        failure_ttl_s: How long a refusal is remembered; None for JITGEN_FAILURE_TTL.
        stop: What ends such a process from another thread.

    Raises:
        CompileError: The compiler refused it.
        RememberedFailure: It did so not long ago.
        ResourceError: Memory, processes, descriptors or disk ran out, or the time did.
        ToolchainError: The compiler is not installed.
    """
    from jitgen.compile import compile as compiling

    name = key(config, arch)
    if failure := store.index.failure(name):
        raise RememberedFailure(
            config.name(arch),
            f"{failure.reason} (remembered from the last try; retry with: jitgen cache rm "
            f"{name[:12]})",
        )
    try:
        with store.lock(name, settings.lock_timeout) as is_locked:
            if is_locked:
                entry = readable(store, config, arch, tells_miss=False)
                if entry is not None:
                    return entry
            artifact = compiling.compile_kernel(
                config,
                arch,
                where or compiling.usual(),
                timeout_s=settings.compile_timeout if timeout_s is None else timeout_s,
                stop=stop,
            )
            entry = _publish(store, config, arch, artifact)
    except CompileError as error:
        if error.is_certain:
            ttl_s = settings.failure_ttl if failure_ttl_s is None else failure_ttl_s
            store.index.remember_failure(name, config.name(arch), error.reason, ttl_s)
        raise
    events.emit(
        Event(
            kind=EventKind.COMPILE,
            kernel=entry.meta.name,
            key=entry.key,
            seconds=entry.meta.compile_s,
        )
    )
    return entry


def _publish(store: Store, config: Config, arch: Arch, artifact: Artifact) -> Entry:
    """Return the entry of what was compiled, in the store unless there is a doubt about it."""
    from jitgen.cache import Entry, Meta
    from jitgen.compile.provenance import builder

    meta = Meta(
        key=key(config, arch),
        key_document=document(config, arch),
        name=config.name(arch),
        arch=str(arch),
        config=config.to_json(),
        symbol=artifact.symbol,
        library=artifact.library,
        files={},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        compile_s=round(artifact.compile_s, 3),
        link_s=round(artifact.link_s, 3),
        host_isa=(toolchain.host_level(arch),),
        jitgen=__version__,
    )
    if artifact.doubt:
        warn_once(
            f"doubt {artifact.doubt}",
            "kernels compiled now serve this process only and are not kept: %s",
            artifact.doubt,
        )
        return replace(Entry.of(meta, artifact.files), why_private=artifact.doubt)
    if store.mode == "rw":
        try:
            meta = replace(meta, builder=builder(store.builders))
        except OSError as error:  # no descriptors left, say: another time it can be told
            return replace(Entry.of(meta, artifact.files), why_private=f"who built it? {error}")
    return store.publish(meta, artifact.files)
