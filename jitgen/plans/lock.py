# SPDX-License-Identifier: Apache-2.0
"""Makes the lock of plans, and the plans and kernels of a lock; see `jitgen.runtime.lock`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitgen._version import __version__
from jitgen.cache import Store
from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.errors import LockError, UnsupportedConfig
from jitgen.plans.plan import Plan
from jitgen.plans.prewarm import Wanted
from jitgen.plans.sweep import Sweep
from jitgen.runtime import coverage
from jitgen.runtime.lock import (
    SCHEMA,
    Choices,
    Lock,
    LockedKernel,
    LockedPlan,
    LockedSweep,
    LockedTarget,
)
from jitgen.runtime.locked import specs, steps, tables_of
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import Tiers, readable
from jitgen.selection.choice import Chooser
from jitgen.selection.device import asking, covered
from jitgen.selection.record import parse_problem, problem_json
from jitgen.support.codec import like
from jitgen.targets import devices as known


class MissingKernels(LockError):
    """
    Kernels of the plans are not in the store.

    Attributes:
        names: Names of the missing kernels.
    """

    def __init__(self, names: tuple[str, ...], advice: str) -> None:
        super().__init__(missing_text(names, "a lock has the digests of all", advice))
        self.names = names


def missing_text(names: Sequence[str], need: str, advice: str) -> str:
    """
    Return what is said of kernels that are not in the store.

    Args:
        names: Their names.
        need: Why all kernels must be there.
        advice: The command that compiles them.
    """
    count = f"{len(names)} kernels of the plan are" if len(names) > 1 else "a kernel is"
    first = f"{names[0]}{', ...' if len(names) > 1 else ''}"
    return f"{count} not in the cache, and {need}: {first}; compile them with: {advice}"


def prewarm_command(plans: Sequence[Plan], archs: Sequence[Arch], devices: Sequence[str]) -> str:
    """Return the command that compiles the kernels of plans."""
    arguments = " ".join(plan.argument for plan in plans)
    chosen = "".join(f" --device '{device}'" for device in devices)
    return f"jitgen prewarm {arguments} --arch {','.join(archs)}{chosen}"


def locked(
    plans: Sequence[Plan], archs: Sequence[Arch], store: Store, devices: Sequence[str] = ()
) -> Lock:
    """
    Return the lock of `plans`: the kernels that are chosen for `devices` on this machine now, and
    their files in the store.

    Args:
        plans: The plans, with different names.
        archs: Targets of the kernels.
        store: The store with the kernels, and with the measurements of this machine.
        devices: Names of devices. For a target without any of these: JITGEN_DEVICE, otherwise all
            of its devices and that of this machine.

    Raises:
        MissingKernels: Some are not in the store.
        LockError: Two plans have the same name.
        UnsupportedConfig: A target has no kernel for something in a plan.
        ConfigError: A device is not known, or belongs to none of `archs`.
    """
    names = [plan.name for plan in plans]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LockError(f"two plans are called {twice}; a lock names each by its own name")
    for name in devices:
        known.require(name, archs)
    missing: list[str] = []
    targets = tuple(_target(plans, arch, store, devices, missing) for arch in archs)
    if missing:
        raise MissingKernels(tuple(missing), prewarm_command(plans, archs, devices))
    return Lock(
        schema=SCHEMA,
        jitgen=__version__,
        toolchain=toolchain.versions(),
        plans=tuple(_plan(plan) for plan in plans),
        targets=targets,
    )


def _plan(plan: Plan) -> LockedPlan:
    sweeps = tuple(
        like(LockedSweep, each, problem=problem_json(each.problem)) for each in plan.sweeps
    )
    return like(LockedPlan, plan, sweeps=sweeps)


def _target(
    plans: Sequence[Plan], arch: Arch, store: Store, devices: Sequence[str], missing: list[str]
) -> LockedTarget:
    """
    Return the part of a lock for one target; names of kernels that the store lacks are added to
    `missing`.
    """
    chooser, names = Chooser(lambda: store), covered(arch, devices)
    configs: dict[str, Config] = {}
    choices = []
    for plan in plans:
        served = plan.served(arch)
        if not served:
            raise UnsupportedConfig(
                f"{arch} has no kernel for anything in the plan {plan.name}", code="E_PLAN"
            )
        for number, sweep in enumerate(plan.sweeps):
            if sweep not in served:
                continue
            rows = sweep.min_rows, sweep.max_rows
            for name in names:
                device = asking(arch, name)
                each, more = steps(
                    sweep.problem, rows, arch, chooser, device, is_early=sweep.is_early
                )
                configs |= more
                choices.append(Choices(plan=plan.name, sweep=number, device=name, steps=each))
    return LockedTarget(
        arch=str(arch),
        devices=names,
        host=toolchain.host(arch),
        options=tuple(toolchain.options(arch)),
        conditions={
            name: text
            for plan in plans
            for name, text in coverage.conditions_of(plan, arch).items()
        },
        tables=tuple(tables_of(store, arch, name) for name in names),
        choices=tuple(choices),
        kernels=_kernels(configs, arch, store, missing),
    )


def _kernels(
    configs: Mapping[str, Config], arch: Arch, store: Store, missing: list[str]
) -> tuple[LockedKernel, ...]:
    tiers, found = Tiers(store), []
    for name, config in sorted(configs.items()):
        spec = spec_of(config, arch)
        entry = readable(tiers, spec, tells_miss=False)
        if entry is None:
            missing.append(name)
            continue
        files = {file: record["sha256"] for file, record in entry[0].meta.files.items()}
        found.append(LockedKernel(name=name, key=spec.key, config=config.to_json(), files=files))
    return tuple(found)


def plans_of(lock: Lock) -> list[Plan]:
    """
    Return the plans of a lock.

    Raises:
        LockError: A plan does not match its digest, because the file was changed.
        ConfigError: This jitgen does not know one of the problems.
    """
    found = []
    for each in lock.plans:
        sweeps = tuple(
            like(Sweep, sweep, problem=parse_problem(sweep.problem), entry=0)
            for sweep in each.sweeps
        )
        plan = Plan(name=each.name, description=each.description, sweeps=sweeps)
        if plan.digest != each.digest:
            raise LockError(
                f"the plan {each.name} in the lock does not have the digest that it states: the "
                "file was changed, or another jitgen made it; make it anew with: jitgen lock"
            )
        found.append(plan)
    return found


def require_plans(lock: Lock, asked: Sequence[Plan]) -> None:
    """
    Raise LockError if `asked` differ from the plans of the lock; if `asked` is empty, do nothing.
    """
    there = {plan.name: plan.digest for plan in lock.plans}
    for plan in asked:
        if there.get(plan.name) != plan.digest:
            other = "another plan of that name" if plan.name in there else ", ".join(there)
            raise LockError(
                f"the lock is not for the plan {plan.name}: it has {other}; name no plan to take "
                f"those of the lock, or make it anew with: jitgen lock {plan.argument}"
            )
    if left := sorted(there.keys() - {plan.name for plan in asked}) if asked else []:
        raise LockError(f"the lock is for {', '.join(left)}, too; name all of its plans, or none")


def wanted_of(lock: Lock) -> dict[Arch, list[Wanted]]:
    """
    Return the kernels of a lock for each target, plan by plan; raises as `plans_of`, and LockError
    if a target or a kernel is not known here.
    """
    plans = plans_of(lock)
    found: dict[Arch, list[Wanted]] = {}
    for target in lock.targets:
        mine = specs(target)
        for plan in plans:
            names = {
                name: None
                for each in target.choices
                if each.plan == plan.name
                for step in each.steps
                for name in step.kernels
            }
            found.setdefault(Arch.parse(target.arch), []).append(
                Wanted(
                    arch=Arch.parse(target.arch),
                    specs=tuple(mine[name] for name in names),
                    plan=plan,
                    devices=target.devices,
                )
            )
    return found
