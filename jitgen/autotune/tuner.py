# SPDX-License-Identifier: Apache-2.0
"""
Tunes problems: compiles and measures the kernels of problems without a record, and stores the
records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jitgen.autotune.bench import Bench, Measurements, NotMeasured
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.process import Stuck
from jitgen.autotune.report import TuningReport, TuningRow, TuningState
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.problem import Problem
from jitgen.errors import CacheError, ConfigError, SettingError
from jitgen.plans import prewarm as compiling
from jitgen.runtime.session import current, select
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket, without_hints
from jitgen.selection.numerics import regardless
from jitgen.selection.record import TuningRecord
from jitgen.settings import settings
from jitgen.targets.devices import default_arch
from jitgen.targets.protocol import Candidate

if TYPE_CHECKING:
    from jitgen.cache import Store

TIME_LIMIT_S = 60.0
"""Limit in seconds for verifying one kernel, and for timing it; after that it counts as hung."""

HUNG = "it hung, and could not be ended"
"""Why a kernel is excluded whose process could not be ended."""


def buckets_of(
    problems: Iterable[GroupedGemmProblem],
    arch: Arch,
    calls: Mapping[Problem, float] | None = None,
) -> list[GroupedGemmProblem]:
    """
    Return the problems that represent the buckets of `problems`, each once, in the order of their
    `kind`; with `calls`, those with most calls first.

    Raises:
        ConfigError: The operation of a problem cannot be measured.
    """
    problems = list(problems)
    if others := sorted({each.op for each in problems} - {GroupedGemmProblem.op}):
        raise ConfigError(
            f"only {GroupedGemmProblem.op} can be measured, not {others[0]}, which the model alone "
            "chooses for"
        )
    counts: dict[Problem, float] = {}
    for problem, count in (calls or {}).items():
        counts[without_hints(problem)] = counts.get(without_hints(problem), 0.0) + count
    every = {without_hints(bucket(problem, arch)) for problem in problems}
    return sorted(every, key=lambda each: (-counts.get(each, 0.0), each.kind))


def tune(
    problems: Iterable[GroupedGemmProblem],
    *,
    arch: Arch | str | None = None,
    again: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    calls: Mapping[Problem, float] | None = None,
    on_compile: Callable[[compiling.PrewarmRow, int, int], None] | None = None,
    on_progress: Callable[[TuningRow, int, int], None] | None = None,
    store: Store | None = None,
) -> TuningReport:
    """
    Measure the configs that the selector may choose for `problems`, and store the results, by which
    the selector chooses from then on.

    Kernels that are not compiled are compiled first, unless compiling is off. Each problem is
    recorded as soon as it is measured, so that an interrupted run continues where it stopped. Other
    processes find the records when they next start.

    Args:
        problems: The problems; for each, the problem that represents its bucket is measured.
        arch: The target; None for the target of this process.
        again: Measure recorded problems, too, and try excluded kernels again.
        time_limit_s: Limit in seconds for verifying one kernel, and for timing it; after that it
            counts as hung.
        calls: Number of calls of each problem, as in `jitgen.plans.Plan.calls`; problems with most
            calls are measured first. None if calls were not counted.
        on_compile: Called for every kernel that is looked up or compiled before measuring; see
            `jitgen.prewarm`.
        on_progress: Called on this thread after every problem, with the number of finished problems
            and the number of all.
        store: The store of the records; None for the store of this process.

    Raises:
        NoDevice: This machine has no device for the target.
        SettingError: JITGEN_OVERRIDE is set.
        CacheError: The store cannot be written.
        Stuck: A kernel hangs so that its process cannot be ended; it is excluded unless it hung
            while several were timed in turn and timing each alone did not show which.
    """
    start = time.perf_counter()
    target = default_arch() if arch is None else Arch.parse(arch)
    run = _Run(target, current.get().store if store is None else store, again=again)
    places = buckets_of(problems, target, calls)
    waiting = [place for place in places if run.known(place) is None]
    run.compile(run.configs(waiting), on_compile)
    rows: list[TuningRow] = []
    try:
        with run.bench(time_limit_s) as bench:
            for place in places:
                rows.append(run.measure(bench, place) if place in waiting else run.row(place))
                if on_progress is not None:
                    on_progress(rows[-1], len(rows), len(places))
    finally:
        current.get().forget()
    return TuningReport(
        arch=target,
        device=device.device_name(target),
        rows=tuple(rows),
        wall_s=time.perf_counter() - start,
    )


def require_plain() -> None:
    """
    Check that kernels are those of the templates, without edits.

    Raises:
        SettingError: JITGEN_OVERRIDE is set: an edited kernel would be measured under the name of
            the original, for which the result decides.
    """
    if settings.override is not None:
        raise SettingError(
            "JITGEN_OVERRIDE is set, and tuning measures kernels as the templates give them: unset "
            "it, and time an edited kernel with jitgen bench kernel FILE"
        )


class _Run:
    """The state of a run: the kernels that must not or cannot be tried."""

    def __init__(self, arch: Arch, store: Store, *, again: bool) -> None:
        if arch.is_gpu and not device.gpu_at_hand(arch):
            raise NoDevice(f"tuning for {arch} needs such a GPU, and none is here")
        require_plain()
        if store.mode != "rw":
            raise CacheError(
                f"tuning writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
            )
        self.store = store
        self._arch = arch
        self._again = again
        self._excluded = tuned.exclusions(store, arch)
        self._missing: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    def bench(self, time_limit_s: float) -> Bench:
        """Return the `Bench`; its processes see the same kernels, and compile none."""
        environment = {
            "JITGEN_CACHE_DIR": str(self.store.root.absolute()),
            "JITGEN_CACHE": self.store.mode,
            "JITGEN_ON_MISS": "error",
        }
        return Bench(self._arch, environment=environment, time_limit_s=time_limit_s)

    def known(self, problem: GroupedGemmProblem) -> TuningRecord | None:
        """Return the record of `problem`; None if it has none, or a kernel has to be measured."""
        record = tuned.recorded(self.store, problem, self._arch)
        if record is None or self._again or record.winner in self._excluded:
            return None
        known = {*record.times_us, *record.excluded, *self._excluded}
        return record if known.issuperset(self._names(problem)) else None

    def row(self, problem: GroupedGemmProblem) -> TuningRow:
        """Return the row of a problem that has a record."""
        return self._row(problem, TuningState.RECORDED, self.known(problem))

    def configs(self, problems: list[GroupedGemmProblem]) -> list[Config]:
        """Return every config to try for `problems`, with `again` also excluded ones."""
        found = dict.fromkeys(
            candidate.config for problem in problems for candidate in self._candidates(problem)
        )
        if self._again:
            for config in found:
                if self._excluded.pop(config.name(self._arch), None) is not None:
                    tuned.readmit(self.store, self._arch, config.name(self._arch))
        return [config for config in found if config.name(self._arch) not in self._excluded]

    def compile(
        self,
        configs: list[Config],
        on_compile: Callable[[compiling.PrewarmRow, int, int], None] | None,
    ) -> None:
        """
        Compile the missing kernels, unless compiling is off, and note those that stay missing.
        """
        if not configs:
            return
        report = compiling.prewarm(
            configs,
            arch=self._arch,
            dry_run=settings.on_miss == "error",
            on_progress=on_compile,
            store=self.store,
        )
        for row in report.rows:
            if row.state is compiling.PrewarmState.WOULD_COMPILE:
                self._missing[row.name] = "not compiled, and compiling is off"
            elif row.state is compiling.PrewarmState.FAILED:
                # A refusal of the compiler is remembered; a kernel that it did not get to is not.
                is_refused = self.store.index.failure(row.key) is not None
                reasons = self._refused if is_refused else self._missing
                reasons[row.name] = f"did not compile: {' '.join(row.error.split())}"

    def measure(self, bench: Bench, problem: GroupedGemmProblem) -> TuningRow:
        """Measure `problem`, and record it."""
        start = time.perf_counter()
        names = self._names(problem)
        missing = {name: self._missing[name] for name in names if name in self._missing}
        bad = {**self._refused, **self._excluded}
        untried = {name: bad[name] for name in names if name in bad}
        wanted = [name for name in names if name not in missing and name not in untried]
        state, record, error = TuningState.MEASURED, None, ""
        try:
            if not wanted:
                name, why = next(iter({**missing, **untried}.items()))
                raise NotMeasured(f"no kernel can be tried; {name}: {why}")
            found = bench.measure(problem, wanted)
        except NotMeasured as reason:
            state, error = TuningState.FAILED, str(reason)
        except Stuck as reason:
            for name in reason.kernels:
                self._exclude(name, HUNG)
            raise
        else:
            record = self._record(problem, found, untried)
            missing |= found.missing
        seconds = time.perf_counter() - start
        row = self._row(problem, state, record)
        return replace(row, missing=missing, seconds=seconds, error=error)

    def _record(
        self, problem: GroupedGemmProblem, found: Measurements, untried: dict[str, str]
    ) -> TuningRecord:
        for name, reason in found.faulty.items():
            self._exclude(name, reason)
        record = TuningRecord(
            problem=problem,
            winner=min(found.times_us, key=lambda name: found.times_us[name]),
            times_us={name: round(time, 3) for name, time in found.times_us.items()},
            excluded={**untried, **found.unfit, **found.faulty},
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        tuned.record(self.store, self._arch, record)
        return record

    def _exclude(self, name: str, reason: str) -> None:
        self._excluded[name] = reason
        tuned.exclude(self.store, self._arch, name, reason)

    def _row(
        self, problem: GroupedGemmProblem, state: TuningState, record: TuningRecord | None
    ) -> TuningRow:
        by_model = self._names(problem)[0]
        return TuningRow(
            problem=problem, arch=self._arch, state=state, record=record, by_model=by_model
        )

    def _names(self, problem: GroupedGemmProblem) -> list[str]:
        """
        Return the names of all kernels that may be chosen for `problem`, the model's choice first.
        """
        return [candidate.config.name(self._arch) for candidate in self._candidates(problem)]

    def _candidates(self, problem: GroupedGemmProblem) -> tuple[Candidate, ...]:
        """Return all configs that may be chosen, under any setting of numerics."""
        return select(regardless(problem), self._arch, use_measured=False).candidates
