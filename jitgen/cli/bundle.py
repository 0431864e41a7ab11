# SPDX-License-Identifier: Apache-2.0
"""``jitgen bundle``: all kernels of plans in one file, which can be copied, pushed or mounted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cli.lazy import LazyGroup
from jitgen.cli.lock import LOCKED, read_lock
from jitgen.cli.lookup import KernelId
from jitgen.cli.options import ARCHS, DEVICES, with_output
from jitgen.cli.output import ExitCode, Output, counted, human_size, human_time
from jitgen.cli.paths import PRIVATE_KEY, TO_WRITE
from jitgen.cli.signing import warn_of_key
from jitgen.config import Arch
from jitgen.errors import ConfigError, PlanError, ToolchainError
from jitgen.plans.plan import Plan
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.support import vocabulary as v
from jitgen.support.codec import inline, like
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import target as target_of

if TYPE_CHECKING:
    from jitgen.bundle.image import Bundle
    from jitgen.cache import Store
    from jitgen.runtime.locked import Difference
    from jitgen.runtime.spec import KernelSpec
    from jitgen.signing.keys import PrivateKey

_HERE = "jitgen.cli.bundle"
_COMMANDS = {
    "export": (f"{_HERE}:export", "Write a bundle of every kernel that plans can ask for."),
    "import": (f"{_HERE}:import_", "Take a bundle into the cache."),
    "inspect": (f"{_HERE}:inspect", "Say what a bundle holds, and who signed it."),
    "verify": (f"{_HERE}:verify", "Check a bundle: bytes, signatures, whether it is complete."),
}

_FILE = click.Path(exists=True, path_type=Path)


@frozen
class _Packed(KernelId):
    """A kernel of a bundle, and the keys of its signatures, valid or not."""

    bytes: v.Bytes
    signed_by: Sequence[v.KeyId]


@frozen
class _Content:
    """JSON form of the contents of a bundle."""

    digest: str
    layer_bytes: v.Bytes
    annotations: Mapping[str, str]
    kernels: Sequence[_Packed]


@frozen
class _Exported:
    ok: v.Ok
    wall_s: v.Seconds
    bytes: v.Bytes
    content: _Content = inline()


@frozen
class _Incomplete:
    """JSON document of an export that fails because kernels are missing in the cache."""

    ok: v.Ok
    missing: Sequence[v.Name]


@frozen
class _Taken:
    """JSON form of one kernel of an imported bundle, and of what became of it."""

    name: v.Name
    key: v.Key
    state: str
    reason: v.Reason


@frozen
class _Imported:
    ok: v.Ok
    wall_s: v.Seconds
    digest: str
    kernels: Sequence[_Taken]


@frozen
class _Inspected:
    ok: v.Ok
    content: _Content = inline()


@frozen
class _Verified:
    ok: v.Ok
    digest: str
    refused: Annotated[Mapping[str, v.Reason], v.by("key")]
    missing: Sequence[v.Name]
    kernels: v.Count


@click.group(cls=LazyGroup, commands_at=_COMMANDS)
def bundle() -> None:
    """Copy kernels in one file, which is also an OCI image."""


@click.command(epilog=f"Shipped plans: {', '.join(plan_names())}.")
@click.argument("names", metavar="[PLAN]...", nargs=-1)
@click.option("--arch", "archs", type=ARCHS, help="Targets of the plans: A,B.")
@DEVICES
@LOCKED
@click.option("--output", "-o", "path", type=TO_WRITE, required=True, help="The file to write.")
@click.option(
    "--sign", "key", type=PRIVATE_KEY, help="Sign each kernel with the private key in this file."
)
@click.option("--builder", default="", help="Name of the builder, for --sign.")
@with_output
def export(
    output: Output,
    /,
    names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    lock_file: Path | None,
    path: Path,
    key: Path | None,
    builder: str,
) -> int:
    """
    Write every kernel that the selector can choose for plans to one file, and no others.

    The kernels must be in the cache; `jitgen prewarm` compiles them. If one is missing, nothing is
    written, and the exit code is 3. --locked takes plans, targets, devices and kernels from a lock.
    """
    from jitgen.bundle import export as exporting
    from jitgen.cache import Store

    if lock_file is None and not names:
        raise click.UsageError(f"name a plan ({', '.join(plan_names())}) or a lock with --locked")
    if lock_file is not None and (archs or devices):
        raise click.UsageError("--locked takes targets and devices from the lock alone")
    store, signer = Store.open(), _signer(key, builder)
    if signer is not None:
        warn_of_key(output, signer.keyid, store)
    start = time.perf_counter()
    specs = None
    if lock_file is None:
        asked = [load_plan(name) for name in names]
    else:
        asked, archs, devices, specs = _locked(lock_file, store, names)
    try:
        made = exporting.export(
            asked,
            archs or (default_arch(),),
            path,
            store,
            devices=devices,
            specs=specs,
            signer=signer,
            builder=builder,
        )
    except exporting.MissingKernels as error:
        rows = [("would compile", name) for name in error.names]
        document = _Incomplete(ok=False, missing=error.names)
        columns = ["STATE", "NAME"]
        output.report("bundle export", document, lambda: output.table(columns, rows))
        output.error(type(error).__name__, str(error))
        return ExitCode.WOULD_COMPILE
    wall_s = time.perf_counter() - start
    size = path.stat().st_size
    exported = _Exported(ok=True, wall_s=wall_s, bytes=size, content=_content(made))

    def human() -> None:
        output.line(f"{made.digest}  {path}")
        output.note(
            f"{counted(len(made.entries), 'kernel')} in {human_size(size)}, {human_time(wall_s)}"
        )

    output.report("bundle export", exported, human)
    return ExitCode.OK


@click.command("import")
@click.argument("path", type=_FILE)
@with_output
def import_(output: Output, path: Path) -> int:
    """
    Check a whole bundle, then publish its kernels to the cache; needs neither compiler nor network.

    JITGEN_VERIFY and JITGEN_TRUST say which keys must have signed the kernels. If one kernel is
    refused, none is imported.
    """
    from jitgen.bundle import image, install
    from jitgen.cache import Store

    start = time.perf_counter()
    loaded = image.load(path)
    rows = install.install(loaded, Store.open())
    wall_s = time.perf_counter() - start
    document = _Imported(
        ok=True,
        wall_s=wall_s,
        digest=loaded.digest,
        kernels=[like(_Taken, row, state=row.fate, reason=row.note) for row in rows],
    )

    def human() -> None:
        output.table(["STATE", "NAME"], [(str(row.fate), row.name) for row in rows])
        for row in rows:
            if row.note:
                output.warn(f"{row.name}: {row.note}")
        output.note(f"{counted(len(rows), 'kernel')} in {human_time(wall_s)}")

    output.report("bundle import", document, human)
    return ExitCode.OK


@click.command()
@click.argument("path", type=_FILE)
@with_output
def inspect(output: Output, path: Path) -> int:
    """List the contents and the signers of a bundle; digests are checked, signatures are not."""
    from jitgen.bundle import image

    loaded = image.load(path)

    def human() -> None:
        output.fields([("digest", loaded.digest), *sorted(loaded.annotations.items())])
        output.line()
        columns = ["KEY", ">SIZE", "SIGNED BY", "NAME"]
        output.table(
            columns,
            [
                (
                    packed.meta.key[:12],
                    output.size(packed.meta.size_bytes),
                    ",".join(keyid[:12] for keyid in _keyids(packed.signatures)) or "no key",
                    packed.meta.name,
                )
                for packed in loaded.entries
            ],
        )

    output.report("bundle inspect", _Inspected(ok=True, content=_content(loaded)), human)
    return ExitCode.OK


@click.command()
@click.argument("path", type=_FILE)
@click.option(
    "--plan",
    "names",
    metavar="PLAN",
    multiple=True,
    help="Plans to check; default: those of the bundle.",
)
@with_output
def verify(output: Output, path: Path, names: tuple[str, ...]) -> int:
    """
    Check a bundle without changing anything: every byte, the signatures, and whether it has all
    kernels of its plan.

    The exit code is 1 if a kernel is refused, or if this installation would choose a kernel for the
    plan that is not in the bundle.
    """
    from jitgen.bundle import image, install
    from jitgen.bundle.export import wanted
    from jitgen.cache import Store

    loaded, store = image.load(path), Store.open()
    refused = install.refusals(loaded, store)
    missing = install.missing(
        loaded,
        wanted(_plans(loaded, names), _archs(loaded), store, _words(loaded, image.DEVICES)),
    )
    document = _Verified(
        ok=not refused and not missing,
        digest=loaded.digest,
        refused=refused,
        missing=missing,
        kernels=len(loaded.entries),
    )

    def human() -> None:
        rows = [
            (f"refused: {refused[packed.meta.key]}", packed.meta.name)
            for packed in loaded.entries
            if packed.meta.key in refused
        ]
        rows += [("missing", name) for name in missing]
        if rows:
            output.table(["STATE", "NAME"], rows)
        state = "complete" if document.ok else "not to be used here"
        output.note(f"{counted(len(loaded.entries), 'kernel')}: every digest is right; {state}")
        if missing:
            here = json.dumps(_toolchain(), sort_keys=True, separators=(",", ":"))
            there = loaded.annotations.get(image.TOOLCHAIN)
            if there != here:
                output.note(f"compiled with {there}, here is {here}")

    output.report("bundle verify", document, human)
    return ExitCode.OK if document.ok else ExitCode.FAILED


def _locked(
    path: Path, store: Store, names: Sequence[str]
) -> tuple[list[Plan], tuple[Arch, ...], tuple[str, ...], list[KernelSpec]]:
    """
    Return the plans, targets, devices and kernels of a lock, after checking that this machine
    agrees with it.

    Raises:
        LockError: This machine differs from the lock, or a kernel is missing or has other bytes.
    """
    from jitgen.plans.lock import plans_of
    from jitgen.runtime.locked import kernel_differences, require, specs

    lock = read_lock(path, store, names)
    found: dict[str, KernelSpec] = {}
    told: list[Difference] = []
    for target in lock.targets:
        mine = specs(target)
        found |= {spec.key: spec for spec in mine.values()}
        told += kernel_differences(target, path, store, mine)
    require(told, path)
    known = {device.name for each in lock.targets for device in target_of(each.arch).devices}
    devices = tuple(name for each in lock.targets for name in each.devices if name in known)
    return (
        plans_of(lock),
        tuple(Arch.parse(t.arch) for t in lock.targets),
        devices,
        [*found.values()],
    )


def _content(loaded: Bundle) -> _Content:
    kernels = [
        like(
            _Packed,
            packed.meta,
            bytes=packed.meta.size_bytes,
            signed_by=_keyids(packed.signatures),
        )
        for packed in loaded.entries
    ]
    return like(_Content, loaded, kernels=kernels)


def _keyids(signatures: bytes) -> list[str]:
    """Return the keyids of all signatures, valid or not."""
    from jitgen.signing import dsse

    envelopes = dsse.decode(signatures)
    return sorted({one.keyid for envelope in envelopes for one in envelope.signatures})


def _signer(key: Path | None, builder: str) -> PrivateKey | None:
    if (key is None) != (not builder):
        raise click.UsageError("--sign and --builder go together: give both, or none of them")
    if key is None:
        return None
    from jitgen.signing.keys import PrivateKey

    return PrivateKey.load(key)


def _plans(loaded: Bundle, names: tuple[str, ...]) -> list[Plan]:
    from jitgen.bundle import image

    if names:
        return [load_plan(name) for name in names]
    try:
        return [load_plan(name) for name in _words(loaded, image.PLANS)]
    except PlanError as error:
        raise click.UsageError(
            f"the bundle is of plans that are not shipped; name their files with --plan ({error})"
        ) from error


def _archs(loaded: Bundle) -> list[Arch]:
    from jitgen.bundle import image

    try:
        return [Arch.parse(name) for name in _words(loaded, image.ARCHS)]
    except ConfigError as error:
        raise image.BundleError(f"the bundle is for a target that is not known: {error}") from error


def _words(loaded: Bundle, annotation: str) -> tuple[str, ...]:
    return tuple(filter(None, loaded.annotations.get(annotation, "").split(",")))


def _toolchain() -> dict[str, str]:
    from jitgen.compile import toolchain

    try:
        return toolchain.versions()
    except ToolchainError:
        return {}
