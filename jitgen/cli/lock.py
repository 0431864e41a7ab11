# SPDX-License-Identifier: Apache-2.0
"""
``jitgen lock``: write down which kernels a service will run, so that each host can check that it
agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jitgen.cli.options import ARCHS, DEVICES, with_output
from jitgen.cli.output import ExitCode, Output, counted
from jitgen.cli.paths import TO_WRITE, ToRead, write_text
from jitgen.config import Arch
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.runtime.lock import Lock
    from jitgen.runtime.locked import Difference

LOCKED = click.option(
    "--locked",
    "lock_file",
    metavar="FILE",
    type=ToRead("jitgen lock makes one"),
    help="Take exactly the kernels of a lock; fail where this machine differs from it.",
)


@frozen
class _Locked:
    """JSON document of ``jitgen lock`` if it wrote a lock."""

    ok: v.Ok
    file: v.File
    digest: str
    plans: Sequence[str]
    archs: Sequence[v.ArchName]
    devices: Sequence[str]
    kernels: v.Count


@frozen
class _Unlocked:
    """JSON document of ``jitgen lock`` if kernels are missing in the cache."""

    ok: v.Ok
    missing: Sequence[v.Name]


@click.command(epilog=f"Shipped plans: {', '.join(plan_names())}.")
@click.argument("names", metavar="PLAN...", nargs=-1, required=True)
@click.option("--arch", "archs", type=ARCHS, help="Targets of the plans: A,B.")
@DEVICES
@click.option(
    "--output",
    "-o",
    "path",
    type=TO_WRITE,
    default=Path("jitgen.lock"),
    show_default=True,
    help="The file to write.",
)
@with_output
def lock(
    output: Output,
    /,
    names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    path: Path,
) -> int:
    """
    Write a lock: the kernels that plans launch, for each bucket and device, with their keys and
    digests, the versions of the toolchain, and digests of the tables that choose kernels.

    Hosts check before they serve that they agree with the file: by `jitgen prewarm --locked`,
    `jitgen bundle export --locked`, `store.lock` of `jitgen serve`, and `jitgen.freeze(lock=...)`.
    The kernels must be in the cache; if one is missing, nothing is written, and the exit code is 3.
    """
    from jitgen.cache import Store
    from jitgen.cli.prewarm import plan_archs
    from jitgen.plans.lock import MissingKernels, locked

    plans = [load_plan(name) for name in names]
    targets = plan_archs(archs, devices) or (default_arch(),)
    try:
        made = locked(plans, targets, Store.open(), devices)
    except MissingKernels as error:
        rows = [("would compile", name) for name in error.names]
        document = _Unlocked(ok=False, missing=error.names)
        output.report("lock", document, lambda: output.table(["STATE", "NAME"], rows))
        output.error(type(error).__name__, str(error))
        return ExitCode.WOULD_COMPILE
    write_text(path, made.encode().decode("ascii"))
    done = _Locked(
        ok=True,
        file=path,
        digest=made.digest,
        plans=[plan.name for plan in plans],
        archs=list(map(str, targets)),
        devices=list(dict.fromkeys(name for each in made.targets for name in each.devices)),
        kernels=sum(len(each.kernels) for each in made.targets),
    )

    def human() -> None:
        output.line(f"{made.digest}  {path}")
        output.note(f"{counted(done.kernels, 'kernel')} for {', '.join(done.devices)}")

    output.report("lock", done, human)
    return ExitCode.OK


def read_lock(path: Path, store: Store, names: Sequence[str]) -> Lock:
    """
    Return the lock in `path`, after checking that this machine chooses the same kernels with the
    same keys on all devices of the lock, and that it is for the plans called `names`; without
    names, it may be for any plans.

    Raises:
        LockError: A check fails.
    """
    from jitgen.plans.lock import require_plans
    from jitgen.runtime.lock import read
    from jitgen.runtime.locked import require

    found = read(path)
    require_plans(found, [load_plan(name) for name in names])
    require(_differences(found, store), path)
    return found


def _differences(found: Lock, store: Store) -> Iterator[Difference]:
    from jitgen.runtime.locked import choice_differences, key_differences
    from jitgen.selection.choice import Chooser

    chooser = Chooser(lambda: store)
    for target in found.targets:
        yield from key_differences(found, target)
        yield from choice_differences(found, target, target.choices, chooser, store)
