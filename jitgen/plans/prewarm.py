# SPDX-License-Identifier: Apache-2.0
"""
Compiles the kernels of a plan ahead of time; the machine needs no GPU.

Kernels in the store are not compiled again. Each of the others is compiled in a separate process,
so one that fails, hangs or crashes the compiler does not affect the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from jitgen.cache import Store
from jitgen.config import Arch, Config
from jitgen.errors import CacheError, ConfigError
from jitgen.plans.plan import Plan
from jitgen.plans.plan import configs as plan_configs
from jitgen.plans.plan import load as load_plan
from jitgen.plans.shard import Shard
from jitgen.plans.task import PRELOAD, TASK, compile_task
from jitgen.runtime import coverage
from jitgen.runtime.coverage import Coverage
from jitgen.runtime.session import current
from jitgen.runtime.spec import KernelSpec, key, serving
from jitgen.runtime.tiers import COMPILED, Tiers, fetch, readable
from jitgen.selection.choice import Chooser
from jitgen.selection.device import covered
from jitgen.settings import settings
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.support.values import MAX_WAIT_S
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import named, require

if TYPE_CHECKING:
    from jitgen.compile.workers import Outcome


class PrewarmState(StrEnum):
    """Outcome of prewarming a kernel."""

    CACHED = "cached"
    FETCHED = "fetched"
    COMPILED = "compiled"
    FAILED = "failed"
    WOULD_FETCH = "would fetch"
    WOULD_COMPILE = "would compile"


_HERE = ("memory", "disk", "base")
"""Tiers of a kernel that another process has stored meanwhile."""

_THERE = frozenset({PrewarmState.CACHED, PrewarmState.FETCHED, PrewarmState.COMPILED})


@frozen
class PrewarmRow:
    """
    Outcome for one kernel.

    Attributes:
        config: Its config.
        name: Its name.
        key: Digest of its key document.
        state: ``cached``, ``fetched``, ``compiled``, ``failed``, ``would fetch`` or
            ``would compile``.
        seconds: Seconds that its process took; 0 if there was no process.
        bytes: Size of its files in the store; 0 if it is not there.
        error: Why it failed; empty if it did not.
    """

    config: Config
    name: str
    key: str
    state: PrewarmState
    seconds: float = 0.0
    bytes: int = 0
    error: str = ""


@frozen
class PrewarmReport:
    """
    Outcome of a prewarm.

    Attributes:
        arch: The target.
        rows: One result for each kernel, in the order in which they were given.
        wall_s: Seconds from beginning to end.
        jobs: Number of compile processes that ran at the same time; 0 if none was needed.
        devices: Names of the devices for which a plan's kernels were chosen; empty for other
            kernels.
    """

    arch: Arch
    rows: tuple[PrewarmRow, ...]
    wall_s: float
    jobs: int
    devices: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all kernels are in the store now."""
        return all(row.state in _THERE for row in self.rows)

    @property
    def there(self) -> frozenset[str]:
        """The keys of the kernels that are in the store now."""
        return frozenset(row.key for row in self.rows if row.state in _THERE)

    def count(self, state: PrewarmState | str) -> int:
        """Return how many kernels are in `state`."""
        return sum(row.state == state for row in self.rows)


Progress = Callable[[PrewarmRow, int, int], None]
"""
Function that is called for each finished kernel, with the number of finished kernels, and of all
kernels.
"""


