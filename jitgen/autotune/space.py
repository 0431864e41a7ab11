# SPDX-License-Identifier: Apache-2.0
"""
The plan of a search in a legal part of a target's config space for one problem: its kernels, those
that the model prunes, the expected time of each trial, and the results of earlier runs.

Results are stored with the records of `jitgen tune`, in one document for each problem, with the key
of each kernel: a kernel whose templates or compiler have changed is measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, TypedDict, TypeGuard

from jitgen.compile import capacity
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from jitgen.runtime.session import select
from jitgen.runtime.spec import serving
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.selection.device import chosen_for
from jitgen.selection.numerics import regardless
from jitgen.selection.record import problem_json
from jitgen.settings import settings
from jitgen.support.documents import canonical_json, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.targets.legality import check, rules

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.support.vocabulary import Microseconds, Name, Reason, Seconds

WITHIN = 1.5
"""Kernels whose predicted time is at most this many times the best one's are tried."""

_KIND = "space"
_SCHEMA = 1

_CALLS = 50
"""Number of calls that verify and time a kernel, and time the selector's choice in turn with it."""

_GPU_S = 2.0
"""Seconds of `_CALLS` calls on a GPU: calls are short, and making the operands takes longest."""

_HOST_S = 0.2
"""Seconds on a CPU in addition to the calls."""

_START_S = 3.0
"""Seconds until the process that measures has imported torch."""

_COMPILE_S = {True: 2.0, False: 1.2}
"""Seconds that a compile takes with its process: for a GPU, and for the host."""


class TrialState(StrEnum):
    """Result of trying one kernel of the space."""

    KNOWN = "known"
    MEASURED = "measured"
    EXCLUDED = "excluded"
    MISSING = "missing"
    LEFT = "left"


@frozen
class Planned:
    """
    A kernel to try.

    Attributes:
        config: Its config.
        name: Its name.
        key: Its key.
        cost_us: The time that the model predicts.
        is_compiled: Whether it is in the cache.
        seconds: How long trying it is expected to take, compiling included.
    """

    config: Config
    name: str
    key: str
    cost_us: float
    is_compiled: bool
    seconds: float


@frozen
class Trial:
    """
    The result of one kernel.

    Attributes:
        name: Its name.
        state: See `TrialState`.
        cost_us: The time that the model predicted.
        time_us: Its measured time; None if it was not timed.
        ratio: Its time over the time of the selector's choice, measured in turn with it; None if it
            was not timed.
        reason: Why there is no time.
        seconds: How long the trial took.
    """

    name: Name
    state: TrialState
    cost_us: Microseconds
    time_us: Microseconds | None = None
    ratio: float | None = None
    reason: Reason = ""
    seconds: Seconds = 0.0


@frozen
class SpacePlan:
    """
    The kernels that a search of the space will try for one problem.

    Attributes:
        problem: The problem itself, not the representative of its bucket.
        arch: The target.
        chosen: The config that the selector's model chooses; each kernel is timed in turn with it.
        planned: The kernels to try, by predicted time.
        known: Results of earlier runs, for kernels that have not changed since.
        refused: Number of illegal configs in the part.
        pruned: Number of legal configs that the model leaves out.
    """

    problem: GroupedGemmProblem
    arch: Arch
    chosen: Planned
    planned: tuple[Planned, ...]
    known: tuple[Trial, ...]
    refused: int
    pruned: int

    @property
    def seconds(self) -> float:
        """Expected seconds of all planned trials, with the start of the process that measures."""
        return sum((each.seconds for each in self.planned), _START_S if self.planned else 0.0)

    def within(self, seconds: float) -> tuple[tuple[Planned, ...], tuple[Planned, ...]]:
        """
        Return the kernels whose trials are expected to take at most `seconds` in total, the best
        first, and the remaining kernels.
        """
        total, count = _START_S, 0
        for each in self.planned:
            total += each.seconds
            if total > seconds:
                break
            count += 1
        return self.planned[:count], self.planned[count:]


