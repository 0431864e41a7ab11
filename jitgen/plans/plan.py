# SPDX-License-Identifier: Apache-2.0
"""A plan, its problems, and the configs of its kernels."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from jitgen.config import Arch, Config
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError, PlanError, UnsupportedConfig
from jitgen.plans.read import read_sweeps
from jitgen.plans.sweep import Sweep
from jitgen.runtime.session import current
from jitgen.selection.choice import Chooser, buckets
from jitgen.selection.device import asking, covered
from jitgen.selection.launched import launched
from jitgen.support.documents import BadDocument, canonical_json, parse_toml, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import nearest, shown
from jitgen.targets import legality

_SHIPPED = Path(__file__).resolve().parent
_KEYS = {"description", "problems"}
MAX_BYTES = 2**18
"""Limit in bytes for a plan file; shipped ones have under a thousand."""


@frozen
class Plan:
    """
    The problems that a service will compute.

    Attributes:
        name: Name of a shipped plan, or of the file without its ending.
        description: Description of the plan in one sentence; may be empty.
        sweeps: Its problems: fixed sizes with a range of rows each.
        origin: The path of its file; empty for a plan that comes with jitgen or was made by this
            process.
    """

    name: str
    description: str
    sweeps: tuple[Sweep, ...]
    origin: str = field(default="", compare=False)

    @property
    def argument(self) -> str:
        """The argument that names the plan on a command line, quoted for a shell."""
        return shlex.quote(self.origin or self.name)

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's problems, without its name and the numbers of calls."""
        asked = [
            {
                "op": each.problem.op,
                "problem": each.problem.to_json(),
                "rows": [each.min_rows, each.max_rows],
                "is_optional": each.is_optional,
                "is_early": each.is_early,
            }
            for each in self.sweeps
        ]
        return hashlib.sha256(canonical_json(asked).encode("ascii")).hexdigest()

    def served(self, arch: Arch | str) -> tuple[Sweep, ...]:
        """Return the sweeps, without optional ones whose types or sizes `arch` does not support."""
        target = Arch.parse(arch)
        return tuple(
            sweep
            for sweep in self.sweeps
            if not sweep.is_optional or _has_kernels(target, sweep.problem)
        )

    def problems(self, arch: Arch | str) -> Iterator[Problem]:
        """
        Yield one problem for each bucket of the selector with problems of the plan that `arch`
        supports, without repeats. If calls were counted, the problems with the most calls come
        first.
        """
        found = self.calls(arch)
        yield from sorted(found, key=lambda problem: -found[problem])

    def calls(self, arch: Arch | str) -> dict[Problem, float]:
        """
        Return the plan's problems with the number of calls of each, 0 if calls were not counted.
        The calls of a sweep are divided evenly among its buckets.
        """
        target = Arch.parse(arch)
        found: dict[Problem, float] = {}
        for (place, _), calls in self.asked(target).items():
            found[place] = found.get(place, 0.0) + calls
        return found

    def asked(self, target: Arch) -> dict[tuple[Problem, bool], float]:
        """
        Return the number of calls of each pair of a problem and whether its kernel starts early;
        some problems occur with both values.
        """
        found: dict[tuple[Problem, bool], float] = {}
        for sweep in self.served(target):
            rows = sweep.min_rows, sweep.max_rows
            places = [(place, sweep.is_early) for place in buckets(sweep.problem, target, rows)]
            for place in places:
                found[place] = found.get(place, 0.0) + sweep.calls / len(places)
        return found


def _has_kernels(arch: Arch, problem: Problem) -> bool:
    """Return whether a target has a kernel for the types of `problem`, and supports its sizes."""
    if problem.op not in legality.target(arch).operations:
        return False
    if legality.size_refusal(problem, arch):
        return False
    return bool(legality.rules(arch, problem.op).candidates(problem))