def prewarm(  # noqa: PLR0913  # each is one thing to say
    what: Plan | str | Path | Iterable[Config | str],
    *,
    arch: Arch | str | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
    timeout_s: float | None = None,
    store: Store | None = None,
    shard: Shard | str | None = None,
    devices: Sequence[str] = (),
) -> PrewarmReport:
    """
    Compile every kernel that `what` can need into the store.

    For a plan, kernels are chosen for all devices of the target, no matter which GPU this machine
    has, unless `devices` or JITGEN_DEVICE names some. When all of them are in the store, a record
    of that is stored: see `jitgen.runtime.coverage`.

    Args:
        what: A plan, the name of a shipped one, the path of a plan file, or configs or names of
            kernels.
        arch: The target; None: that of this process.
        jobs: Compile processes at a time; None for JITGEN_JOBS, 0 for as many as cores and memory
            allow.
        dry_run: Compile and store nothing, only report missing kernels, and which of them
            JITGEN_REMOTE or JITGEN_SERVICE has.
        on_progress: Called on this thread for every kernel as it is done; an exception from it ends
            the prewarm.
        timeout_s: Seconds that one compile may take; None for JITGEN_COMPILE_TIMEOUT.
        store: The store for the kernels, whose measurements are used to choose them; None: that of
            the session.
        shard: Part of the work, ``i/n``, that this machine does if several share it; None: all.
        devices: Names of the devices for which a plan's kernels are chosen; those of other targets
            are ignored.

    Returns:
        One row for each kernel; a compile that failed is a row, not an exception.

    Raises:
        PlanError: The plan cannot be found or read.
        ConfigError: An argument has a value that is not allowed, or a device is not known.
        UnsupportedConfig: `arch` cannot run one of the configs; nothing was compiled.
    """
    start = time.perf_counter()
    target = default_arch() if arch is None else Arch.parse(arch)
    part = Shard.parse(shard) if isinstance(shard, str) else shard
    _require(jobs, timeout_s, on_progress)
    where = current.get().store if store is None else store
    asked = wanted(what, target, where, devices)
    mine = frozenset(in_shard(asked.configs, target, part))
    specs = {spec.key: spec for spec in asked.specs if spec.config in mine}
    waiting = examine(specs.values(), where)
    rows: dict[str, PrewarmRow] = {}
    running = 0

    def done(row: PrewarmRow) -> None:
        rows[row.key] = row
        if on_progress is not None:
            on_progress(row, len(rows), len(waiting))

    missing = []
    for row in waiting:
        if row.state is PrewarmState.CACHED:
            done(row)
        elif dry_run:
            is_there = Tiers(where).elsewhere(specs[row.key])
            done(replace(row, state=PrewarmState.WOULD_FETCH) if is_there else row)
        elif (brought := fetched(row, specs[row.key], where)) is not None:
            done(brought)
        else:
            missing.append((row, specs[row.key]))
    if missing:
        from jitgen.compile import capacity

        running = min(len(missing), capacity.default_jobs(settings.jobs if jobs is None else jobs))
        limit = settings.compile_timeout if timeout_s is None else timeout_s
        for row in _compile(missing, where, running, limit):
            done(row)
    report = PrewarmReport(
        arch=target,
        rows=tuple(rows[row.key] for row in waiting),
        wall_s=time.perf_counter() - start,
        jobs=running,
        devices=asked.devices,
    )
    if not dry_run:
        note(asked, where, report.there)
    return report


def _require(jobs: int | None, timeout_s: float | None, on_progress: Progress | None) -> None:
    """Raise ConfigError if an argument is not allowed."""
    if on_progress is not None and not callable(on_progress):
        raise ConfigError(f"on_progress must be a function (got {type(on_progress).__name__})")
    if jobs is not None and (type(jobs) is not int or jobs < 0):
        raise ConfigError(f"jobs must be None or an integer of at least 0 (got {shown(jobs)})")
    if timeout_s is not None and not 0 <= timeout_s <= MAX_WAIT_S:
        raise ConfigError(
            f"timeout_s must be None or seconds, from 0 to {MAX_WAIT_S:.0f} (got {timeout_s!r})"
        )


def _unwritable(store: Store) -> str:
    """Return why compiled kernels could not be stored; empty if they can be."""
    if store.mode != "rw":
        return f"{store.root} cannot be written (mode {store.mode})"
    try:
        store.probe()
    except (OSError, CacheError) as error:
        why = getattr(error, "strerror", None) or error
        return f"{store.root} cannot be written: {why}; set JITGEN_CACHE_DIR"
    return ""


def in_shard(
    configs: Iterable[Config], arch: Arch, shard: Shard | str | None
) -> tuple[Config, ...]:
    """Return the configs whose kernels are in `shard`; all where it is None."""
    if shard is None:
        return tuple(configs)
    part = Shard.parse(shard) if isinstance(shard, str) else shard
    return tuple(config for config in configs if part.holds(key(config, arch)))