def plan(
    problem: GroupedGemmProblem,
    arch: Arch,
    store: Store,
    *,
    part: Mapping[str, Sequence[str]],
    within: float = WITHIN,
    again: bool = False,
) -> SpacePlan:
    """
    Plan a search of `part` of the space for `problem`: the kernels to try.

    Args:
        problem: The problem.
        arch: The target.
        store: The store of kernels and of earlier results.
        part: Values of fields, by their names (``tile_m``, ``raster``): the part consists of every
            config of the space with each of these values; empty for the space that `jitgen configs`
            lists.
        within: Largest predicted time of a kernel, as a multiple of the best predicted time.
        again: Whether kernels with a result are measured again.

    Raises:
        ConfigError: There is no such field, a value is not allowed, or no config is legal.
        UnsupportedConfig: The target has no kernel for `problem`.
    """
    choice = select(regardless(problem), arch, use_measured=False)
    found = dict.fromkeys(_part(_like(choice.config, arch), part))
    legal = [config for config in found if check(config, arch)]
    if not legal:
        verdict = check(next(iter(found), choice.config), arch)
        raise ConfigError(f"no config of this part is legal on {arch}: {verdict.reason}")
    by_device, _ = chosen_for(arch)
    said = rules(arch, problem.op)
    costs = {
        config: said.predict(problem, config, by_device, by_device.num_sms).cost
        for config in dict.fromkeys([choice.config, *legal])
    }
    best = min(costs[config] for config in legal)
    kept = [config for config in legal if costs[config] <= best * within]
    earlier = {} if again else _recorded(store, problem, arch)
    excluded = {} if again else tuned.exclusions(store, arch)
    times = _Estimate(arch)
    rows = [
        _planned(config, costs[config], arch, store, times)
        for config in sorted(kept, key=lambda config: (costs[config], config.name(arch)))
    ]
    known = [trial for row in rows if (trial := _known(row, earlier, excluded)) is not None]
    told = {trial.name for trial in known}
    return SpacePlan(
        problem=problem,
        arch=arch,
        chosen=_planned(choice.config, costs[choice.config], arch, store, times),
        planned=tuple(row for row in rows if row.name not in told),
        known=tuple(known),
        refused=len(found) - len(legal),
        pruned=len(legal) - len(kept),
    )


def keep(
    store: Store, problem: GroupedGemmProblem, arch: Arch, keys: Mapping[str, str], trial: Trial
) -> None:
    """
    Store the result of one kernel, so that an interrupted search continues where it stopped.

    Raises:
        CacheError: The store cannot be written.
    """
    rows = _recorded(store, problem, arch)
    rows[trial.name] = {
        "key": keys[trial.name],
        "time_us": trial.time_us,
        "ratio": trial.ratio,
        "reason": trial.reason,
    }
    document = {"schema": _SCHEMA, "problem": problem_json(problem), "rows": rows}
    store.tuned.write(device.folder(arch), _KIND, _name(problem), document)


def _like(chosen: Config, arch: Arch) -> Iterator[Config]:
    """Yield the configs of the space that support the calls of `chosen`."""
    wanted = _call_of(chosen)
    return (config for config in rules(arch, chosen.op).configs() if _call_of(config) == wanted)


def _call_of(config: Config) -> tuple[object, ...]:
    return tuple(getattr(config, name) for name in ("layout", "operands", "epilogue"))


def _part(configs: Iterable[Config], part: Mapping[str, Sequence[str]]) -> Iterator[Config]:
    """
    Yield the configs with every combination of the values in `part`, which are given by field.
    """
    for config in configs:
        document = config.to_json()
        paths = [(_path(document, name), values) for name, values in part.items()]
        for values in product(*(values for _, values in paths)):
            changed = json.loads(json.dumps(document))
            for (path, _), value in zip(paths, values, strict=True):
                place = changed
                for step in path[:-1]:
                    place = place[step]
                place[path[-1]] = _value(value)
            try:
                yield Config.from_json(changed)
            except ConfigError as error:
                named = ", ".join(
                    f"{name}={shown(value)}" for name, value in zip(part, values, strict=True)
                )
                raise ConfigError(f"no config has {named}: {error}") from None


