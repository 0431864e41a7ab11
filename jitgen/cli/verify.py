# SPDX-License-Identifier: Apache-2.0
"""``jitgen verify``: run GPU kernels in the emulator and compare them with float64 sums."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from jitgen import plans
from jitgen.cli.lookup import find
from jitgen.cli.options import ARCH, SECONDS, with_output
from jitgen.cli.output import Column, ExitCode, Output, counted, human_time
from jitgen.config import Arch, Config
from jitgen.errors import ConfigError
from jitgen.frozen import frozen
from jitgen.ops.protocol import operation
from jitgen.settings import settings
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import require

TASK = "jitgen.verify.verification:verify_task"

_PRELOAD = ("torch", "numpy", "jitgen.verify.verification", "jitgen.emulator.isa")
"""What every task needs, beside the compiler."""

_SHOWN_FINDINGS = 6


@frozen
class _Row:
    """What became of one kernel: the JSON form of its verification, or why there is none."""

    name: str
    seconds: float
    document: dict[str, Any]
    error: str = ""

    @property
    def is_right(self) -> bool:
        return not self.error and bool(self.document["right"])

    @property
    def state(self) -> str:
        return "right" if self.is_right else "failed" if self.error else "WRONG"

    @property
    def trials(self) -> list[dict[str, Any]]:
        return self.document.get("trials", [])  # type: ignore[no-any-return]

    def largest(self, field: str) -> float:
        return max((trial[field] for trial in self.trials), default=0.0)


@click.command(
    epilog=f"Shipped plans: {', '.join(plans.names())}. A plan of your own is a .toml file.",
)
@click.argument("names", metavar="CONFIG|PLAN|KEY...", nargs=-1, required=True)
@click.option("--arch", type=ARCH, help="Target of plans; the GPU's, else sm_90a, if not given.")
@click.option(
    "--problem",
    metavar="G:M:N:K",
    help="Groups, rows in all, N, K (G:M:I for SwiGLU); else sizes with every edge.",
)
@click.option(
    "--modes",
    default="quick",
    show_default=True,
    help="quick, all, or names: eager, deferred, late-readers, random-SEED, random-FIRST..LAST.",
)
@click.option("--jobs", "-j", type=click.IntRange(0), help="Processes; 0: by cores and memory.")
@click.option(
    "--time-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Seconds for one mode of one problem.",
)
@with_output
def verify(
    output: Output,
    names: tuple[str, ...],
    arch: Arch | None,
    problem: str | None,
    modes: str,
    jobs: int | None,
    time_limit: float,
) -> int:
    """
    Run kernels without a GPU and compare them with float64 sums.

    Each is compiled (a KEY is taken from the cache) and runs in an emulator, which checks every
    access for bounds, initialisation and races. Small integers run in each of the modes, which do
    asynchronous work and order warps differently, random numbers in the first. A plan stands for
    every kernel that the selector can choose for it. The exit code is 1 on any wrong value or
    finding.
    """
    from jitgen.emulator.modes import parse
    from jitgen.verify import require_numpy

    require_numpy()
    chosen = [mode.name for mode in parse(modes)]
    tasks = [
        {**task, "problem": problem, "modes": chosen, "time_limit_s": time_limit}
        for task in _tasks(names, arch)
    ]
    _check(tasks, problem)
    start = time.perf_counter()
    rows = list(_run(output, tasks, jobs, time_limit * (len(chosen) + 1)))
    wall_s = time.perf_counter() - start
    order = {_name(task): index for index, task in enumerate(tasks)}
    rows.sort(key=lambda row: order[row.name])
    document = {
        "ok": all(row.is_right for row in rows),
        "modes": chosen,
        "wall_s": wall_s,
        "kernels": [
            {**row.document, "name": row.name, "state": row.state.lower(), "error": row.error}
            for row in rows
        ],
    }
    output.result("verify", document, lambda: _print(output, rows, chosen, wall_s))
    return ExitCode.OK if document["ok"] else ExitCode.FAILED


def _tasks(names: tuple[str, ...], arch: Arch | None) -> Iterator[dict[str, Any]]:
    """Yield the kernels that `names` stand for, each once."""
    from jitgen.cache import Store

    store = Store.open()
    seen = set()
    found: list[tuple[Config, Arch, str]]
    for name in names:
        if name in plans.names() or name.endswith(".toml"):
            target = arch or _default_gpu()
            found = [(config, target, "") for config in plans.configs(plans.load(name), target)]
        else:
            named = find(name, store)
            if arch not in (None, named.arch):
                raise ConfigError(f"{name} is a kernel for {named.arch}, not for {arch}")
            found = [(named.config, named.arch, named.key if named.is_key else "")]
        for item in found:
            if item not in seen:
                seen.add(item)
                config, target, key = item
                yield {
                    "config": config.to_json(),
                    "arch": str(target),
                    "root": str(store.root),
                    "key": key,
                }


def _default_gpu() -> Arch:
    found = default_arch()
    return found if found.is_gpu else next(arch for arch in Arch if arch.is_gpu)


def _check(tasks: list[dict[str, Any]], problem: str | None) -> None:
    """Refuse what cannot be verified before anything is compiled."""
    for task in tasks:
        config, target = Config.from_json(task["config"]), Arch(task["arch"])
        if not target.is_gpu:
            raise ConfigError(f"{_name(task)} runs on this machine as it is: name a GPU kernel")
        if not operation(config.op).samples:
            raise ConfigError(f"{_name(task)}: kernels of {config.op} cannot be verified")
        require(config, target)
    if problem is not None:
        from jitgen.verify.verification import samples_of

        for task in tasks:  # each operation spells its sizes in its own way
            config = Config.from_json(task["config"])
            samples_of(config).Sizes.parse(problem, config)


def _name(task: dict[str, Any]) -> str:
    return Config.from_json(task["config"]).name(task["arch"])


def _run(
    output: Output, tasks: list[dict[str, Any]], jobs: int | None, timeout_s: float
) -> Iterator[_Row]:
    """Verify in processes, so that one that crashes costs itself only."""
    from jitgen.compile import capacity, workers

    number = capacity.default_jobs(settings.jobs if jobs is None else jobs)
    outcomes = workers.run(
        TASK,
        tasks,
        jobs=min(number, len(tasks)),
        timeout_s=timeout_s + settings.compile_timeout,
        preload=(*workers.PRELOAD, *_PRELOAD),
        without=(),
    )
    with output.progress(len(tasks), "verifying") as progress:
        for outcome in outcomes:
            result = outcome.result or {}
            error = outcome.error or result.get("error", "")
            row = _Row(
                name=_name(outcome.task),
                seconds=outcome.seconds,
                document={} if error else result,
                error=error,
            )
            progress.advance(f"{row.state} in {human_time(row.seconds)} {row.name}")
            yield row


def _print(output: Output, rows: list[_Row], modes: list[str], wall_s: float) -> None:
    columns = [
        Column("STATE"),
        Column("TIME", is_number=True),
        Column("FROBENIUS", is_number=True),
        Column("LARGEST", is_number=True),
        Column("WRONG", is_number=True),
        Column("FINDINGS", is_number=True),
        Column("NAME"),
    ]
    table = [
        (
            row.state,
            human_time(row.seconds),
            f"{row.largest('frobenius'):.2e}",
            f"{row.largest('largest'):.2e}",
            str(sum(trial["wrong"] for trial in row.trials)),
            str(sum(1 for _ in _findings(row))),
            row.name,
        )
        for row in rows
    ]
    output.table(columns, table)
    if len(rows) == 1:
        _print_counts(output, rows[0])
    for row in rows:
        if not row.is_right:
            _print_failure(output, row)
    wrong = sum(not row.is_right for row in rows)
    verdict = f"{wrong} not right" if wrong else "all right"
    output.note(
        f"{counted(len(rows), 'kernel')} in {counted(len(modes), 'mode')} ({', '.join(modes)}): "
        f"{verdict} in {human_time(wall_s)}"
    )


def _print_counts(output: Output, row: _Row) -> None:
    """Print what one kernel executed, in the first mode of its first problem that ended."""
    runs = [run for trial in row.trials for run in trial["runs"]]
    if not runs:
        return
    from jitgen.verify.verification import samples_of

    sizes = samples_of(Config.parse(row.name)[0]).Sizes(**row.document["sizes"])
    output.line()
    output.line(str(sizes), style="bold")
    facts = [(name.replace("_", " "), f"{count:,}") for name, count in runs[0]["counts"].items()]
    roles = Counter(runs[0]["warp_instructions"])
    facts += [(f"warp instructions in {role}", f"{n:,}") for role, n in roles.most_common()]
    output.fields(facts)
    output.line()
    seconds = [
        (f"{run['mode']} ({trial['values']})", human_time(run["seconds"]))
        for trial in row.trials
        for run in trial["runs"]
    ]
    output.fields(seconds)


def _findings(row: _Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where and what, for each finding of a kernel."""
    for trial in row.trials:
        if trial["fault"] is not None:
            yield trial["values"], trial["fault"]
        for run in trial["runs"]:
            for finding in run["findings"]:
                yield f"{trial['values']}, mode {run['mode']}", finding


def _print_failure(output: Output, row: _Row) -> None:
    output.line()
    output.line(row.name, style="bold")
    if row.error:
        output.line(f"  {row.error}")
    for trial in row.trials:
        if trial["wrong"]:
            output.line(f"  {trial['values']}: {counted(trial['wrong'], 'wrong value')}")
    found = list(_findings(row))
    for where, finding in found[:_SHOWN_FINDINGS]:
        times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
        output.line(f"  {where}: {finding['kind']}: {finding['message']}{times}")
        for word, text in (("at", finding["place"]), ("by", finding["who"])):
            if text:
                output.line(f"    {word} {text}")
    if len(found) > _SHOWN_FINDINGS:
        output.line(f"  and {len(found) - _SHOWN_FINDINGS} more; see --json")
