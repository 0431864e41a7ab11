# SPDX-License-Identifier: Apache-2.0
"""
A kernel's speed: the problems for which it was measured, on this machine or before jitgen was
shipped, and those for which it is chosen, with the selector's reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from jitgen.config import Arch, Config
from jitgen.config.problem import Problem
from jitgen.errors import JitgenError, ToolchainError
from jitgen.inspect.hardware import Roofs, roofs
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as shipped_plans
from jitgen.selection import device as here
from jitgen.selection import measurements
from jitgen.selection.choice import Chooser, buckets
from jitgen.settings import settings
from jitgen.support.frozen import frozen
from jitgen.targets import devices
from jitgen.targets.legality import rules, target

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.config.grouped_gemm import Operands
    from jitgen.selection.record import TuningRecord

MOST = 200
"""Largest number of measurements on a page; the table of a device has some hundred."""

_MOST_REASONS = 16

Choose = Callable[[Problem], "Chosen | None"]
"""A function that chooses the kernel of a problem for one target and device."""


@frozen
class Measurement:
    """
    A kernel, measured for a problem.

    Attributes:
        problem: Problem that represents the bucket.
        time_us: Time of this kernel.
        winner: Name of the fastest kernel.
        best_us: Time of the fastest kernel.
        rivals: How many kernels were measured.
        source: ``tuned`` or ``shipped``.
        device: Name of the device.
        date: Date of the measurement, ISO 8601.
        flop: Operations; 0 for kernels that multiply nothing.
        traffic: Bytes that are read and written, as the cost model counts them.
    """

    problem: Problem
    time_us: float
    winner: str
    best_us: float
    rivals: int
    source: str
    device: str
    date: str
    flop: int
    traffic: int

    @property
    def intensity(self) -> float:
        """Operations per byte of traffic; 0 if the traffic is not known."""
        return self.flop / self.traffic if self.traffic else 0.0

    @property
    def flop_rate(self) -> float:
        """Operations per second at the measured time."""
        return self.flop / self.time_us * 1e6

    @property
    def byte_rate(self) -> float:
        """Bytes of traffic per second at the measured time."""
        return self.traffic / self.time_us * 1e6


@frozen
class Reason:
    """
    A problem that a kernel is chosen for.

    Attributes:
        problem: Problem that represents the bucket.
        source: The source of the decision: ``tuned``, ``shipped``, ``model``, ...
        why: The reason in one sentence.
        plan: The plan that contains the problem; empty for a measured problem.
        device: Name of the device for which it is chosen.
    """

    problem: Problem
    source: str
    why: str
    plan: str = ""
    device: str = ""


class Chosen(NamedTuple):
    """The kernel of a problem, with the source of the decision and its reason."""

    config: Config
    source: str
    why: str


@frozen
class Speed:
    """
    Measurements and reasons of one kernel.

    Attributes:
        measurements: The first `MOST` measurements, by problem.
        reasons: Reasons of some of the problems for which it is chosen, on the first of the
            target's devices for which it is chosen at all.
        roofs: Peak rates of the devices on which it was measured.
        excluded: Why it must not be chosen on this machine; empty if it may.
    """

    measurements: tuple[Measurement, ...]
    reasons: tuple[Reason, ...]
    roofs: tuple[Roofs, ...]
    excluded: str = ""


def speed_of(
    config: Config, arch: Arch, store: Store, plan_names: Iterable[str] | None = None
) -> Speed:
    """
    Return the speed of a kernel from records, without measuring.

    Args:
        config: Config of the kernel.
        arch: Its target.
        store: The store with this machine's measurements.
        plan_names: Plans whose problems it may be chosen for; None for the shipped ones.
    """
    name = config.name(arch)
    found = sorted(_measured(config, arch, store), key=lambda each: each.problem.kind)
    chooser = _chooser(store, measurements.generation(), settings.select)
    named = shipped_plans() if plan_names is None else plan_names
    reasons: dict[Problem, Reason] = {}
    for device in here.covered(arch):
        choose = partial(_chosen, chooser, arch, here.asking(arch, device))
        every = chain(_of_measured(found, config, choose), _of_plans(config, arch, choose, named))
        for reason in every:
            reasons.setdefault(reason.problem, replace(reason, device=device))
            if len(reasons) == _MOST_REASONS:
                break
        if reasons:
            break
    names = dict.fromkeys(each.device for each in found)
    family, bits = target(arch).family, _bits(config)
    known_roofs = (roofs(family, devices.find(arch, each), bits) for each in names)
    return Speed(
        measurements=tuple(found[:MOST]),
        reasons=tuple(reasons.values()),
        roofs=tuple(each for each in known_roofs if each is not None),
        excluded=_exclusions(store, arch).get(name, ""),
    )


def _measured(config: Config, arch: Arch, store: Store) -> Iterator[Measurement]:
    name = config.name(arch)
    for source, device, record in _records(arch, store):
        if record.problem.op == config.op and name in record.times_us:
            yield Measurement(
                problem=record.problem,
                time_us=record.times_us[name],
                winner=record.winner,
                best_us=record.times_us[record.winner],
                rivals=len(record.times_us),
                source=source,
                device=device,
                date=record.date,
                flop=_flop(record.problem),
                traffic=_traffic(record.problem, config, arch, device),
            )


def _records(arch: Arch, store: Store) -> Iterator[tuple[str, str, TuningRecord]]:
    try:
        own = [] if store.tuned.is_empty else measurements.all_recorded(store, arch)
    except ToolchainError:  # without a compiler's version no record is valid
        own = []
    for record in own:
        yield measurements.Source.TUNED, here.device_name(arch), record
    for device in target(arch).devices:
        shipped = measurements.shipped(arch, device.name)
        for found in map(shipped.get, shipped):
            if found is not None:  # a damaged table counts as missing
                yield measurements.Source.SHIPPED, device.name, found


def _exclusions(store: Store, arch: Arch) -> dict[str, str]:
    try:
        return {} if store.tuned.is_empty else measurements.exclusions(store, arch)
    except ToolchainError:
        return {}


def _flop(problem: Problem) -> int:
    n, k = getattr(problem, "n", 0), getattr(problem, "k", 0)
    return 2 * problem.m * n * k if n and k else 0


def _traffic(problem: Problem, config: Config, arch: Arch, name: str) -> int:
    device = devices.find(arch, name)
    return rules(arch, config.op).predict(problem, config, device, device.num_sms).traffic_bytes


def _bits(config: Config) -> int:
    """Return the bits of the wider operand, which determine the rate of the tensor cores."""
    operands: Operands | None = getattr(config, "operands", None)
    return max(operands.a_dtype.bits, operands.b_dtype.bits) if operands else 0


def _may_serve(config: Config, problem: Problem) -> bool:
    """Return whether a config and a problem agree in all common fields, including their types."""
    if problem.op != config.op:
        return False
    fields = {spec.name for spec in dataclasses.fields(config)}
    common = [spec.name for spec in dataclasses.fields(problem) if spec.name in fields]
    if "operands" in fields:
        common.append("operands")
    return all(getattr(config, name) == getattr(problem, name) for name in common)


def _of_measured(found: Iterable[Measurement], config: Config, choose: Choose) -> Iterator[Reason]:
    every = (_reason(each.problem, config, choose) for each in found)
    yield from (reason for reason in every if reason is not None)


def _of_plans(config: Config, arch: Arch, choose: Choose, names: Iterable[str]) -> Iterator[Reason]:
    for name in names:
        for sweep in load_plan(name).sweeps:
            if not _may_serve(config, sweep.problem):
                continue
            for problem in buckets(sweep.problem, arch, (sweep.min_rows, sweep.max_rows)):
                reason = _reason(problem, config, choose)
                if reason is not None:
                    yield replace(reason, plan=name)


def _reason(problem: Problem, config: Config, choose: Choose) -> Reason | None:
    chosen = choose(problem)
    if chosen is None or chosen.config != config:
        return None
    return Reason(problem=problem, source=chosen.source, why=chosen.why)


@lru_cache(maxsize=1)
def _chooser(store: Store, _generation: int, _mode: str) -> Chooser:
    """Return a chooser that pages share until something is measured or JITGEN_SELECT changes."""
    return Chooser(lambda: store)


@lru_cache(maxsize=2**15)  # for one page, the shipped plans ask for up to 17,000 choices
def _chosen(chooser: Chooser, arch: Arch, device: str, problem: Problem) -> Chosen | None:
    """Return what `chooser` chooses; None for sizes of other targets."""
    try:
        choice = chooser.select(problem, arch, device=device)
    except JitgenError:
        return None
    return Chosen(choice.config, str(choice.source), choice.why)
