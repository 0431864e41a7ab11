# SPDX-License-Identifier: Apache-2.0
"""``jitgen verify --rebuild``: compile kernels of the cache again and compare every byte."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import click

from jitgen.cli.lookup import find
from jitgen.cli.output import ExitCode, Output, counted, human_time
from jitgen.config import Arch
from jitgen.plans.plan import configs as plan_configs
from jitgen.plans.plan import is_plan
from jitgen.plans.plan import load as load_plan
from jitgen.runtime.spec import key
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import Rule
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.plans.rebuild import Compared

OPTION = click.option(
    "--rebuild",
    is_flag=True,
    help="Instead, compile the entries of the cache again and compare every byte.",
)


@frozen
class _Row:
    """Result for one kernel that was compiled again."""

    name: v.Name
    key: v.Key
    state: Annotated[str, Rule(write=str.lower, type=None, enum=["same", "other", "failed"])]
    seconds: v.Seconds
    differences: Sequence[str]
    error: v.Reason


@frozen
class _Rebuilt:
    ok: v.Ok
    wall_s: v.Seconds
    kernels: Sequence[_Row]


def run(output: Output, names: tuple[str, ...], arch: Arch | None, jobs: int | None) -> int:
    """
    Compile the entries for `names` again, compare the bytes, print a row for each kernel, and
    return the exit code.
    """
    from jitgen.cache import Store

    store = Store.open()
    start = time.perf_counter()
    rows = _compare(output, store, _wanted(names, arch, store), jobs)
    wall_s = time.perf_counter() - start
    is_same = all(row.state == "same" for row in rows)
    document = _Rebuilt(ok=is_same, wall_s=wall_s, kernels=rows)

    def human() -> None:
        columns = ["STATE", ">TIME", "NAME"]
        output.table(columns, [(row.state, human_time(row.seconds), row.name) for row in rows])
        for row in rows:
            for text in (*row.differences, *filter(None, [row.error])):
                output.line(f"{row.name}: {text}")
        counts = Counter(row.state.lower() for row in rows)
        words = (("other", "not the same"), ("failed", "not compared"))
        wrong = ", ".join(f"{counts[state]} {word}" for state, word in words if counts[state])
        verdict = wrong or "the same to the byte"
        output.note(f"{counted(len(rows), 'kernel')}: {verdict} in {human_time(wall_s)}")

    output.report("verify", document, human)
    return ExitCode.OK if is_same else ExitCode.FAILED


def _wanted(names: tuple[str, ...], arch: Arch | None, store: Store) -> dict[str, str]:
    """Return the name of each kernel that `names` mean, by the key of its entry."""
    found = {}
    for name in names:
        if is_plan(name):
            target = arch or default_arch()
            for config in plan_configs(load_plan(name), target):
                found[key(config, target)] = config.name(target)
        else:
            named = find(name, store)
            found[named.key] = named.name
    return found


def _compare(output: Output, store: Store, wanted: dict[str, str], jobs: int | None) -> list[_Row]:
    from jitgen.compile import capacity, workers
    from jitgen.plans.rebuild import TASK, rebuild_task_of

    number = capacity.default_jobs(settings.jobs if jobs is None else jobs)
    outcomes = workers.run(
        TASK,
        [rebuild_task_of(store, each) for each in wanted],
        jobs=min(number, len(wanted)),
        timeout_s=settings.compile_timeout,
    )
    rows: dict[int, _Row] = {}
    with output.progress(len(wanted), "compiling again") as progress:
        for outcome in outcomes:
            result = cast("Compared", outcome.result or {})
            own = outcome.task["key"]
            error, differences = outcome.error or result.get("error", ""), result.get("differences")
            row = rows[outcome.index] = _Row(
                name=wanted[own],
                key=own,
                state="failed" if error else "OTHER" if differences else "same",
                seconds=outcome.seconds,
                differences=differences or (),
                error=error,
            )
            progress.advance(f"{row.state} in {human_time(row.seconds)} {row.name}")
    return [rows[index] for index in sorted(rows)]