def names() -> tuple[str, ...]:
    """Return the names of the plans that come with jitgen."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def is_plan(name: str) -> bool:
    """Return whether a command takes `name` for a plan: a shipped one's, or a file's."""
    return name.endswith(".toml") or name in names()


def _meant(name: str) -> str:
    """Return a hint for a name that no plan has: similar names, or the command that takes it."""
    if name.endswith(".json"):
        return "; jitgen plan from-config makes one of a model's config.json"
    try:
        Config.parse(name)
    except ConfigError:
        return nearest(name, names())
    return "; it is a kernel's name, which jitgen prewarm takes with --config"


def load(name_or_path: str | Path) -> Plan:
    """
    Return a shipped plan by its name, or one from a file by its path.

    A name without ``/`` that does not end in ``.toml`` is that of a shipped plan.

    Raises:
        PlanError: There is no such plan, or it cannot be read; the message names file, key and what
            is allowed.
    """
    if not isinstance(name_or_path, (str, Path)):
        raise PlanError(f"a plan is a name or a path (got {type(name_or_path).__name__})")
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and path.suffix != ".toml" and path.name == name_or_path:
        if name_or_path not in names():
            raise PlanError(
                f"no plan {name_or_path!r}; shipped plans: {', '.join(names())}; "
                "a file of your own is named by its path, which ends in .toml"
                f"{_meant(name_or_path)}"
            )
        path = _SHIPPED / f"{name_or_path}.toml"
    try:
        document = parse_toml(read_bounded(path, MAX_BYTES), max_bytes=MAX_BYTES)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}") from error
    except BadDocument as error:
        raise PlanError(f"{path} is no TOML plan: {error}") from error
    if unknown := sorted(set(document) - _KEYS):
        raise PlanError(f"{path}: no key {shown(unknown[0])}; allowed: {', '.join(sorted(_KEYS))}")
    description = document.get("description", "")
    if not isinstance(description, str):
        raise PlanError(f"{path}: description must be a string (got {shown(description)})")
    sweeps = tuple(read_sweeps(document.get("problems"), str(path)))
    origin = "" if path.parent == _SHIPPED else str(path)
    return Plan(name=path.stem, description=description, sweeps=sweeps, origin=origin)


def configs(
    plan: Plan,
    arch: Arch | str,
    chooser: Chooser | None = None,
    *,
    devices: Sequence[str] = (),
) -> tuple[Config, ...]:
    """
    Return exactly the configs that calls of the plan's problems may launch on the devices: those
    that `select` chooses, and those of further launches of their operations. They are ordered by
    the number of their calls, most first, and then by name.

    The list is complete: the selector gives one answer for a whole bucket, and it chooses for every
    bucket and every device, with the measurements of the store and without. The list is minimal:
    each bucket has a problem of the plan.

    Args:
        plan: The plan.
        arch: The target.
        chooser: The chooser; None for that of the session.
        devices: Names of devices; those of other targets are ignored. If none remain:
            JITGEN_DEVICE, otherwise all devices of the target and that of this machine.

    Raises:
        UnsupportedConfig: `arch` has no kernel for one of the plan's types or sizes, or all
            problems of the plan are optional and it has no kernel for any.
        ConfigError: A device is not known.
    """
    target = Arch.parse(arch)
    chosen: dict[Config, float] = {}
    for _, group in groupby(launches(plan, target, chooser, devices=devices), _of_problem):
        found = list(group)
        for config in dict.fromkeys(each.config for each in found):
            chosen[config] = chosen.get(config, 0.0) + found[0].calls
    if not chosen:
        raise UnsupportedConfig(
            f"{target} has no kernel for anything in the plan {plan.name}: all of it is optional",
            code="E_PLAN",
        )
    return tuple(sorted(chosen, key=lambda config: (-chosen[config], config.name(target))))


class Launch(NamedTuple):
    """
    A kernel that calls may launch.

    Attributes:
        problem: The problem that represents the bucket.
        is_early: Whether it starts early, as `Plan.asked` says.
        calls: Number of its calls; 0 if they were not counted.
        device: Name of the device that it is chosen for.
        config: The kernel's config.
        source: What the choice is based on; see `Choice`.
    """

    problem: Problem
    is_early: bool
    calls: float
    device: str
    config: Config
    source: str


def launches(
    plan: Plan, arch: Arch, chooser: Chooser | None = None, *, devices: Sequence[str] = ()
) -> Iterator[Launch]:
    """
    Yield the kernels that calls of a plan's problems may launch, problem by problem and device by
    device. Arguments and errors are those of `configs`, which returns the configs alone.
    """
    who, names = current.get().chooser if chooser is None else chooser, covered(arch, devices)
    for (problem, is_early), calls in plan.asked(arch).items():
        for each in who.with_and_without():
            for name in names:
                device = asking(arch, name)
                try:
                    choice, found = launched(problem, arch, each, device, is_early=is_early)
                except UnsupportedConfig as error:
                    raise _of_entry(plan, problem, arch, is_early, error) from error
                for config in found:
                    yield Launch(problem, is_early, calls, name, config, str(choice.source))


def _of_entry(
    plan: Plan, problem: Problem, arch: Arch, is_early: bool, error: UnsupportedConfig
) -> UnsupportedConfig:
    """Return an error about a problem, with the file and the entry of the problem."""
    entries = (
        sweep.entry
        for sweep in plan.served(arch)
        if sweep.is_early == is_early
        and problem in set(buckets(sweep.problem, arch, (sweep.min_rows, sweep.max_rows)))
    )
    number = next(entries, 0)
    where = f"{plan.origin or plan.name}{f': problem {number}' * bool(number)}"
    return UnsupportedConfig(f"{where}: {error}", code=error.code, proposal=error.proposal)


def _of_problem(launch: Launch) -> tuple[Problem, bool]:
    return launch.problem, launch.is_early
