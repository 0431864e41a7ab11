# SPDX-License-Identifier: Apache-2.0
"""``jitgen prewarm``: compile every kernel that plans may need ahead of time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jitgen.cli.lock import LOCKED, read_lock
from jitgen.cli.lookup import parse_configs
from jitgen.cli.options import ARCHS, DEVICES, SHARD, refuse, with_output
from jitgen.cli.output import ExitCode, Output, counted, human_size, human_time
from jitgen.config import Arch, Config
from jitgen.errors import CacheError
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.plans.shard import Shard
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import like, one_of
from jitgen.support.frozen import frozen
from jitgen.targets.devices import arch_of, default_arch, require

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.plans.prewarm import PrewarmReport, PrewarmRow, Wanted
    from jitgen.runtime.lock import Lock


@frozen
class _PrewarmedKernel:
    """Outcome for one kernel."""

    name: v.Name
    key: v.Key
    state: Annotated[
        str, one_of("cached", "fetched", "compiled", "failed", "would_fetch", "would_compile")
    ]
    seconds: v.Seconds
    bytes: v.Bytes
    error: v.Reason


@frozen
class _Prewarmed:
    dry_run: bool
    ok: v.Ok
    wall_s: v.Seconds
    jobs: v.Count
    devices: Annotated[Mapping[str, Sequence[str]], v.by("arch")]
    counts: Annotated[Mapping[str, v.Count], v.by("state")]
    kernels: Sequence[_PrewarmedKernel]


@frozen
class _BeyondBudget:
    """The document for a prewarm of more kernels than the budget allows."""

    ok: v.Ok
    budget: v.Count
    wanted: v.Count
    beyond: Sequence[v.Name]


@frozen
class _How:
    """Options of ``jitgen prewarm``, without the plans and targets."""

    jobs: int | None
    shard: Shard | None
    budget: int | None
    dask: str | None
    dry_run: bool
    check: bool

    @property
    def is_dry(self) -> bool:
        return self.dry_run or self.check

    @property
    def most(self) -> int:
        """Maximum number of kernels; 0 means unlimited."""
        return int(settings.max_kernels) if self.budget is None else self.budget


@click.command(
    epilog=f"Shipped plans: {', '.join(plan_names())}. A plan of your own is a .toml file."
)
@click.argument("names", metavar="[PLAN]...", nargs=-1)
@click.option(
    "--config", "config_names", metavar="NAME", multiple=True, help="A kernel by its name."
)
@click.option("--arch", "archs", type=ARCHS, help="Targets of the plans: A,B.")
@DEVICES
@click.option(
    "--jobs", "-j", type=click.IntRange(0), help="Compile processes; 0: by cores and memory."
)
@click.option("--shard", type=SHARD, help="Part i of n equal parts: 0/n to n-1/n.")
@click.option(
    "--budget",
    type=click.IntRange(0),
    help="Fail, and compile nothing, if more kernels are needed; default: JITGEN_MAX_KERNELS.",
)
@click.option(
    "--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster, whose workers compile."
)
@LOCKED
@click.option("--dry-run", is_flag=True, help="List the kernels; compile and fetch nothing.")
@click.option(
    "--check", is_flag=True, help="Exit 3 if a kernel would be compiled; compile and fetch nothing."
)
@with_output
def prewarm(
    output: Output,
    /,
    names: tuple[str, ...],
    config_names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    lock_file: Path | None,
    **options: Any,
) -> int:
    """
    Compile every kernel that the selector can choose for plans, and no others.

    No GPU is needed: kernels are compiled for the targets that --arch names, and for every device
    that a target knows, unless --device or JITGEN_DEVICE names some; the last line lists them.
    Cached kernels are not compiled again. A kernel that fails does not stop the others; the exit
    code is then 1.

    Machines that share the work each take a --shard: the key of a kernel decides to which of the n
    parts it belongs. A --budget counts the kernels of all shards, targets and devices.

    --locked takes plans, targets and devices from a lock, and fails if this machine would choose or
    compile other kernels.
    """
    from jitgen.cache import Store
    from jitgen.plans.prewarm import in_shard, note

    how = _How(**options)
    if how.dask is not None and how.jobs is not None:
        raise click.UsageError(
            "--jobs is for this machine; of a cluster the workers' threads count"
        )
    store = Store.open()
    wanted, lock = _asked(names, config_names, archs, devices, lock_file, store)
    if store.mode != "rw" and not how.is_dry:
        raise CacheError(
            f"prewarming writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
        )
    every = {arch: list(dict.fromkeys(_configs(asked))) for arch, asked in wanted.items()}
    if excess := _beyond(every, store, how.most):
        _tell_budget(output, every, excess, how.most)
        return ExitCode.FAILED
    every = {arch: list(in_shard(configs, arch, how.shard)) for arch, configs in every.items()}
    start = time.perf_counter()
    reports = _run(output, store, every, how)
    if lock is not None:
        reports = _as_locked(output, lock, reports, store)
    wall_s = time.perf_counter() - start
    if not how.dry_run:
        for report in reports:
            for asked in wanted[report.arch]:
                note(asked, store, report.there)
    return _tell(output, reports, _devices(wanted), wall_s, how)


def _asked(
    names: tuple[str, ...],
    config_names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    lock_file: Path | None,
    store: Store,
) -> tuple[dict[Arch, list[Wanted]], Lock | None]:
    """Return the kernels that the arguments name, for each target, and the lock if there is one."""
    if lock_file is None:
        if not names and not config_names:
            raise click.UsageError(f"name a plan ({', '.join(plan_names())}) or a --config")
        if not names:
            refuse("for plans alone; the name of a kernel says its target", "archs", "devices")
        return _wanted(names, config_names, plan_archs(archs, devices), devices, store), None
    from jitgen.plans.lock import wanted_of

    if config_names or archs or devices:
        raise click.UsageError("--locked takes targets, devices and kernels from the lock alone")
    lock = read_lock(lock_file, store, names)
    return wanted_of(lock), lock


def _as_locked(
    output: Output, lock: Lock, reports: list[PrewarmReport], store: Store
) -> list[PrewarmReport]:
    """Return the reports; kernels whose bytes differ from the lock count as failed."""
    from jitgen.plans.prewarm import PrewarmState
    from jitgen.runtime.locked import REBUILT, other_files, specs
    from jitgen.runtime.tiers import Tiers, readable

    tiers, found = Tiers(store), []
    files = {(each.arch, one.key): one.files for each in lock.targets for one in each.kernels}
    mine = {(each.arch, s.key): s for each in lock.targets for s in specs(each).values()}
    for report in reports:
        rows = []
        for row in report.rows:
            place = str(report.arch), row.key
            entry = readable(tiers, mine[place], tells_miss=False)
            told = "" if entry is None else other_files(entry[0].meta, files[place])
            if told:
                output.warn(f"{row.name} {told}; {REBUILT}")
            rows.append(
                replace(row, state=PrewarmState.FAILED, error=f"it {told}") if told else row
            )
        found.append(replace(report, rows=tuple(rows)))
    return found


def _devices(wanted: dict[Arch, list[Wanted]]) -> dict[str, list[str]]:
    """Return the devices for which kernels were chosen, for each GPU target."""
    found = {
        arch: dict.fromkeys(n for each in asked for n in each.devices)
        for arch, asked in wanted.items()
    }
    return {str(arch): list(names) for arch, names in found.items() if names and arch.is_gpu}


def _tell(
    output: Output,
    reports: list[PrewarmReport],
    devices: dict[str, list[str]],
    wall_s: float,
    how: _How,
) -> int:
    """Print the results and return the exit code."""
    rows = [row for report in reports for row in report.rows]
    jobs = max((report.jobs for report in reports), default=0)

    def human() -> None:
        _print(output, rows, is_dry=how.is_dry)
        output.note(_summary(rows, wall_s, jobs))
        if how.is_dry and is_missing and settings.service:
            output.note(f"{settings.service} is asked to compile what is missing before this host")
        if devices:
            each = (f"{arch} on {', '.join(names)}" for arch, names in devices.items())
            output.note(f"chosen for {'; '.join(each)}")

    counts = {state: sum(row.state == state for row in rows) for state in _STATES}
    is_missing = counts["would compile"] > 0
    document = _Prewarmed(
        dry_run=how.is_dry,
        ok=not counts["failed"] and not (how.check and is_missing),
        wall_s=wall_s,
        jobs=jobs,
        devices=devices,
        counts={
            _word(state): count
            for state, count in counts.items()
            if count or state != "would fetch"  # which documents without remotes never had
        },
        kernels=[like(_PrewarmedKernel, row, state=_word(row.state)) for row in rows],
    )
    output.report("prewarm", document, human)
    if how.check and is_missing:
        return ExitCode.WOULD_COMPILE
    return ExitCode.FAILED if counts["failed"] else ExitCode.OK


def _beyond(wanted: dict[Arch, list[Config]], store: Store, most: int) -> list[str]:
    """Return the names of the kernels beyond the first `most`, cached ones first; 0: none."""
    from jitgen.runtime.budget import beyond

    pairs = [(config, arch) for arch, configs in wanted.items() for config in configs]
    return [config.name(arch) for config, arch in beyond(pairs, store, most)]


def _tell_budget(
    output: Output, wanted: dict[Arch, list[Config]], excess: list[str], most: int
) -> None:
    """Print which kernels are beyond the budget, and which config fields vary among all kernels."""
    from jitgen.runtime.budget import varied

    configs = [config for each in wanted.values() for config in each]
    document = _BeyondBudget(ok=False, budget=most, wanted=len(configs), beyond=excess)

    def human() -> None:
        output.table(["STATE", "NAME"], [("beyond", name) for name in excess])

    output.report("prewarm", document, human)
    output.error(
        "BudgetExceeded",
        f"{counted(len(configs), 'kernel')} asked for, the budget is {most}: {len(excess)} beyond "
        f"it, listed above; nothing was compiled ({varied(configs)}); if they are wanted, raise "
        "--budget or JITGEN_MAX_KERNELS; --device asks for those of some devices alone",
    )


_STATES = ("cached", "fetched", "compiled", "failed", "would fetch", "would compile")


def _word(state: str) -> str:
    """Return a state as one word."""
    return state.replace(" ", "_")


def plan_archs(archs: tuple[Arch, ...] | None, devices: tuple[str, ...]) -> tuple[Arch, ...] | None:
    """
    Return the targets of plans: the named ones, or those of `devices`; None: the default target.
    """
    if devices:
        archs = archs or tuple(dict.fromkeys(map(arch_of, devices)))
        for name in devices:
            require(name, archs)
    return archs


def _wanted(
    names: tuple[str, ...],
    config_names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    devices: tuple[str, ...],
    store: Store,
) -> dict[Arch, list[Wanted]]:
    """Return the kernels of each plan, and the named kernels, for each target."""
    from jitgen.plans.prewarm import Wanted, wanted
    from jitgen.runtime.spec import serving

    found: dict[Arch, list[Wanted]] = {}
    if names:
        loaded = [load_plan(name) for name in names]
        for arch in archs or (default_arch(),):
            found[arch] = [wanted(plan, arch, store, devices) for plan in loaded]
    for config, arch in parse_configs(config_names):
        found.setdefault(arch, []).append(Wanted(arch=arch, specs=(serving(config, arch),)))
    return found


def _configs(asked: list[Wanted]) -> Iterator[Config]:
    for each in asked:
        yield from each.configs


def _run(
    output: Output, store: Store, wanted: dict[Arch, list[Config]], how: _How
) -> list[PrewarmReport]:
    from jitgen.plans.prewarm import PrewarmState
    from jitgen.plans.prewarm import prewarm as run

    total = sum(len(configs) for configs in wanted.values())
    reports = []
    with output.progress(total, "checking" if how.is_dry else "compiling") as progress:

        def on_progress(row: PrewarmRow, _done: int, _total: int) -> None:
            if row.state is PrewarmState.FAILED:
                progress.note(f"failed: {row.name}: {row.error}")
            is_news = row.state is PrewarmState.COMPILED
            progress.advance(f"{human_time(row.seconds)} {row.name}" if is_news else "")

        for arch, configs in wanted.items():
            if how.dask is not None and not how.is_dry:
                from jitgen.fleet import cluster

                report = cluster.prewarm(
                    configs, arch=arch, store=store, address=how.dask, on_progress=on_progress
                )
            else:
                report = run(
                    configs,
                    arch=arch,
                    jobs=how.jobs,
                    dry_run=how.is_dry,
                    on_progress=on_progress,
                    store=store,
                )
            reports.append(report)
    return reports


def _print(output: Output, rows: list[PrewarmRow], *, is_dry: bool) -> None:
    if is_dry:
        output.table(["STATE", "NAME"], [(str(row.state), row.name) for row in rows])
        return
    output.table(
        ["STATE", ">TIME", ">SIZE", "NAME"],
        [
            (
                str(row.state),
                human_time(row.seconds) if row.seconds else "",
                output.size(row.bytes) if row.bytes else "",
                row.name,
            )
            for row in rows
        ],
    )


def _summary(rows: list[PrewarmRow], wall_s: float, jobs: int) -> str:
    """Return one line: counts, time, rate, size."""
    parts = [
        f"{count} {state}"
        for state in _STATES
        if (count := sum(row.state == state for row in rows))
    ]
    text = ": ".join(filter(None, (counted(len(rows), "kernel"), ", ".join(parts))))
    compiled = sum(row.state == "compiled" for row in rows)
    if compiled:
        rate = compiled / wall_s * 60
        text += f" in {human_time(wall_s)} by {counted(jobs, 'process', 'processes')}"
        text += f" ({rate:.0f} a minute)"
    size = sum(row.bytes for row in rows)
    return f"{text}; {human_size(size)} in the cache" if size else text
