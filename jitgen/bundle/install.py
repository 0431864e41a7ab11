# SPDX-License-Identifier: Apache-2.0
"""
Imports a bundle: checks all of it, then publishes each kernel to a store.

As for all fetched kernels, contents are checked first, then signatures. No kernel is published
before all are checked. Each is published atomically, like a compiled one; if the process is killed,
the store only has fewer kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from jitgen.bundle.image import Bundle, BundleError
from jitgen.cache import Store
from jitgen.errors import CacheError
from jitgen.runtime import coverage, kernel
from jitgen.runtime.spec import KernelSpec
from jitgen.settings import settings
from jitgen.support.frozen import frozen

_SHOWN = 3


class Fate(StrEnum):
    """Whether a kernel of a bundle was imported, or present before."""

    IMPORTED = "imported"
    PRESENT = "present"


@frozen
class Installed:
    """
    A kernel of a bundle, after an import.

    Attributes:
        name: Its name.
        key: Its key.
        fate: Whether it was imported, or present before.
        note: Why this CPU cannot run it (another CPU with the same cache may); otherwise empty.
    """

    name: str
    key: str
    fate: Fate
    note: str


def refusals(bundle: Bundle, store: Store) -> dict[str, str]:
    """
    Return why kernels of a bundle must not be loaded, by key; JITGEN_VERIFY and JITGEN_TRUST
    decide, as for all fetched kernels.

    Raises:
        SettingError: Kernels must be signed, and JITGEN_TRUST is not set.
    """
    if settings.verify == "off":
        return {}
    found = {
        packed.meta.key: store.trusted.refusal(packed.record, packed.signatures)
        for packed in bundle.entries
    }
    return {key: reason for key, reason in found.items() if reason}


def missing(bundle: Bundle, wanted: Iterable[KernelSpec]) -> tuple[str, ...]:
    """Return the names of the kernels in `wanted` that a bundle does not hold."""
    held = {packed.meta.key for packed in bundle.entries}
    return tuple(spec.name for spec in wanted if spec.key not in held)


def install(bundle: Bundle, store: Store) -> tuple[Installed, ...]:
    """
    Publish every kernel of `bundle` to `store`, then record the plans that they cover; returns the
    kernels, sorted by name.

    Raises:
        BundleError: A kernel is not signed as JITGEN_VERIFY requires: none was published. Or the
            store could not keep one, for the reason in the message.
        CacheError: The store must not be written.
        SettingError: Kernels must be signed, and JITGEN_TRUST is not set.
    """
    if store.mode != "rw":
        raise CacheError(
            f"an import writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
        )
    if refused := refusals(bundle, store):
        names = {packed.meta.key: packed.meta.name for packed in bundle.entries}
        told = "; ".join(f"{names[key]}: {why}" for key, why in list(refused.items())[:_SHOWN])
        raise BundleError(
            f"{len(refused)} of {len(bundle.entries)} kernels are refused, and nothing was "
            f"imported: {told}; JITGEN_VERIFY=off takes unsigned kernels"
        )
    found: list[Installed] = []
    for packed in bundle.entries:
        is_there = store.read_own(packed.meta.key) is not None
        entry = store.publish(packed.meta, packed.files, packed.signatures, is_fetched=True)
        if entry.why_private:
            raise BundleError(
                f"{packed.meta.name} cannot be kept in {store.root}: {entry.why_private}; "
                f"{len(found)} kernels before it were"
            )
        if is_there and packed.signatures:
            store.add_signatures(packed.meta.key, packed.signatures)
        found.append(
            Installed(
                name=packed.meta.name,
                key=packed.meta.key,
                fate=Fate.PRESENT if is_there else Fate.IMPORTED,
                note=kernel.unsupported_isa(entry),
            )
        )
    for note in bundle.notes:
        coverage.keep(store, note)
    return tuple(sorted(found, key=lambda each: each.name))
