# SPDX-License-Identifier: Apache-2.0
"""
Compares this machine with a lock, before anything is launched.

Three things must agree with the lock: the choices, which follow from tables, measurements and
settings; the keys, which follow from configs, templates and the toolchain; and the bytes of the
kernels. All other contents of a lock only explain differences in these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError, LockError, UnsupportedConfig
from jitgen.runtime import coverage
from jitgen.runtime.lock import Choices, Lock, LockedTarget, Step, Tables
from jitgen.runtime.spec import KernelSpec, serving
from jitgen.runtime.tiers import Tiers, fetch, readable
from jitgen.selection import measurements
from jitgen.selection.choice import Chooser, buckets
from jitgen.selection.device import asking, gpu_of_host
from jitgen.selection.launched import launched
from jitgen.selection.record import parse_problem
from jitgen.targets import devices, legality

if TYPE_CHECKING:
    from jitgen.cache import Meta, Store

_DIGITS = 12

Place: TypeAlias = tuple[Arch, tuple[str, ...]]
"""A target, and the names of one of its devices."""


class Difference(NamedTuple):
    """
    A difference from a lock.

    Attributes:
        what: The difference, as a clause.
        mend: Advice how to resolve it.
    """

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}; {self.mend}"


def steps(
    problem: Problem,
    rows: tuple[int, int],
    arch: Arch,
    chooser: Chooser,
    device: str | None,
    *,
    is_early: bool,
) -> tuple[tuple[Step, ...], dict[str, Config]]:
    """
    Return the kernels that calls launch, bucket by bucket, and their configs by name.

    Args:
        problem: All sizes but the rows.
        rows: Smallest and largest mean of rows per group.
        arch: The target.
        chooser: The chooser of kernels.
        device: Name of the device, as `Chooser.select` takes it.
        is_early: Whether the kernels start early.
    """
    found: list[Step] = []
    configs: dict[str, Config] = {}
    for place in buckets(problem, arch, rows):
        _, each = launched(place, arch, chooser, device, is_early=is_early)
        named = {config.name(arch): config for config in each}
        configs |= named
        if found and found[-1].kernels == tuple(named):
            found.pop()
        found.append(Step(rows=max(1, place.rows_per_group), kernels=tuple(named)))
    return tuple(found), configs


def tables_of(store: Store, arch: Arch, device: str) -> Tables:
    """Return the digests of the tables that choose on the device called `device`."""
    shipped, measured = measurements.digests(store, arch, asking(arch, device))
    return Tables(device=device, shipped=shipped, measured=measured)


def specs(target: LockedTarget) -> dict[str, KernelSpec]:
    """
    Return the spec of each locked kernel on this machine, by its name.

    Raises:
        LockError: This version of jitgen does not have one of the kernels.
    """
    arch = _arch(target)
    found = {}
    for kernel in target.kernels:
        try:
            config = Config.from_json(kernel.config)
            legality.require(config, arch)
            found[kernel.name] = serving(config, arch)
        except ConfigError as error:
            raise LockError(
                f"the lock has the kernel {kernel.name}, which this jitgen cannot make: {error}; "
                "install the jitgen that made the lock, or make it anew with: jitgen lock"
            ) from error
    return found


def check(lock: Lock, path: Path, chooser: Chooser, store: Store) -> Place | None:
    """
    Compare this process with a lock; missing kernels are fetched, none is compiled.

    Only the choices and kernels of this process's device, and of the cpu, are compared. Before the
    process has used its GPU, the device is the one that the driver's files name; without one, all
    locked devices are compared.

    Returns:
        The target and the names of the device that was compared; None: all were.

    Raises:
        LockError: There is a difference; the message names the first one, and what to do about it.
    """
    known = coverage.here()
    place = known or _of_host(lock)
    is_guess = known is None
    require(lock_differences(lock, path, chooser, store, place, is_guess=is_guess), path)
    return place


def _of_host(lock: Lock) -> Place | None:
    """
    Return the device of this host; None if it is not known, or the lock does not have its target.
    """
    try:
        name = gpu_of_host()
        arch = devices.arch_of(name) if name else None
    except ConfigError:  # a device that no target lists: it is compared when it is used
        return None
    if arch is None or not any(each.arch == arch for each in lock.targets):
        return None
    return arch, (devices.find(arch, name).name,)


def require(found: Iterable[Difference], path: Path) -> None:
    """Raise the LockError of the differences `found`; do nothing where there are none."""
    told = tuple(map(str, found))
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        raise LockError(f"this process is not as {path} locks it: {told[0]}{more}", told)


def lock_differences(
    lock: Lock,
    path: Path,
    chooser: Chooser,
    store: Store,
    place: Place | None,
    *,
    is_guess: bool = False,
) -> Iterator[Difference]:
    """
    Yield the differences from a lock on the device of `place`; None: on all devices of the lock.

    If `is_guess` is set, choices are made by the name of the device, without using a GPU.
    """
    targets = [each for each in lock.targets if _is_asked(each, place)]
    if place is not None and not any(each.arch == place[0] for each in targets):
        known = ", ".join(each.arch for each in lock.targets)
        yield Difference(
            f"it is for {known}, and this is {place[1][0]}, an {place[0]}",
            f"lock that target too: {_again(lock)} --arch {place[0]}",
        )
    for target in targets:
        names = [name for name in target.devices if _is_named(target, name, place)]
        if not names and place is not None:
            yield Difference(
                f"it is for {', '.join(target.devices)}, and this is {place[1][-1]}",
                f"lock that device too: {_again(lock)} --device '{place[1][0]}'",
            )
            continue
        of_device = [each for each in target.choices if each.device in names]
        # As calls choose, so that their choices are the ones that were compared.
        is_own = place is not None and place[0] == target.arch and not is_guess
        asked = None if is_own else ""
        yield from choice_differences(lock, target, of_device, chooser, store, asked)
        wanted = {name for each in of_device for step in each.steps for name in step.kernels}
        keys = list(key_differences(lock, target, wanted))
        yield from keys
        if not keys:  # kernels of other keys would all be missing
            yield from kernel_differences(target, path, store, wanted)


def choice_differences(
    lock: Lock,
    target: LockedTarget,
    choices: Sequence[Choices],
    chooser: Chooser,
    store: Store,
    asked: str | None = "",
) -> Iterator[Difference]:
    """
    Yield, for each device whose choices differ from the lock, the first different choice.

    Args:
        lock: The lock.
        target: One of its targets.
        choices: The choices of the target that are compared.
        chooser: The chooser of this machine.
        store: The store with the measurements of this machine.
        asked: None: choose for the device of this process; otherwise for the device that each
            choice names.
    """
    arch, plans = _arch(target), {plan.name: plan for plan in lock.plans}
    found: dict[str, list[str]] = {}
    doubts = chooser.doubts
    for each in choices:
        sweep = plans[each.plan].sweeps[each.sweep]
        problem = parse_problem(sweep.problem)
        device = None if asked is None else asking(arch, each.device)
        rows = sweep.min_rows, sweep.max_rows
        try:
            mine, _ = steps(problem, rows, arch, chooser, device, is_early=sweep.is_early)
        except UnsupportedConfig as error:
            found.setdefault(each.device, []).append(
                f"{problem.op} {problem.slug} has no kernel: {error}"
            )
            continue
        if mine != each.steps:
            found.setdefault(each.device, []).append(_first(problem, each.steps, mine))
    for name, others in found.items():
        more = f", and {len(others) - 1} more problems of the plans" if len(others) > 1 else ""
        why, mend = _why(lock, target, store, name)
        yield Difference(f"on {name} {others[0]}{more} ({why})", mend)
    if chooser.doubts != doubts:
        yield Difference("measurements cannot be read just now", "try again")


def key_differences(
    lock: Lock, target: LockedTarget, wanted: Collection[str] | None = None
) -> Iterator[Difference]:
    """Yield one difference if kernels of `wanted` (None: any) have other keys here."""
    mine = specs(target)
    kernels = [each for each in target.kernels if wanted is None or each.name in wanted]
    other = [each for each in kernels if mine[each.name].key != each.key]
    if not other:
        return
    arch, here = _arch(target), toolchain.versions()
    pairs = {
        **{name: (text, here.get(name)) for name, text in lock.toolchain.items()},
        **{name: (None, text) for name, text in here.items() if name not in lock.toolchain},
        "host": (target.host, toolchain.host(arch)),
        "options": (" ".join(target.options), " ".join(toolchain.options(arch))),
    }
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not changed:
        locked, version = target.conditions.get("jitgen", "?"), __version__
        changed = {"jitgen": (locked, version)}
        if locked == version:
            changed = {"templates": ("others", "these")}
    why = ", ".join(
        f"{name} {a or 'none'} locked, here {b or 'none'}" for name, (a, b) in changed.items()
    )
    pins = " ".join(f"'{name}=={a}'" for name, (a, _) in changed.items() if name in lock.toolchain)
    install = f"install what was locked (pip install {pins})" if pins else "install what was locked"
    yield Difference(
        f"{len(other)} of {len(kernels)} kernels for {arch} have other keys here, "
        f"{other[0].name} the first: {why}",
        f"{install}, or lock what is here: {_again(lock)}",
    )


def kernel_differences(
    target: LockedTarget, path: Path, store: Store, wanted: Collection[str]
) -> Iterator[Difference]:
    """
    Yield a difference for each kernel of `wanted` that has other bytes, and one for all that are
    missing and cannot be fetched.
    """
    tiers, mine = Tiers(store), specs(target)
    files = {each.name: each.files for each in target.kernels}
    missing: list[str] = []
    for name in sorted(wanted):
        found = readable(tiers, mine[name], tells_miss=False) or fetch(tiers, mine[name])
        if isinstance(found, str):
            missing.append(name)
        elif told := other_files(found[0].meta, files[name]):
            yield Difference(f"{name} {told}", REBUILT)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield Difference(
            f"{missing[0]}{more} of {len(wanted)} kernels for {target.arch} cannot be found",
            f"run: jitgen prewarm --locked {path}",
        )


REBUILT = (
    "another linker or compiler of the same version built it: fetch the locked one (JITGEN_REMOTE, "
    "jitgen bundle import) after jitgen cache rm, or lock anew"
)


def other_files(meta: Meta, locked: Mapping[str, str]) -> str:
    """Return a text that says which file of an entry is not the locked one; empty if all are."""
    for name, digest in locked.items():
        found = meta.files.get(name)
        if found is None:
            return f"has no {name}"
        if found["sha256"] != digest:
            return f"has another {name}: {found['sha256'][:_DIGITS]}, locked {digest[:_DIGITS]}"
    return ""


def _first(problem: Problem, locked: Sequence[Step], mine: Sequence[Step]) -> str:
    """Return a text that describes the first bucket whose kernels differ."""
    edges = sorted({step.rows for step in (*locked, *mine)})
    for rows in edges:
        there, here = (_at(each, rows) for each in (locked, mine))
        if there != here:
            break
    slug = problem.with_mean(rows).slug
    return f"{problem.op} {slug} launches {' and '.join(here)}, locked is {' and '.join(there)}"


def _at(found: Sequence[Step], rows: int) -> tuple[str, ...]:
    """
    Return the kernels of the first bucket that reaches up to `rows` rows, or of the last bucket.
    """
    return next((step.kernels for step in found if rows <= step.rows), found[-1].kernels)


def _why(lock: Lock, target: LockedTarget, store: Store, device: str) -> tuple[str, str]:
    """Return why a device may choose otherwise than the lock says, and how to mend that."""
    arch = _arch(target)
    values = coverage.now(arch, target.conditions)
    changed = {
        name: (target.conditions[name], value)
        for name, value in values.items()
        if target.conditions[name] != value
    }
    if changed:
        text = ", ".join(f"{name} {a} locked, here {b}" for name, (a, b) in changed.items())
        variables = [f"{name}={a}" for name, (a, _) in changed.items() if name.isupper()]
        mend = f"set {' '.join(variables)}" if variables else "install the jitgen that was locked"
        return text, f"{mend}, or lock what is here: {_again(lock)}"
    locked = next((each for each in target.tables if each.device == device), None)
    mine = tables_of(store, arch, device)
    if locked is not None and locked.measured != mine.measured:
        where = "here are none" if not mine.measured else "here are others"
        if not locked.measured:
            where = "here are some, and the lock was made without"
            mend = "remove them with the cache that has them (JITGEN_CACHE_DIR)"
        else:
            mend = "bring those of the lock here: jitgen tune --export there, --import here"
        return f"by measurements: {where}", f"{mend}; or lock what is here: {_again(lock)}"
    if locked is not None and locked.shipped != mine.shipped:
        return "the shipped table is another", "install the jitgen that was locked, or lock anew"
    return "the lock was changed by hand, or by another jitgen", f"lock anew: {_again(lock)}"


def _again(lock: Lock) -> str:
    return f"jitgen lock {' '.join(coverage.argument(plan.name) for plan in lock.plans)}"


def _arch(target: LockedTarget) -> Arch:
    try:
        return Arch.parse(target.arch)
    except ConfigError as error:
        raise LockError(f"the lock is for a target that is not known here: {error}") from None


def _is_asked(target: LockedTarget, place: Place | None) -> bool:
    """Return whether a process with the device of `place` may use the kernels of `target`."""
    return place is None or target.arch == place[0] or not _arch(target).is_gpu


def _is_named(target: LockedTarget, name: str, place: Place | None) -> bool:
    return place is None or target.arch != place[0] or name in place[1]
