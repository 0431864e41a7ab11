# SPDX-License-Identifier: Apache-2.0
"""One answer for a problem: the config, the reason, and what else was considered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from jitgen.errors import UnsupportedConfig
from jitgen.model import Arch, KernelConfig, Operands, Problem, Schedule
from jitgen.select import tuned
from jitgen.select.bucket import bucket
from jitgen.select.menu import menu
from jitgen.select.rule import NUM_SMS, Candidate, rank
from jitgen.select.target import default_arch
from jitgen.select.tuned import Known, Measured, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    What was chosen for a problem.

    Attributes:
        config: The best candidate's config.
        arch: The target.
        source: What decided: measurements made here (``tuned``) or shipped with jitgen
            (``shipped``), or the ``model``.
        why: The reason in one sentence.
        candidates: Everything that may be chosen: first `config`, then by the measured time where
            there is one, else by the predicted one.
        times_us: Measured microseconds of the candidates that were measured.
        excluded: What may not be chosen, and why: it failed, hung or was wrong when measured.
    """

    config: KernelConfig
    arch: Arch
    source: Source
    why: str
    candidates: tuple[Candidate, ...]
    times_us: Mapping[KernelConfig, float] = field(hash=False)
    excluded: Mapping[KernelConfig, str] = field(hash=False)


def select(
    problem: Problem,
    arch: Arch | str | None = None,
    *,
    num_sms: int = NUM_SMS,
    use_measured: bool = True,
) -> Choice:
    """
    Return the config to compute `problem` with.

    Measurements decide where there are any for the problem's bucket, first those that `jitgen tune`
    made on this device, then those shipped with jitgen; else the model does. Every row count of a
    bucket gets the same answer, which is found once and remembered.

    Args:
        problem: The sizes.
        arch: The target; None for JITGEN_ARCH, else the GPU's, else ``cpu``.
        num_sms: SMs to fill. `grouped_gemm` leaves it at its default, so that what it chooses does
            not depend on the machine and can be prewarmed on another. With another number only the
            model is asked.
        use_measured: Whether measurements count; without them the model decides alone.

    Raises:
        UnsupportedConfig: The target has no kernel for the problem's types, or each of them failed
            when it was measured here.
    """
    target = default_arch() if arch is None else Arch.parse(arch)
    place = bucket(problem, target)
    if not use_measured or num_sms != NUM_SMS:
        return _choose(place, target, num_sms)
    return _choose_known(place, target, tuned.generation())


def forget() -> None:
    """
    Forget every answer, so that the next one asks the cache that the settings name then.

    `jitgen.runtime.registry.reset` does so.
    """
    _choose_known.cache_clear()


@lru_cache(maxsize=4096)
def _choose(problem: Problem, arch: Arch, num_sms: int) -> Choice:
    candidates = _candidates(problem, arch, num_sms)
    return Choice(
        config=candidates[0].config,
        arch=arch,
        source=Source.MODEL,
        why=_prediction(candidates),
        candidates=candidates,
        times_us={},
        excluded={},
    )


@lru_cache(maxsize=4096)
def _choose_known(
    problem: Problem,
    arch: Arch,
    generation: int,  # noqa: ARG001  # what this process has recorded counts at once
) -> Choice:
    known = tuned.lookup(problem, arch)
    by_model = _choose(problem, arch, NUM_SMS)
    if not known.measured and not known.excluded:
        return by_model
    return _combine(by_model, known)


def _candidates(problem: Problem, arch: Arch, num_sms: int) -> tuple[Candidate, ...]:
    operands = Operands(
        a_dtype=problem.a_dtype,
        b_dtype=problem.a_dtype,
        out_dtype=problem.out_dtype,
        scale_granularity=problem.scale_granularity,
    )
    configs = menu(arch, problem.layout, operands)
    if not configs:
        raise UnsupportedConfig(
            f"{arch} has no kernel for {operands.a_dtype} x {operands.b_dtype} -> "
            f"{operands.out_dtype} with {operands.scale_granularity} scales; jitgen configs "
            f"--arch {arch} lists what it has",
            code="E_MMA",
        )
    return rank(problem, configs, arch, num_sms)


def _combine(by_model: Choice, known: Known) -> Choice:
    """Return the choice that takes the model's candidates and what is known of them."""
    arch = by_model.arch
    every = {candidate.config.name(arch): candidate for candidate in by_model.candidates}
    usable = {name: every[name] for name in every if name not in known.excluded}
    excluded = {every[name].config: known.excluded[name] for name in every if name not in usable}
    if not usable:
        name, reason = next((name, known.excluded[name]) for name in every)
        raise UnsupportedConfig(
            f"every kernel for this problem was excluded when it was measured here; {name}: "
            f"{reason}; measure them again with: jitgen tune --again",
            code="E_EXCLUDED",
        )
    times = {name: time for name, time in known.times_us.items() if name in usable}
    # What the menu has no longer, or what failed since, decides nothing.
    believed, winner = None, next(iter(usable))
    for measured in known.measured:
        if fastest := measured.record.fastest(usable.keys()):
            believed, winner = measured, fastest
            break
    best = usable.pop(winner)
    others = sorted(usable.items(), key=lambda item: times.get(item[0], item[1].cost))
    candidates = (best, *(candidate for _, candidate in others))
    if believed is None:
        why = _prediction((best, *(usable[name] for name in usable)))
    else:
        why = _comparison(best, by_model, believed, winner)
    if by_model.config in excluded:
        why += f"; the model's choice, {_shape(by_model.candidates[0])}, is excluded: "
        why += excluded[by_model.config]
    return Choice(
        config=best.config,
        arch=arch,
        source=believed.source if believed else Source.MODEL,
        why=why,
        candidates=candidates,
        times_us={every[name].config: time for name, time in times.items()},
        excluded=excluded,
    )


def _comparison(best: Candidate, by_model: Choice, measured: Measured, winner: str) -> str:
    """Return the reason where something was measured: the time, and how far ahead that is."""
    record, first = measured.record, by_model.candidates[0]
    time = record.times_us[winner]
    text = f"{_shape(best)} took {time:.1f} us on {measured.device} on {record.date[:10]}"
    if measured.source is Source.SHIPPED:
        text += " (shipped table)"
    if first.config == best.config:
        return f"{text}, and is the model's choice too"
    other = record.times_us.get(first.config.name(by_model.arch))
    if other is None:
        return f"{text}; the model's choice, {_shape(first)}, was not measured"
    ahead = (other / time - 1) * 100
    return f"{text}, {ahead:.1f} % ahead of the model's choice, {_shape(first)}, at {other:.1f} us"


def _prediction(candidates: tuple[Candidate, ...]) -> str:
    """Return the reason where the model decides."""
    best, *others = candidates
    text = (
        f"{_shape(best)} is predicted at {best.cost:.1f} us, bound by {best.bound}: {best.waves} "
        f"wave{'s' * (best.waves != 1)}, {best.waste:.2f}x the work needed"
    )
    if others:
        text += f"; next is {_shape(others[0])} at {others[0].cost:.1f} us"
    return text


def _shape(candidate: Candidate) -> str:
    """Return what tells a candidate from the others of a menu."""
    tile, cluster = candidate.config.tile, candidate.config.cluster
    schedule = candidate.config.schedule
    text = f"{tile.m}x{tile.n}x{tile.k} c{cluster.m}x{cluster.n}"
    if schedule.raster != Schedule().raster:
        text += f" raster {schedule.raster}"
    return text + " streaming b" * schedule.stream_b
