# SPDX-License-Identifier: Apache-2.0
"""
A pod's start: from the process's start to its first right result, by where the kernel comes from.

Every figure is of a fresh process whose own root holds the kernel only where that is what is
measured. The sides take turns within a round, so that what else the machine does falls to all of
them. Importing torch takes far longer than any fetch and varies by more than one: so what a place
costs beyond a local hit is counted from after that import, round by round.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.pod_places import Missing, Places
from jitgen.bench.protocol import Row, python
from jitgen.bench.start import PROBLEM
from jitgen.support.frozen import frozen
from jitgen.support.variables import TABLE

BUDGET_MS = 60.0
"""The most that a fetch may take beyond a local hit: far less than a compile, or nobody would."""

ROUNDS = 7
LOCAL = "a local hit"
_COMPILES = {"JITGEN_ON_MISS": "compile"}

_SCRIPT = (
    PROBLEM
    + """\
gc.collect()

start, cpu = time.perf_counter(), time.process_time()
import jitgen

tiers = []
jitgen.on_event(lambda event: tiers.append(event.tier) if event.kind == "load" else None)
out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
end, cpu_end = time.perf_counter(), time.process_time()

rows = [a[g * 16 : g * 16 + 16].float() @ b[g].float().T for g in range(groups)]
print(json.dumps({
    "seconds": end - float(sys.argv[1]),
    "call_s": end - start,
    "cpu_s": cpu_end - cpu,
    "is_right": bool((out == torch.cat(rows).to(torch.bfloat16)).all()),
    "tiers": tiers,
}))
"""
)


@frozen
class Side:
    """
    Where a pod's kernel comes from.

    Attributes:
        what: What people call that.
        tier: What its event must say, so that no other place is measured in its stead.
        environment: The settings that name the place.
        has_budget: Whether `BUDGET_MS` is for it.
    """

    what: str
    tier: str
    environment: Mapping[str, str]
    has_budget: bool = False


@frozen
class Start:
    """
    How one pod started.

    Attributes:
        seconds: From the process's start to the first right result.
        call_s: From after ``import torch``.
        cpu_s: The same, in seconds of all its threads.
    """

    seconds: float
    call_s: float
    cpu_s: float


def rows() -> Iterator[Row]:
    """Yield the time to the first result for each side, and what that is beyond a local hit."""
    with TemporaryDirectory(prefix="jitgen-bench-") as name, Places(Path(name)) as places:
        found, missing = sides(places)
        for place, side in enumerate(found):
            fill = replace(side, environment={**side.environment, **_COMPILES})
            started(fill, Path(name, f"first-{place}"))  # the service compiles it, too
        rounds = [
            {side.what: started(side, Path(name, f"{number}-{place}")) for place, side in turn}
            for number, turn in enumerate(_turns(found, ROUNDS))
        ]
    yield from table(found, rounds, missing)


def sides(places: Places) -> tuple[list[Side], list[str]]:
    """Return the sides that can be measured here, and of the others what is missing."""
    compiled = Side(what="a compile here", tier="compiled", environment=_COMPILES)
    started(compiled, places.root)
    filled = str(places.root)
    found = [
        Side(what=LOCAL, tier="disk", environment={"JITGEN_CACHE_DIR": filled}),
        Side(what="a base layer", tier="base", environment={"JITGEN_BASE": filled}),
    ]
    missing = []
    for what, tier, place in (
        ("a remote, a folder", "remote", places.folder),
        ("a remote over HTTP", "remote", places.website),
        ("the service", "service", places.service),
    ):
        try:
            found.append(Side(what=what, tier=tier, environment=place(), has_budget=True))
        except Missing as error:
            missing.append(f"{what} ({error})")
    return [*found, compiled], missing


def started(side: Side, root: Path) -> Start:
    """
    Start a pod; `root` is its own one, unless the side brings it.

    Raises:
        WrongResult: Its result is wrong, or its kernel came from somewhere else.
    """
    environment = {"JITGEN_CACHE_DIR": str(root), **side.environment}
    found = json.loads(python(_SCRIPT, _now(), environment=_environment(environment)))
    return checked(side, found)


def checked(side: Side, found: Mapping[str, Any]) -> Start:
    """Return what a pod printed; raises as `started`."""
    if not found["is_right"]:
        raise WrongResult(f"a pod whose kernel comes from {side.what} computed a wrong result")
    if set(found["tiers"]) != {side.tier}:
        tiers = ", ".join(found["tiers"]) or "nowhere"
        raise WrongResult(f"a kernel that was to come from {side.what} came from {tiers}")
    return Start(seconds=found["seconds"], call_s=found["call_s"], cpu_s=found["cpu_s"])


def table(
    found: Sequence[Side], rounds: Sequence[Mapping[str, Start]], missing: Iterable[str] = ()
) -> Iterator[Row]:
    """Yield the rows of what was measured; each round has one start of each side."""
    notes = "".join(f"; not measured: {note}" for note in missing)
    for side in found:
        times = Times(seconds=tuple(each[side.what].seconds for each in rounds))
        yield Row(
            suite="pod",
            what=f"process start to the first right result, from {side.what}",
            value=times.median,
            unit="s",
            detail=times.detail(1, "s") + (notes if side.what == LOCAL else ""),
        )
    for side in found:
        if side.what == LOCAL:
            continue
        beyond = [(each[side.what], each[LOCAL]) for each in rounds]
        times = Times(seconds=tuple(mine.call_s - local.call_s for mine, local in beyond))
        cpu_s = statistics.median(mine.cpu_s - local.cpu_s for mine, local in beyond)
        yield Row(
            suite="pod",
            what=f"{side.what}, beyond a local hit",
            value=times.median * 1e3,
            unit="ms",
            budget=BUDGET_MS if side.has_budget else None,
            detail=f"{times.detail(1e3, 'ms')}; {cpu_s * 1e3:.3g} ms of CPU",
        )


def _turns(found: Sequence[Side], rounds: int) -> Iterator[list[tuple[int, Side]]]:
    """Yield the numbered sides once a round, each round beginning with another one."""
    numbered = list(enumerate(found))
    for number in range(rounds):
        first = number % len(numbered)
        yield numbered[first:] + numbered[:first]


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a pod: nothing that is set here reaches it, and misses are errors."""
    unset = {setting.variable: "" for setting in TABLE}
    return {**unset, "JITGEN_ARCH": "cpu", "JITGEN_ON_MISS": "error", **changes}


def _now() -> str:
    """Return the present moment, by the clock that all processes of a host share."""
    return repr(time.perf_counter())