def _path(document: Mapping[str, object], name: str) -> tuple[str, ...]:
    """
    Return the path of a field, given as ``tile_m``, as ``tile.m``, or by its last word if only one
    field has that.
    """
    paths = [
        (part, leaf)
        for part, fields in document.items()
        if isinstance(fields, dict) and part != "operands"
        for leaf in fields
    ]
    found = [path for path in paths if name in {"_".join(path), ".".join(path)}]
    found = found or [path for path in paths if path[1] == name]
    if len(found) != 1:
        allowed = ", ".join("_".join(path) if len(path[1]) == 1 else path[1] for path in paths)
        raise ConfigError(f"no field {shown(name)} can be searched over; allowed: {allowed}")
    return found[0]


def _value(text: str) -> object:
    try:
        return parse_json(text.lower().encode("utf-8", "replace"))
    except ValueError:
        return text


class _Estimate:
    """Estimates how long trials take on this machine."""

    def __init__(self, arch: Arch) -> None:
        self._compile_s = _COMPILE_S[arch.is_gpu] / capacity.default_jobs(settings.jobs)
        self._is_gpu = arch.is_gpu

    def seconds(self, cost_us: float, *, is_compiled: bool) -> float:
        calls_s = _GPU_S if self._is_gpu else _HOST_S + _CALLS * cost_us * 1e-6
        return calls_s + (0.0 if is_compiled else self._compile_s)


def _planned(config: Config, cost_us: float, arch: Arch, store: Store, times: _Estimate) -> Planned:
    spec = serving(config, arch)
    is_compiled = store.read(spec.key) is not None
    return Planned(
        config=config,
        name=spec.name,
        key=spec.key,
        cost_us=cost_us,
        is_compiled=is_compiled,
        seconds=times.seconds(cost_us, is_compiled=is_compiled),
    )


class _Row(TypedDict):
    """Earlier result of one kernel; `time_us` and `ratio` are None where it was excluded."""

    key: str
    time_us: float | None
    ratio: float | None
    reason: str


def _known(row: Planned, earlier: Mapping[str, _Row], excluded: Mapping[str, str]) -> Trial | None:
    """Return the earlier result of a kernel; None if it has to be tried."""
    if row.name in excluded:
        reason = excluded[row.name]
        return Trial(name=row.name, state=TrialState.EXCLUDED, cost_us=row.cost_us, reason=reason)
    found = earlier.get(row.name)
    if found is None or found["key"] != row.key:
        return None
    state = TrialState.EXCLUDED if found["time_us"] is None else TrialState.KNOWN
    return Trial(
        name=row.name,
        state=state,
        cost_us=row.cost_us,
        time_us=found["time_us"],
        ratio=found["ratio"],
        reason=found["reason"],
    )


def _recorded(store: Store, problem: GroupedGemmProblem, arch: Arch) -> dict[str, _Row]:
    """Return the results of earlier runs by kernel name; none if the document is damaged."""
    document = store.tuned.read(device.folder(arch), _KIND, _name(problem)) or {}
    rows = document.get("rows")
    if document.get("schema") != _SCHEMA or document.get("problem") != problem_json(problem):
        return {}
    if not isinstance(rows, dict):
        return {}
    return {name: row for name, row in rows.items() if _is_row(row)}


def _is_row(row: object) -> TypeGuard[_Row]:
    if not isinstance(row, dict) or row.keys() != {"key", "time_us", "ratio", "reason"}:
        return False
    numbers = (row["time_us"], row["ratio"])
    is_timed = all(isinstance(x, float) and x > 0 for x in numbers)
    return isinstance(row["reason"], str) and (is_timed or numbers == (None, None))


def _name(problem: GroupedGemmProblem) -> str:
    """Return the name of a problem's document."""
    text = canonical_json(problem_json(problem))
    return f"{problem.op}-{hashlib.sha256(text.encode('ascii')).hexdigest()[:24]}"
