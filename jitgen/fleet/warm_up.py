# SPDX-License-Identifier: Apache-2.0
"""
Brings the kernels of a plan to every rank of a job, each compiled once: `warm_up`.

It works for ranks of one machine with a shared cache, and for ranks of many machines with a cache
each; those exchange entries through the store of torch.distributed. A rank that dies or comes late
delays no other. Without torch.distributed it is a prewarm of this process.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.config import Arch, Config
from jitgen.errors import CacheError, ConfigError
from jitgen.events import warn_once
from jitgen.fleet.coordination import CoordinationError, CoordinationStore, KernelRecord, RankStore
from jitgen.fleet.rank import Progress, Rank, RankInfo
from jitgen.fleet.report import WarmUpReport, WarmUpRow, WarmUpState, lost, manifest
from jitgen.plans.plan import Plan
from jitgen.plans.prewarm import PrewarmRow, PrewarmState, note, prewarm, wanted
from jitgen.runtime.override import refuse_to_share
from jitgen.runtime.session import current
from jitgen.runtime.spec import spec_of
from jitgen.settings import settings
from jitgen.support.values import MAX_WAIT_S
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from jitgen.cache import Store

PATIENCE_S = 10.0
"""Seconds without a heartbeat, which a thread of its own sends every second."""

_PREFIX = "jitgen/1/"
"""Prefix of names in the job's store; a change of the records' format changes the number."""


def warm_up(
    plan: Plan | str | Path | Iterable[Config | str],
    group: ProcessGroup | None = None,
    *,
    arch: Arch | str | None = None,
    jobs: int | None = None,
    patience_s: float = PATIENCE_S,
    on_progress: Progress | None = None,
    devices: Sequence[str] = (),
) -> WarmUpReport:
    """
    Bring every kernel that `plan` can ask for into this rank's cache; every rank calls it.

    The ranks share the compiles: one rank compiles a kernel, in processes of its own; the others
    take it from a shared cache, or are sent it. Ranks need not arrive together, and a rank returns
    as soon as it has all kernels. The kernels of a rank that died or never came are compiled by the
    others. If a compile service or a remote tier has the kernels, they are fetched.

    Args:
        plan: As `jitgen.prewarm` takes it; alike on all ranks.
        group: The ranks; None for all of them. Without an initialised torch.distributed, this
            process alone.
        arch: The target; None for this process's default.
        jobs: Compile processes of this rank at a time; None for JITGEN_JOBS; 0, also of
            JITGEN_JOBS, for this rank's part of what cores and memory allow.
        patience_s: Seconds without a heartbeat after which a rank counts as dead.
        on_progress: Called on this thread for each kernel that has arrived.
        devices: Names of the devices that a plan's kernels are chosen for, alike on all ranks;
            none: as for `jitgen.prewarm`, so that ranks with different GPUs share one list.

    Returns:
        One row for each kernel; a failed one is a row, not an exception. ``manifest`` has the
        results of all ranks.

    Raises:
        PlanError: The plan cannot be found or read.
        UnsupportedConfig: `arch` cannot run one of the configs; nothing was compiled.
        CacheError: The cache may not be written.
        ConfigError: A device is not known, or a number is not allowed.
        SettingError: JITGEN_OVERRIDE has one of the kernels, and several ranks would share it.
    """
    if not 0 < patience_s <= MAX_WAIT_S:
        raise ConfigError(
            f"patience_s must be seconds, more than 0 and at most {MAX_WAIT_S:.0f} (got "
            f"{patience_s!r})"
        )
    if jobs is not None and (type(jobs) is not int or jobs < 0):
        raise ConfigError(f"jobs must be None or an integer of at least 0 (got {jobs!r})")
    start = time.perf_counter()
    target = default_arch() if arch is None else Arch.parse(arch)
    store = current.get().store
    if store.mode != "rw":
        raise CacheError(
            f"a warm-up writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
        )
    asked = wanted(plan, target, store, devices)
    info, shared = _rank_info(group, jobs)
    if shared is None:
        report = _alone(asked.configs, target, store, info, start=start, on_progress=on_progress)
    else:
        refuse_to_share(asked.configs, target)
        coordination = CoordinationStore(shared, info.rank, socket.gethostname(), patience_s)
        report = together(asked.configs, target, store, info, coordination, start, on_progress)
    note(asked, store, {row.key for row in report.rows if not row.error})
    return report


def together(
    configs: Iterable[Config],
    arch: Arch,
    store: Store,
    info: RankInfo,
    coordination: CoordinationStore,
    start: float,
    on_progress: Progress | None,
) -> WarmUpReport:
    """Run a rank's part of a warm-up; if the job's store has gone, go on without other ranks."""
    specs = [spec_of(config, arch) for config in configs]
    rank = Rank(specs, info, coordination, store, on_progress)
    records: dict[str, KernelRecord | None] = dict.fromkeys(spec.key for spec in specs)
    try:
        rows = rank.run()
        records = rank.records()
    except CoordinationError as error:
        warn_once("coordination", "this rank warms up alone from now on: %s", error)
        known = {row.key: row for row in rank.rows}
        left = [spec.config for spec in specs if spec.key not in known]
        rest = prewarm(left, arch=arch, jobs=info.jobs, store=store)
        known |= {row.key: _row(row, info.rank) for row in rest.rows}
        rows = tuple(known[spec.key] for spec in specs)
    return WarmUpReport(
        arch=arch,
        rank=info.rank,
        world=info.world,
        rows=rows,
        lost=tuple(lost(records)),
        wall_s=time.perf_counter() - start,
        manifest=manifest(arch, info.world, rows, records),
    )


def _alone(
    configs: Iterable[Config],
    arch: Arch,
    store: Store,
    info: RankInfo,
    *,
    start: float,
    on_progress: Progress | None,
) -> WarmUpReport:
    """Prewarm on one rank, and return the result as that of a warm-up."""

    def progress(row: PrewarmRow, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(_row(row, 0), done, total)

    report = prewarm(list(configs), arch=arch, jobs=info.jobs, on_progress=progress, store=store)
    rows = tuple(_row(row, 0) for row in report.rows)
    records = {row.key: _record_of(row) for row in rows}
    return WarmUpReport(
        arch=arch,
        rank=0,
        world=1,
        rows=rows,
        lost=(),
        wall_s=time.perf_counter() - start,
        manifest=manifest(arch, 1, rows, records),
    )


def _row(row: PrewarmRow, rank: int) -> WarmUpRow:
    is_cached = row.state is PrewarmState.CACHED
    return WarmUpRow(
        name=row.name,
        key=row.key,
        state=WarmUpState(row.state.value),
        rank=-1 if is_cached else rank,
        host="" if is_cached else socket.gethostname(),
        seconds=row.seconds,
        error=row.error,
    )


def _record_of(row: WarmUpRow) -> KernelRecord:
    """Return the record that the kernel of `row` would have in a job's store."""
    return KernelRecord(
        state="failed" if row.error else "done",
        by="",
        rank=row.rank,
        host=row.host,
        seconds=row.seconds,
        error=row.error,
    )


