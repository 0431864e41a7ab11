# SPDX-License-Identifier: Apache-2.0
"""
Makes a bundle from a store, with every kernel that its plans may need, and no others.

Which kernels a plan needs depends on the device and on measurements. The machine that imports the
bundle may have another device, and no measurements. So the bundle has the kernels that are chosen
with and without measurements, for each named device, or for all devices of the target. It records
the plans and devices, as a prewarmed store does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.bundle import image, layer
from jitgen.bundle.image import BundleError
from jitgen.cache import Entry, Store
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.plans.lock import missing_text, prewarm_command
from jitgen.plans.plan import Plan
from jitgen.plans.plan import configs as plan_configs
from jitgen.runtime.coverage import Coverage
from jitgen.runtime.spec import KernelSpec, spec_of
from jitgen.selection.choice import Chooser
from jitgen.selection.device import covered
from jitgen.support.documents import canonical_json
from jitgen.targets import devices as known
from jitgen.targets.legality import target

if TYPE_CHECKING:
    from jitgen.signing.keys import PrivateKey


class MissingKernels(BundleError):
    """
    Kernels of the plan are not in the store.

    Attributes:
        names: Names of the missing kernels.
    """

    def __init__(self, names: tuple[str, ...], advice: str) -> None:
        super().__init__(missing_text(names, "a bundle holds all or is none", advice))
        self.names = names


def wanted(
    asked: Iterable[Plan], archs: Iterable[Arch], store: Store, devices: Sequence[str] = ()
) -> tuple[KernelSpec, ...]:
    """
    Return the kernels that may be chosen for the plans `asked` on any of `devices`, each once.

    Args:
        asked: The plans.
        archs: Targets of the kernels.
        store: The store with the measurements of this machine.
        devices: Names of devices. For a target without any of these: JITGEN_DEVICE, otherwise all
            of its devices and that of this machine.

    Raises:
        UnsupportedConfig: A target has no kernel for something in a plan.
        ConfigError: There is no such device, or it belongs to none of `archs`.
    """
    targets, who = tuple(archs), Chooser(lambda: store)
    for name in devices:
        known.require(name, targets)
    found: dict[str, KernelSpec] = {}
    for plan in asked:
        for arch in targets:
            for config in plan_configs(plan, arch, who, devices=devices):
                spec = spec_of(config, arch)
                found[spec.key] = spec
    return tuple(sorted(found.values(), key=lambda spec: spec.name))


def export(
    asked: Sequence[Plan],
    archs: Sequence[Arch],
    path: Path,
    store: Store,
    *,
    devices: Sequence[str] = (),
    specs: Iterable[KernelSpec] | None = None,
    signer: PrivateKey | None = None,
    builder: str = "",
) -> image.Bundle:
    """
    Write the bundle of the plans `asked` to `path` atomically; returns the bundle, read back.

    Equal kernels and signatures give equal bytes; `signer` makes a new signature each time.

    Args:
        asked: The plans.
        archs: Targets of the kernels.
        path: The file; an existing one is replaced.
        store: The store with the kernels.
        devices: See `wanted`.
        specs: The kernels of a lock; None: those of `wanted`.
        signer: Key that adds a signature to each entry; None: no signature is added.
        builder: Name of the signer in the statements.

    Raises:
        MissingKernels: Some are not in the store. Nothing was written.
        BundleError: It would be too large, `path` cannot be written, or the signatures of a kernel
            cannot be read.
        SigningError: It cannot be signed.
    """
    found = wanted(asked, archs, store, devices) if specs is None else specs
    specs = sorted(found, key=lambda spec: spec.name)
    entries = [store.read(spec.key) for spec in specs]
    missing = [spec.name for spec, entry in zip(specs, entries, strict=True) if entry is None]
    if missing:
        raise MissingKernels(tuple(missing), prewarm_command(asked, archs, devices))
    for entry in entries:
        if entry is not None and entry.unread:
            raise BundleError(f"who signed {entry.meta.name} cannot be read: {entry.unread}")
    signed = [_signed(entry, signer, builder) for entry in entries if entry is not None]
    covering = {arch: covered(arch, devices) for arch in archs}
    notes = [Coverage.of(plan, arch, names) for plan in asked for arch, names in covering.items()]
    tar = layer.write(signed, [each for each in notes if each.arch.is_gpu])
    if len(tar) > image.MAX_BYTES:
        raise BundleError(
            f"the bundle would have {len(tar)} bytes unpacked, and {image.MAX_BYTES} are the most "
            "that are taken in; make one for each target"
        )
    annotations = _annotations(asked, archs, _named(covering), signed)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", asked[0].name)
    data = image.write(tar, annotations, toolchain.host(Arch.CPU), name)
    _replace(path, data)
    return image.load(path)


def _named(covering: Mapping[Arch, Sequence[str]]) -> tuple[str, ...]:
    """
    Return the names of the GPUs in `covering` that are in jitgen's own tables, without those that
    only this machine knows.
    """
    known_to = {arch: {each.name for each in target(arch).devices} for arch in covering}
    return tuple(
        dict.fromkeys(
            name
            for arch, names in covering.items()
            for name in names
            if arch.is_gpu and name in known_to[arch]
        )
    )


def _signed(entry: Entry, signer: PrivateKey | None, builder: str) -> Entry:
    """Return `entry` with a signature of `signer` added."""
    if signer is None:
        return entry
    from jitgen.signing import dsse
    from jitgen.signing.statement import PAYLOAD_TYPE, Statement

    statement = Statement.of(entry.meta.encode(), builder)
    envelope = dsse.seal(PAYLOAD_TYPE, statement.encode(), signer)
    return replace(entry, signatures=dsse.merged(entry.signatures, dsse.encode([envelope])))


def _annotations(
    asked: Sequence[Plan], archs: Sequence[Arch], devices: Sequence[str], entries: Sequence[Entry]
) -> dict[str, str]:
    names = ",".join(plan.name for plan in asked)
    return {
        image.TITLE: f"jitgen kernels of {names}",
        # Not the present time, so that equal kernels give equal bytes.
        image.CREATED: max(entry.meta.created for entry in entries),
        image.VERSION: entries[0].meta.jitgen,
        image.PLANS: names,
        image.ARCHS: ",".join(archs),
        image.DEVICES: ",".join(devices),
        image.KERNELS: str(len(entries)),
        image.KEYS: image.digest_of_keys([entry.key for entry in entries]),
        image.TOOLCHAIN: canonical_json(entries[0].meta.key_document.get("toolchain", {})),
    }


def _replace(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error.strerror or error}") from error
