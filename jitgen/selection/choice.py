# SPDX-License-Identifier: Apache-2.0
"""
Chooses the config for a problem, with the reason and the other candidates.

A choice is made once for all numbers of rows in a bucket. So a thousand batch sizes need only a few
decisions, and the kernels for a range of sizes are found by going through its buckets. Each target
defines the ends of the buckets for each operation.

With `min_latency`, calls with few rows are optimised for latency: if the rows of a group fit in one
tile of the smallest height, the choice is that for one row. A target may have a special kernel for
this, which is then the only candidate; other targets take the best kernel for one row.

With invariant `numerics`, the candidates are kernels that give a row the same bits:
`jitgen.selection.numerics`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from jitgen.cache.tuned import troubles
from jitgen.config import Arch, Config, Numerics
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.problem import Problem
from jitgen.errors import InputError, UnsafeCacheRoot, UnsupportedConfig
from jitgen.events import warn_once
from jitgen.selection import measurements as tuned
from jitgen.selection.bias_fallback import with_fallback
from jitgen.selection.device import chosen_for
from jitgen.selection.measurements import Measurements, Source
from jitgen.settings import settings
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import rules, rules_for
from jitgen.targets.protocol import AnyRules, Candidate, Device

if TYPE_CHECKING:
    from jitgen.cache import Store

MIN_LATENCY_ROWS = 8
"""Mean rows of a group up to which `min_latency` applies: the rows of the smallest tile."""

_DYNAMIC = "dynamic"
"""The default mode, defined here so that `jitgen.selection.modes` need not be imported."""


_Problem = TypeVar("_Problem", bound=Problem)


def bucket(problem: _Problem, arch: Arch) -> _Problem:
    """
    Return the representative of the bucket of `problem`: the same sizes with the rows of the
    bucket's upper edge.
    """
    return _at_edge(problem, edges_of(problem, arch))


def _at_edge(problem: _Problem, edges: tuple[int, ...]) -> _Problem:
    return canonical(problem.with_mean(edge(edges, problem.rows_per_group)))


def edge(edges: tuple[int, ...], rows: int) -> int:
    """Return the edge of the bucket that a mean of `rows` rows a group falls into."""
    return edges[min(bisect_left(edges, rows), len(edges) - 1)]


def buckets(problem: _Problem, arch: Arch, rows: tuple[int, int]) -> Iterator[_Problem]:
    """
    Yield the representative of every bucket that problems like `problem` fall into.

    Args:
        problem: All sizes but the rows.
        arch: The target.
        rows: Smallest and largest mean of rows per group, rounded up to whole rows; every mean
            between occurs.
    """
    edges = edges_of(problem, arch)
    first, last = (edge(edges, mean) for mean in rows)
    within = (problem.with_mean(each) for each in edges if first <= each <= last)
    yield from dict.fromkeys(canonical(with_defaults(each)) for each in within)


def with_defaults(problem: _Problem) -> _Problem:
    """
    Return `problem` with `min_latency` and invariant `numerics` set where they are None and
    JITGEN_MIN_LATENCY or JITGEN_NUMERICS asks for them.
    """
    problem = with_numerics(problem)
    if (
        isinstance(problem, GroupedGemmProblem)
        and problem.min_latency is None
        and settings.min_latency
    ):
        return replace(problem, min_latency=True)
    return problem


def numerics_of(problem: Problem) -> Numerics:
    """Return the numerics of the problem, or else JITGEN_NUMERICS."""
    asked = problem.numerics if isinstance(problem, GroupedGemmProblem) else None
    return Numerics(asked or settings.numerics)


def with_numerics(problem: _Problem) -> _Problem:
    """
    Return `problem` with invariant numerics, if JITGEN_NUMERICS says so and the problem has the
    field.
    """
    if isinstance(problem, GroupedGemmProblem) and numerics_of(problem) is Numerics.INVARIANT:
        return replace(problem, numerics=Numerics.INVARIANT)
    return problem


def without_hints(problem: _Problem) -> _Problem:
    """
    Return `problem` without `numerics`, as measurements are stored: times do not depend on it.
    """
    if isinstance(problem, GroupedGemmProblem) and problem.numerics is not None:
        return replace(problem, numerics=None)
    return problem


def canonical(problem: _Problem) -> _Problem:
    """
    Return the problem for which the choice for `problem`, the edge of a bucket, is made: with
    `min_latency` and few rows, one row per group; with more rows, the same problem without
    `min_latency`.
    """
    if not isinstance(problem, GroupedGemmProblem) or problem.min_latency is None:
        return problem
    if problem.min_latency and problem.rows_per_group <= MIN_LATENCY_ROWS:
        return problem.with_mean(1)
    return replace(problem, min_latency=None)


def edges_of(problem: Problem, arch: Arch) -> tuple[int, ...]:
    """Return the ends of the buckets of problems like `problem`."""
    return rules(arch, problem.op).row_edges


_MOST_CHOICES = 4096
_MOST_DOUBTS = 1000
"""
Number of unreadable measurements after which choices are cached anyway, so that a broken disk does
not make every call choose again.
"""


class Choice(NamedTuple):
    """
    The kernel chosen for a problem, and the reasons.

    Attributes:
        config: The best candidate's config.
        arch: The target.
        source: What decided: measurements of this machine (``tuned``) or of jitgen's tables
            (``shipped``), the ``model``, or another requested rule (``static``, ``passes``).
        why: The reason in one sentence.
        candidates: All candidates: `config` first, then in the order of their measured times, or
            else of their predicted times.
        times_us: Measured microseconds of the candidates that were measured.
        excluded: The kernels that may not be chosen, and why: they failed, hung or were wrong when
            they were measured, or add up in an order that invariant numerics do not allow.
    """

    config: Config
    arch: Arch
    source: Source
    why: str
    candidates: tuple[Candidate, ...]
    times_us: Mapping[Config, float]
    excluded: Mapping[Config, str]


class Chooser:
    """
    The choices of one session: by the store's measurements, otherwise by the cost model.

    Safe to use from any thread.

    Args:
        store: Function that returns the store, or None if there is none.

    Attributes:
        doubts: Number of times that measurements could not be read. A choice that was made then is
            cached neither here nor by callers.
    """

    def __init__(self, store: Callable[[], Store | None]) -> None:
        self.doubts = 0
        self._store = store
        self._chosen: dict[tuple[object, ...], Choice] = {}

    def select(
        self,
        problem: Problem,
        arch: Arch | str | None = None,
        *,
        device: str | None = None,
        num_sms: int | None = None,
        use_measured: bool = True,
        mode: str | None = None,
    ) -> Choice:
        """
        Return the choice of the config to compute `problem` with.

        Measurements decide where there are any for the problem's bucket: first those that
        `jitgen tune` made on this device, then those shipped with jitgen, where these correct the
        model: see `jitgen.selection.measurements.Measured.winner`. Otherwise the model decides. All
        numbers of rows in a bucket get the same choice, which is made once and cached.

        Args:
            problem: The sizes.
            arch: The target; None for JITGEN_ARCH, else the target of the GPU, else ``cpu``.
            device: Name of the device to choose for; None for JITGEN_DEVICE, else the present GPU,
                else the first device of the target; an empty name for the present GPU, even if
                JITGEN_DEVICE is set. See `jitgen.selection.device.chosen_for`.
            num_sms: Number of SMs to use; None for all of the device. With another number, only the
                model decides.
            use_measured: Whether measurements are used; if not, the model alone decides.
            mode: The rule: ``dynamic``, as described above, ``static`` or ``passes``; None for
                JITGEN_SELECT. See `jitgen.selection.modes`.

        Raises:
            InputError: `problem` is not a problem.
            ConfigError: The target, the device or the mode is not known, or the target has no table
                for ``static``.
            UnsupportedConfig: The target has no kernel for the problem's types or sizes, or each of
                them failed when it was measured here, or none adds up in the order that invariant
                numerics need.
        """
        if not hasattr(problem, "op"):
            raise InputError("problem", f"must be a Problem (got {type(problem).__name__})")
        target = default_arch() if arch is None else Arch.parse(arch)
        said = rules_for(problem, target)
        numerics = numerics_of(problem)
        place = without_hints(_at_edge(with_defaults(problem), said.row_edges))
        found, asked = chosen_for(target, device)
        by = _mode(settings.select if mode is None else mode, problem)
        if not use_measured or num_sms not in (None, found.num_sms):
            return _choose(place, target, said, found, num_sms or found.num_sms, by, numerics)
        # New records count at once.
        key = place, target, found, asked, by, numerics, tuned.generation()
        choice = self._chosen.get(key)
        if choice is None:
            if len(self._chosen) >= _MOST_CHOICES:
                self._chosen.clear()
            before = troubles()
            choice = _choose(place, target, said, found, found.num_sms, by, numerics)
            measured = self._measured(place, target, asked, by)
            if measured.measured or measured.excluded:
                choice = _combine(choice, measured, said.confidence_note(place, found))
            if troubles() == before or self.doubts >= _MOST_DOUBTS:
                self._chosen[key] = choice
            else:  # for example no descriptors left: measurements may decide otherwise later
                self.doubts += 1
        return choice

    def with_and_without(self) -> tuple[Chooser, ...]:
        """
        Return this chooser, and one without the store's measurements, for processes with another
        store; if the store has none, only the latter.
        """
        store, without = self._opened(), Chooser(lambda: None)
        return (without,) if store is None or store.tuned.is_empty else (self, without)

    def forget(self) -> None:
        """Drop all cached choices, so that the next one reads the store again."""
        self._chosen.clear()

    def _measured(self, problem: Problem, arch: Arch, asked: str, mode: str) -> Measurements:
        """
        Return the measurements that apply to `problem`, the representative of its bucket; for modes
        other than dynamic only which kernels are excluded.
        """

        def lookup(of: Problem) -> Measurements:
            return tuned.lookup(of, arch, self._opened, asked)

        found = lookup(problem)
        if isinstance(problem, GroupedGemmProblem) and problem.bias:
            found = with_fallback(problem, found, arch, lookup)
        if mode != _DYNAMIC:  # times change nothing
            return Measurements(excluded=found.excluded)
        return found

    def _opened(self) -> Store | None:
        """Return the store; None if there is none, or, with a warning, if its root is not safe."""
        try:
            return self._store()
        except UnsafeCacheRoot as error:
            warn_once("tuned root", "ignoring what was measured here: %s", error)
            return None


def _mode(word: str, problem: Problem) -> str:
    """Return the mode called `word` for `problem`; raises as `Mode.of`."""
    if word == _DYNAMIC:
        return word
    from jitgen.selection.modes import Mode

    return Mode.of(word, problem)


@lru_cache(maxsize=4096)
def _choose(
    problem: Problem,
    arch: Arch,
    said: AnyRules,
    device: Device,
    num_sms: int,
    mode: str,
    numerics: Numerics,
) -> Choice:
    """
    Return the choice by the cost model, or by the rule `mode`, without measurements; `said` are the
    rules of the kernels for `problem`.
    """
    configs, left_out = _configs(problem, arch, said, numerics)
    every = [said.predict(problem, config, device, num_sms) for config in configs]
    candidates, rule = tuple(sorted(every, key=lambda candidate: candidate.cost)), ""
    if mode != _DYNAMIC:
        from jitgen.selection.modes import Mode, ranked

        candidates, rule = ranked(Mode(mode), problem, arch, candidates)
    predicted = prediction(candidates, said.confidence_note(problem, device))
    return Choice(
        config=candidates[0].config,
        arch=arch,
        source=Source(mode) if rule else Source.MODEL,
        why=f"{rule}; {predicted}" if rule else predicted,
        candidates=candidates,
        times_us={},
        excluded=left_out,
    )


@lru_cache(maxsize=64)  # a plan asks for every device in turn
def _configs(
    problem: Problem, arch: Arch, said: AnyRules, numerics: Numerics
) -> tuple[tuple[Config, ...], dict[Config, str]]:
    """Return the configs that may be chosen, and why other configs of the target may not."""
    configs = said.candidates(problem)
    if not configs:
        raise UnsupportedConfig(
            f"{arch} has no kernel for {problem.types}; jitgen configs --arch {arch} lists what it "
            "has",
            code="E_MMA",
        )
    if numerics is not Numerics.INVARIANT:
        return configs, {}
    from jitgen.selection.numerics import keeping

    kept = keeping(configs, said.sums)
    if not kept.configs:
        raise UnsupportedConfig(
            f"{arch} has no kernel for {problem.types} that adds up in its order, "
            f"{said.sums.words}: numerics=fast has some",
            code="E_NUMERICS",
        )
    return kept.configs, kept.left_out


def _combine(by_model: Choice, measurements: Measurements, note: str) -> Choice:
    """
    Return the choice by `measurements` among the candidates of `by_model`, or the model's where
    they decide nothing; `note` says what the model was not fitted to.
    """
    arch = by_model.arch
    every = {candidate.config.name(arch): candidate for candidate in by_model.candidates}
    usable = {name: every[name] for name in every if name not in measurements.excluded}
    failed = {
        every[name].config: measurements.excluded[name] for name in every if name not in usable
    }
    excluded = {**by_model.excluded, **failed}
    if not usable:
        name, reason = next((name, measurements.excluded[name]) for name in every)
        raise UnsupportedConfig(
            f"every kernel for this problem was excluded when it was measured here; {name}: "
            f"{reason}; measure them again with: jitgen tune --again",
            code="E_EXCLUDED",
        )
    times = {name: time for name, time in measurements.times_us.items() if name in usable}
    # Measurements of former candidates, and of kernels that failed since, decide nothing.
    believed, winner = None, next(iter(usable))
    first, name = by_model.candidates[0], by_model.config.name(arch)
    for measured in measurements.measured:
        if found := measured.winner(usable, first, name):
            believed, winner = measured, found
            break
    best = usable.pop(winner)
    others = sorted(usable.items(), key=lambda item: times.get(item[0], item[1].cost))
    candidates = (best, *(candidate for _, candidate in others))
    if believed is None:
        is_by_rule = by_model.source is not Source.MODEL and best.config == by_model.config
        predicted = prediction((best, *(usable[name] for name in usable)), note)
        why = by_model.why if is_by_rule else predicted
    else:
        why = believed.reason(best, first, arch)
    if by_model.config in excluded:
        why += f"; the model's choice, {shape(first)}, is excluded: "
        why += excluded[by_model.config]
    return Choice(
        config=best.config,
        arch=arch,
        source=believed.source if believed else by_model.source,
        why=why,
        candidates=candidates,
        times_us={every[name].config: time for name, time in times.items()},
        excluded=excluded,
    )


def prediction(candidates: tuple[Candidate, ...], note: str) -> str:
    """
    Return the reason for a choice by the cost model; the best of `candidates` comes first; `note`
    says what the model was not fitted to.
    """
    best, *others = candidates
    text = (
        f"{shape(best)} is predicted at {best.cost:.1f} us, limited by {best.limiter}: "
        f"{best.waves} wave{'s' * (best.waves != 1)}, {best.padding_ratio:.2f}x the work needed"
    )
    if others:
        text += f"; next is {shape(others[0])} at {others[0].cost:.1f} us"
    return f"{text}; an estimate: {note}" if note else text


def shape(candidate: Candidate) -> str:
    """Return a short text that distinguishes a candidate from the others."""
    return str(candidate.config.short)