def _rank_info(group: ProcessGroup | None, jobs: int | None) -> tuple[RankInfo, RankStore | None]:
    """
    Return this process's rank and its part of the work, and the store that the ranks of its job
    share, None if there is one rank.

    Args:
        group: The ranks; None: all of torch.distributed, if it is initialised.
        jobs: Processes that compile on this rank; None: as JITGEN_JOBS says; 0: the rank's part of
            what the machine allows.
    """
    chosen = settings.jobs if jobs is None else jobs
    local_world = _number("LOCAL_WORLD_SIZE", 1)
    rank, world, shared = _distributed(group)
    return (
        RankInfo(
            rank=rank,
            world=world,
            jobs=chosen or max(1, _default_jobs() // max(1, local_world)),
            offers_all=_number("LOCAL_RANK", 0) == 0,
        ),
        shared,
    )


def _distributed(group: ProcessGroup | None) -> tuple[int, int, RankStore | None]:
    """Return this rank, the number of ranks, and their store, None if this process is alone."""
    torch = sys.modules.get("torch")  # a program that initialised torch.distributed has imported it
    if torch is None or not torch.distributed.is_available():
        return 0, 1, None
    distributed = torch.distributed
    if not distributed.is_initialized():
        return 0, 1, None
    members = distributed.group.WORLD if group is None else group
    rank, world = distributed.get_rank(members), distributed.get_world_size(members)
    if world == 1:
        return 0, 1, None
    store = members.get_group_store()
    return rank, world, distributed.PrefixStore(_PREFIX, store)


def _default_jobs() -> int:
    from jitgen.compile import capacity

    return capacity.default_jobs(0)


def _number(variable: str, default: int) -> int:
    """Return a number that torchrun set in the environment; `default` if it did not."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