@frozen
class Wanted:
    """
    The kernels of a prewarm.

    Attributes:
        arch: The target.
        specs: The spec of each kernel.
        plan: The plan of the kernels; None if they were named.
        devices: Names of the devices for which they were chosen.
    """

    arch: Arch
    specs: tuple[KernelSpec, ...]
    plan: Plan | None = None
    devices: tuple[str, ...] = ()

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configs of the wanted kernels."""
        return tuple(spec.config for spec in self.specs)


def wanted(
    what: Plan | str | Path | Iterable[Config | str],
    arch: Arch,
    store: Store,
    devices: Sequence[str] = (),
) -> Wanted:
    """
    Return the kernels of a plan, chosen for `devices`, or the given kernels; raises
    UnsupportedConfig for one that `arch` cannot run.
    """
    if isinstance(what, (str, Path)):
        what = load_plan(what)
    if isinstance(what, Plan):
        names = covered(arch, devices)
        found = plan_configs(what, arch, Chooser(lambda: store), devices=devices)
        return Wanted(arch=arch, specs=_served(found, arch), plan=what, devices=names)
    given: dict[Config, None] = {}
    if isinstance(what, Config) or not isinstance(what, Iterable):
        raise ConfigError(f"prewarm takes a plan, or several configs (got {type(what).__name__})")
    for each in what:
        if not isinstance(each, (Config, str)):
            raise ConfigError(f"prewarm takes a plan or configs (got {type(each).__name__})")
        config, _ = named(each, arch)
        require(config, arch)
        given[config] = None
    return Wanted(arch=arch, specs=_served(given, arch))


def _served(configs: Iterable[Config], arch: Arch) -> tuple[KernelSpec, ...]:
    return tuple(serving(config, arch) for config in configs)


def note(asked: Wanted, store: Store, there: Collection[str]) -> None:
    """
    Record in the store that a plan was prewarmed, if all of its kernels are there. `there` are keys
    known to be in the store; another shard may have stored others.
    """
    if asked.plan is None or store.mode != "rw":
        return
    tiers = Tiers(store)
    if all(spec.key in there or readable(tiers, spec, tells_miss=False) for spec in asked.specs):
        coverage.keep(store, Coverage.of(asked.plan, asked.arch, asked.devices))


def examine(specs: Iterable[KernelSpec], store: Store) -> list[PrewarmRow]:
    """Return a row for each kernel: ``cached``, or ``would compile``."""
    rows, tiers = [], Tiers(store)
    for spec in specs:
        found = readable(tiers, spec)
        rows.append(
            PrewarmRow(
                config=spec.config,
                name=spec.name,
                key=spec.key,
                state=PrewarmState.WOULD_COMPILE if found is None else PrewarmState.CACHED,
                bytes=0 if found is None else found[0].meta.size_bytes,
            )
        )
    return rows


def fetched(row: PrewarmRow, spec: KernelSpec, store: Store) -> PrewarmRow | None:
    """Fetch a kernel that was compiled elsewhere; return its row, None if it is not there."""
    start = time.perf_counter()
    found = fetch(Tiers(store), spec)
    if isinstance(found, str) or found[0].why_private:
        return None
    return replace(
        row,
        state=PrewarmState.CACHED if found[1] in _HERE else PrewarmState.FETCHED,
        seconds=time.perf_counter() - start,
        bytes=found[0].meta.size_bytes,
    )


def _compile(
    missing: Sequence[tuple[PrewarmRow, KernelSpec]], store: Store, jobs: int, timeout_s: float
) -> Iterator[PrewarmRow]:
    """Compile the missing kernels in processes, and yield their rows as they finish."""
    from jitgen.compile import linker, workers

    linker.driver()  # which warns if it is not CC; what processes log is not shown
    if lost := _unwritable(store):
        for row, _ in missing:
            error = f"it would not be kept: {lost}"
            yield replace(row, state=PrewarmState.FAILED, error=error)
        return
    tasks = [compile_task(store, spec.config, spec.arch, spec.text) for _, spec in missing]
    waiting = dict(enumerate(missing))
    preload = (*workers.PRELOAD, *PRELOAD)
    run = workers.run(TASK, tasks, jobs=jobs, timeout_s=timeout_s, preload=preload)
    try:
        for outcome in run:
            yield _done(*waiting.pop(outcome.index), outcome, store)
    except OSError as error:
        for row, _ in waiting.values():
            yield replace(
                row, state=PrewarmState.FAILED, error=f"no process can be started: {error}"
            )


_STATES = {
    COMPILED: PrewarmState.COMPILED,
    "remote": PrewarmState.FETCHED,
    "service": PrewarmState.FETCHED,
}
"""Outcomes by the tier from which a worker got the kernel; a service may have compiled it."""


def _done(row: PrewarmRow, spec: KernelSpec, outcome: Outcome, store: Store) -> PrewarmRow:
    """Return the result for `row`, read back from the store rather than trusted from the worker."""
    row = replace(row, seconds=outcome.seconds)
    answer = outcome.result or {}
    error = outcome.error or answer.get("error", "")
    if outcome.kind == "timeout":
        error = f"{error}: raise JITGEN_COMPILE_TIMEOUT, or take fewer jobs"
    found = None if error else readable(Tiers(store), spec)
    if found is not None:
        state = _STATES.get(answer.get("tier", COMPILED), PrewarmState.CACHED)
        return replace(row, state=state, bytes=found[0].meta.size_bytes)
    why = answer.get("why_private")
    lost = f"it was compiled, but {store.root} cannot be written (mode {store.mode})"
    lost = f"it was compiled, but is not kept: {why}" if why else lost
    return replace(row, state=PrewarmState.FAILED, error=error or lost)
