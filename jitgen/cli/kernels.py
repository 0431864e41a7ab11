# SPDX-License-Identifier: Apache-2.0
"""Source, entry and key document of a kernel that the user named, for several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.cli.lookup import Named
from jitgen.cli.output import Output
from jitgen.errors import ConfigError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.codegen.render import Source


def source_of(store: Store, named: Named) -> Source:
    """
    Return the source of a kernel: that of the entry if a key was given, that of the file if one was
    given, otherwise the source that the templates render now.
    """
    from jitgen.codegen import render

    entry = store.read(named.key) if named.is_key else None
    text = named.text if entry is None else entry.source
    return render.source_of(named.config, named.arch, text)


def entry_of(store: Store, named: Named, output: Output) -> Entry:
    """
    Return the entry of a kernel; if the cache has none and the settings allow it, compile it.

    Raises:
        KernelMiss: The settings do not allow compiling.
        ConfigError: A key was given whose entry cannot be read and that is not made here.
    """
    entry = store.read(named.key)
    if entry is not None:
        return entry
    if named.is_key and named.spec.key != named.key:
        raise ConfigError(
            f"entry {named.key[:12]} cannot be read, and nothing here would compile to its key; "
            f"see: jitgen cache explain {named.key[:12]}"
        )
    from jitgen.runtime.tiers import Tiers, build

    spec = named.spec
    if settings.on_miss == "error":
        from jitgen.runtime.missing import miss

        raise miss(spec.config, spec.arch, spec, Tiers(store), "", "JITGEN_ON_MISS=error")

    output.note(f"compiling {named.title}")
    return build(Tiers(store), spec)[0]


def document_of(store: Store, named: Named) -> dict[str, object]:
    """
    Return the key document of a kernel: that of the entry if its key was given, otherwise that of
    the kernel compiled now.
    """
    entry = store.read(named.key) if named.is_key else None
    return named.spec.document if entry is None else entry.meta.key_document
