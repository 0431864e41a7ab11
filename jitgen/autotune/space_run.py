# SPDX-License-Identifier: Apache-2.0
"""
The search of a space: compile a few kernels, then verify each and time it in turn with the
selector's choice.

Clocks and temperature drift within minutes, so times measured an hour apart cannot be compared.
Each kernel is timed in turn with the selector's choice, and the ratios are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jitgen.autotune.bench import Bench, NotMeasured
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.process import Stuck
from jitgen.autotune.space import Planned, SpacePlan, Trial, TrialState, keep
from jitgen.autotune.tuner import HUNG, require_plain
from jitgen.compile import capacity
from jitgen.errors import CacheError
from jitgen.plans import prewarm as compiling
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.settings import settings
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Store

Progress = Callable[[Trial, int, int, float], None]
"""
Called with each trial, the number of finished trials, the number of all trials, and the expected
remaining seconds.
"""

LEFT = "there was no time for it"


@frozen
class SpaceReport:
    """
    Results of a search for one problem.

    Attributes:
        plan: The plan of the search.
        trials: The result of each kernel that the model did not prune, best first; then those
            without a time.
        wall_s: Seconds from beginning to end.
    """

    plan: SpacePlan
    trials: tuple[Trial, ...]
    wall_s: float

    @property
    def best(self) -> Trial | None:
        """The fastest kernel; None if no kernel has a time."""
        first = self.trials[0] if self.trials else None
        return first if first is not None and first.ratio is not None else None

    def count(self, state: TrialState) -> int:
        """Return how many kernels are in `state`."""
        return sum(trial.state is state for trial in self.trials)


def search(
    plan: SpacePlan,
    store: Store,
    *,
    budget_s: float,
    time_limit_s: float,
    on_trial: Progress | None = None,
) -> SpaceReport:
    """
    Try the kernels of `plan` for at most `budget_s`; store each result at once.

    Args:
        plan: The plan of the search.
        store: The store of kernels and results.
        budget_s: Seconds after which no trial begins. A trial that is not expected to fit does not
            begin either.
        time_limit_s: Limit in seconds for verifying one kernel, and for timing it.
        on_trial: See `Progress`.

    Raises:
        NoDevice: This machine has no device for the target.
        SettingError: JITGEN_OVERRIDE is set.
        CacheError: The store cannot be written.
        Stuck: A kernel hangs so that its process cannot be ended; it is excluded.
    """
    start = time.perf_counter()
    _require(plan, store)
    fitting, left = plan.within(budget_s)
    trials = [*plan.known, *(_without(each, TrialState.LEFT, LEFT) for each in left)]
    run = _Run(plan, store, time_limit_s)
    with run.bench:
        for number, trial in enumerate(run.trials(fitting, start + budget_s), 1):
            trials.append(trial)
            if on_trial is not None:
                on_trial(trial, number, len(fitting), run.left_s(fitting[number:]))
    return SpaceReport(
        plan=plan,
        trials=tuple(sorted(trials, key=_rank)),
        wall_s=time.perf_counter() - start,
    )


def _require(plan: SpacePlan, store: Store) -> None:
    if plan.arch.is_gpu and not device.gpu_at_hand(plan.arch):
        raise NoDevice(
            f"tuning for {plan.arch} needs such a GPU, and none is here; --dry-run says what it "
            "would do there"
        )
    require_plain()
    if store.mode != "rw":
        raise CacheError(
            f"tuning writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
        )


class _Run:
    """
    The state of one search: its store, its measuring process, and how fast it has been so far.
    """

    def __init__(self, plan: SpacePlan, store: Store, time_limit_s: float) -> None:
        environment = {
            "JITGEN_CACHE_DIR": str(store.root.absolute()),
            "JITGEN_CACHE": store.mode,
            "JITGEN_ON_MISS": "error",
        }
        self.bench = Bench(plan.arch, environment=environment, time_limit_s=time_limit_s)
        self._plan, self._store = plan, store
        self._expected_s = self._spent_s = 0.0
        self._why: dict[str, str] = {}

    def left_s(self, rest: Sequence[Planned]) -> float:
        """Return the expected seconds of the remaining trials, at the speed so far."""
        factor = self._spent_s / self._expected_s if self._expected_s else 1.0
        return factor * sum(each.seconds for each in rest)

    def trials(self, planned: Sequence[Planned], end: float) -> Iterator[Trial]:
        """
        Yield the trials, in order. From `end` on, a time of `time.perf_counter`, no kernel is
        tried, and its trial has the state ``left``.
        """
        self._compile([self._plan.chosen])
        size = 2 * capacity.default_jobs(settings.jobs)
        for first in range(0, len(planned), size):
            some = planned[first : first + size]
            start = time.perf_counter()
            if start < end:
                self._compile(some)
            compile_s = (time.perf_counter() - start) / len(some)
            for each in some:
                yield self._trial(each, compile_s, end)

    def _trial(self, each: Planned, compile_s: float, end: float) -> Trial:
        start = time.perf_counter()
        if start >= end:
            return _without(each, TrialState.LEFT, LEFT)
        found = self._measured(each)
        seconds = compile_s + time.perf_counter() - start
        self._spent_s += seconds
        self._expected_s += each.seconds
        found = replace(found, seconds=seconds)
        if found.state in (TrialState.MEASURED, TrialState.EXCLUDED):
            keep(self._store, self._plan.problem, self._plan.arch, {each.name: each.key}, found)
        return found

    def _compile(self, some: Sequence[Planned]) -> None:
        """
        Compile the missing kernels, unless compiling is off, and note those that stay missing.
        """
        report = compiling.prewarm(
            [each.config for each in some],
            arch=self._plan.arch,
            dry_run=settings.on_miss == "error",
            store=self._store,
        )
        for row in report.rows:
            if row.state is compiling.PrewarmState.WOULD_COMPILE:
                self._why[row.name] = "not compiled, and compiling is off"
            elif row.error:
                self._why[row.name] = f"did not compile: {' '.join(row.error.split())}"

    def _measured(self, each: Planned) -> Trial:
        """Verify and time one kernel, in turn with the selector's choice."""
        chosen = self._plan.chosen.name
        for name in (chosen, each.name):
            if name in self._why:
                return _without(each, TrialState.MISSING, self._why[name])
        names = list(dict.fromkeys([chosen, each.name]))
        try:
            found = self.bench.measure(self._plan.problem, names)
        except NotMeasured as error:
            return _without(each, TrialState.MISSING, str(error))
        except Stuck as error:
            # If neither is known to hang, the chosen kernel is the one that runs elsewhere.
            for name in error.kernels or (each.name,):
                tuned.exclude(self._store, self._plan.arch, name, HUNG)
            raise
        if reason := found.faulty.get(each.name):
            tuned.exclude(self._store, self._plan.arch, each.name, reason)
            return _without(each, TrialState.EXCLUDED, reason)
        if reason := found.unfit.get(each.name):
            return _without(each, TrialState.EXCLUDED, reason)
        if each.name not in found.times_us or chosen not in found.times_us:
            told = {**found.missing, **found.faulty, **found.unfit}
            return _without(each, TrialState.MISSING, "; ".join(told.values()))
        us = found.times_us[each.name]
        return Trial(
            name=each.name,
            state=TrialState.MEASURED,
            cost_us=each.cost_us,
            time_us=us,
            ratio=us / found.times_us[chosen],
        )


def _without(each: Planned, state: TrialState, reason: str) -> Trial:
    return Trial(name=each.name, state=state, cost_us=each.cost_us, reason=reason)


def _rank(trial: Trial) -> tuple[bool, float, float, str]:
    ratio = 0.0 if trial.ratio is None else trial.ratio
    return trial.ratio is None, ratio, trial.cost_us, trial.name
