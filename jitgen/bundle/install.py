# SPDX-License-Identifier: Apache-2.0
"""
Take a bundle in: check all of it, then publish each kernel to a store.

The order is that of everything that comes from elsewhere: what it is, who vouches for it, then the
store. Until the last kernel was checked none is published, and each is published as if it had been
compiled, in one step. A process that is killed between two leaves a store with fewer kernels.
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
    """What became of a kernel of a bundle."""

    IMPORTED = "imported"
    PRESENT = "present"


@frozen
class Installed:
    """
    A kernel that was taken in.

    Attributes:
        name: Its name.
        key: Its key.
        fate: Whether it came, or was there.
        note: Why this CPU cannot run it, though another one that shares the cache may; else empty.
    """

    name: str
    key: str
    fate: Fate
    note: str


def refusals(bundle: Bundle, store: Store) -> dict[str, str]:
    """
    Return why kernels of a bundle are not to be loaded, by key: JITGEN_VERIFY and JITGEN_TRUST
    decide, as of whatever comes from elsewhere.

    Raises:
        SettingError: They must be signed, and JITGEN_TRUST does not say by whom.
    """
    if settings.verify == "off":
        return {}
    found = {
        packed.meta.key: store.trusted.refusal(packed.record, packed.signatures)
        for packed in bundle.entries
    }
    return {key: reason for key, reason in found.items() if reason}


def missing(bundle: Bundle, wanted: Iterable[KernelSpec]) -> tuple[str, ...]:
    """Return the names of those of `wanted` that a bundle does not hold."""
    held = {packed.meta.key for packed in bundle.entries}
    return tuple(spec.name for spec in wanted if spec.key not in held)


def install(bundle: Bundle, store: Store) -> tuple[Installed, ...]:
    """
    Publish every kernel of `bundle` to `store`, and then note which plans they are of; returns what
    became of each, by name.

    Raises:
        BundleError: One of them is not signed as JITGEN_VERIFY wants it: none was published. Or the
            store did not keep one: it says why.
        CacheError: The store may not be written.
        SettingError: See `refusals`.
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
            f"imported: {told}; JITGEN_VERIFY=off takes what anybody made"
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
