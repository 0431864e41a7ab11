# SPDX-License-Identifier: Apache-2.0
"""Config to entry: read a usable one from the store, or compile and publish one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.build import toolchain
from jitgen.errors import CompileError, RememberedFailure
from jitgen.events import Event, EventKind, events
from jitgen.model import Arch, KernelConfig
from jitgen.runtime import loader
from jitgen.runtime.key import document, key
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.build.render import Source
    from jitgen.cache import Entry, Store


def readable(
    store: Store, config: KernelConfig, arch: Arch, *, tells_miss: bool = True
) -> Entry | None:
    """Return the verified entry that this CPU can run; None, told as a miss, if there is none."""
    entry, obstacle = _found(store, config, arch)
    if not obstacle:
        return entry
    if tells_miss:
        name = config.name(arch)
        events.emit(Event(kind=EventKind.MISS, kernel=name, key=key(config, arch), detail=obstacle))
    return None


def _found(store: Store, config: KernelConfig, arch: Arch) -> tuple[Entry | None, str]:
    """Return the verified entry, and why it cannot be used; an empty reason where it can."""
    entry = store.read(key(config, arch))
    return entry, "not in the cache" if entry is None else loader.unsupported_isa(entry)


def build(store: Store, config: KernelConfig, arch: Arch) -> Entry:
    """
    Compile `config` for `arch` and publish it, unless another process does so meanwhile.

    Waits for the key's lock up to JITGEN_LOCK_TIMEOUT seconds and then compiles privately. A
    failure is remembered for JITGEN_FAILURE_TTL seconds, so that a fleet does not try it over and
    over.

    Raises:
        CompileError: The compiler refused it.
        RememberedFailure: It did so not long ago.
    """
    name = key(config, arch)
    if failure := store.index.failure(name):
        raise RememberedFailure(
            config.name(arch),
            f"{failure.reason} (remembered from the last try; retry with: jitgen cache rm "
            f"{name[:12]})",
        )
    with store.lock(name, settings.lock_timeout) as is_locked:
        if is_locked:
            entry, obstacle = _found(store, config, arch)
            if not obstacle and entry is not None:
                return entry
            if entry is not None and toolchain.host_isa() < frozenset(entry.meta.host_isa):
                store.quarantine(name, obstacle)  # code for this lesser CPU serves the other too
        try:
            return _compile(store, config, arch)
        except CompileError as error:
            store.index.remember_failure(
                name, config.name(arch), error.reason, settings.failure_ttl
            )
            events.emit(
                Event(kind=EventKind.ERROR, kernel=error.kernel, key=name, detail=error.reason)
            )
            raise


def _compile(store: Store, config: KernelConfig, arch: Arch) -> Entry:
    from jitgen.build.render import render
    from jitgen.cache import Damaged

    source = render(config, arch)
    with store.workdir() as directory:
        try:
            return _publish(store, source, directory)
        except (OSError, Damaged) as error:  # the disk filled up or went away below the compiler
            store.warn_unwritable(error)
    with store.workdir(is_private=True) as directory:
        return _publish(store, source, directory)


def _publish(store: Store, source: Source, directory: Path) -> Entry:
    """Compile `source` in `directory`, a folder that the store gave, and publish what it left."""
    from jitgen.build.compiler import compile_source
    from jitgen.cache import Meta

    artifact = compile_source(source, directory)
    entry = store.publish(
        directory,
        Meta.describe(
            directory,
            key=key(source.config, source.arch),
            key_document=document(source.config, source.arch),
            name=source.name,
            arch=str(source.arch),
            config=source.config.to_json(),
            symbol=artifact.symbol,
            library=artifact.library,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            compile_s=round(artifact.compile_s, 3),
            link_s=round(artifact.link_s, 3),
            host_isa=tuple(sorted(toolchain.host_isa())),
            jitgen=__version__,
        ),
    )
    events.emit(
        Event(kind=EventKind.COMPILE, kernel=source.name, key=entry.key, seconds=artifact.compile_s)
    )
    return entry
