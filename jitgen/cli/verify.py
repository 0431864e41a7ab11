# SPDX-License-Identifier: Apache-2.0
"""
``jitgen verify``: run kernels, GPU kernels in the emulator, and compare them with float64 sums.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from jitgen.cli import verified_schedules, verify_files, verify_rebuild
from jitgen.cli.lookup import find
from jitgen.cli.options import TIME_LIMIT, refuse, with_output
from jitgen.cli.output import ExitCode, Output, counted, human_time
from jitgen.cli.verified import VerifiedParts
from jitgen.config import Arch, Config
from jitgen.config.operation import operation
from jitgen.emulator import PRELOAD as EMULATOR_PRELOAD
from jitgen.errors import ConfigError
from jitgen.plans.plan import configs as plan_configs
from jitgen.plans.plan import is_plan
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import one_of
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import require

if TYPE_CHECKING:
    from jitgen.compile.workers import Outcome

TASK = "jitgen.verify.verification:verify_task"

PRELOAD = (*EMULATOR_PRELOAD, "jitgen.verify.verification")
"""Modules that every task needs in addition to the compiler."""

NATIVE = "native"
"""Shown instead of modes, if every kernel runs on this CPU."""

_SHOWN_FINDINGS = 6


@frozen
class _VerifiedKernel(VerifiedParts):
    """A kernel that was verified, or why it could not be."""

    name: v.Name
    state: Annotated[str, one_of("right", "wrong", "failed")]
    error: v.Reason


@frozen
class _Verified:
    ok: v.Ok
    modes: Sequence[str]
    wall_s: v.Seconds
    kernels: Sequence[Annotated[v.Values, _VerifiedKernel]]


@frozen
class Row:
    """Result for one kernel: the JSON form of its verification, or the reason why there is none."""

    name: str
    seconds: float
    document: dict[str, Any]
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the kernel was verified, and found right."""
        return not self.error and bool(self.document["right"])

    @property
    def state(self) -> str:
        """State of the kernel: ``right``, ``WRONG`` or ``failed``."""
        return "right" if self.is_right else "failed" if self.error else "WRONG"

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The results of the problems with which the kernel ran."""
        found: list[dict[str, Any]] = self.document.get("trials", [])
        return found

    @property
    def executed(self) -> tuple[int, int]:
        """
        Number of instructions that were executed or are unreachable, and of those that must be
        executed.
        """
        counts = [n for each in self.coverage for n in each["purposes"].values()]
        excused = sum(bool(x["reason"]) for each in self.coverage for x in each["never_executed"])
        return sum(done for done, _ in counts) + excused, sum(total for _, total in counts)

    @property
    def coverage(self) -> list[dict[str, Any]]:
        """The executed instructions of each entry function of the kernel."""
        found: list[dict[str, Any]] = self.document.get("coverage", [])
        return found

    def largest(self, field: str) -> float:
        """Return the largest value of a field among its trials."""
        return max((trial[field] for trial in self.trials), default=0.0)


@click.command(
    epilog=f"Shipped plans: {', '.join(plan_names())}. A plan of your own is a .toml file."
)
@click.argument("names", metavar="CONFIG|PLAN|KEY|FILE...", nargs=-1, required=True)
@click.option("--arch", help="Target of plans and files; default: the GPU's, else sm_90a.")
@click.option(
    "--problem",
    metavar="G:M:N:K",
    help="Groups, total rows, N, K (G:M:I for SwiGLU); default: sizes that cover all edges.",
)
@click.option(
    "--modes",
    default="quick",
    show_default=True,
    help="quick, all, or names: eager, deferred, late-readers, random-SEED, random-FIRST..LAST.",
)
@click.option("--jobs", "-j", type=click.IntRange(0), help="Processes; 0: by cores and memory.")
@TIME_LIMIT
@verify_files.options
@verify_rebuild.OPTION
@with_output
def verify(
    output: Output,
    /,
    names: tuple[str, ...],
    arch: str | None,
    problem: str | None,
    modes: str,
    jobs: int | None,
    time_limit: float,
    **of_files: Any,
) -> int:
    """
    Run kernels without a GPU and compare them with float64 sums.

    Each kernel is compiled (for a KEY, the entry of the cache is used) and runs in an emulator,
    which checks every access for bounds, initialisation and races. Problems with small integers run
    in each of the modes, which order asynchronous work and warps differently; random numbers run in
    the first mode only. All problems together must execute every synchronisation, copy, matrix and
    store instruction; with your own --problem, the coverage is shown but does not matter. A plan
    means every kernel that the selector can choose for it. The exit code is 1 if a value is wrong
    or an error was found.

    Kernels for the cpu run once on this machine with the same problems; only their results are
    checked.

    With --rebuild no kernel runs: the entries of the cache are compiled again, and the exit code is
    1 if any byte differs, or if an entry cannot be compiled on this machine.

    To verify your own kernels, give a FILE.py with verify_cases(), or a FILE.so with --ptx,
    --symbol and --cases: see docs/verify.md. This runs the code in these files. A FILE.json
    describes PTX programs of several devices: see docs/emulator-devices.md.
    """
    from jitgen.emulator import parse_modes
    from jitgen.verify import require_numpy

    if of_files.pop("rebuild"):
        if problem is not None or any(of_files.values()):
            raise click.UsageError("--rebuild runs nothing: it takes no sizes and no files")
        refuse("not with --rebuild, which runs nothing", "modes", "time_limit")
        return verify_rebuild.run(output, names, None if arch is None else Arch.parse(arch), jobs)
    require_numpy()
    chosen = [mode.name for mode in parse_modes(modes)]
    tasks = verify_files.tasks(names, arch or str(_default_gpu()), problem=problem, **of_files)
    function, timeout_s = verify_files.TASK, verify_files.LIMIT_S
    if not tasks:
        target = None if arch is None else Arch.parse(arch)
        function, timeout_s = TASK, time_limit * (len(chosen) + 1) + settings.compile_timeout
        tasks = [{**task, "problem": problem} for task in _tasks(names, target)]
        _check(tasks, problem)
        if not any(Arch(task["arch"]).is_gpu for task in tasks):
            chosen = [NATIVE]
    tasks = [{**task, "modes": chosen, "time_limit_s": time_limit} for task in tasks]
    start = time.perf_counter()
    rows = _run(output, function, tasks, jobs, timeout_s)
    wall_s = time.perf_counter() - start
    kernels = [
        {**row.document, "name": row.name, "state": row.state.lower(), "error": row.error}
        for row in rows
    ]
    is_right = all(row.is_right for row in rows)
    document = _Verified(ok=is_right, modes=chosen, wall_s=wall_s, kernels=kernels)
    output.report("verify", document, lambda: _print(output, rows, chosen, wall_s))
    return ExitCode.OK if is_right else ExitCode.FAILED


def _tasks(names: tuple[str, ...], arch: Arch | None) -> Iterator[dict[str, Any]]:
    """Yield a task for each kernel that `names` mean, each once."""
    from jitgen.cache import Store

    store = Store.open()
    seen = set()
    found: list[tuple[Config, Arch, str]]
    for name in names:
        if is_plan(name):
            target = arch or _default_gpu()
            found = [(config, target, "") for config in plan_configs(load_plan(name), target)]
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
    """Refuse kernels that cannot be verified, before anything is compiled."""
    for task in tasks:
        config, target = Config.from_json(task["config"]), Arch(task["arch"])
        if not operation(config.op).samples:
            raise ConfigError(f"{_name(task)}: kernels of {config.op} cannot be verified")
        require(config, target)
    if problem is not None:
        from jitgen.verify.verification import sizes_of

        for task in tasks:  # each operation spells its sizes in its own way
            config = Config.from_json(task["config"])
            sizes_of(problem, config)


def _name(task: dict[str, Any]) -> str:
    if "file" in task:
        return verify_files.name(task)
    return Config.from_json(task["config"]).name(task["arch"])


def _run(
    output: Output, function: str, tasks: list[dict[str, Any]], jobs: int | None, timeout_s: float
) -> list[Row]:
    """Verify in worker processes; return a row for each kernel, in the order of the tasks."""
    from jitgen.compile import capacity, workers

    number = capacity.default_jobs(settings.jobs if jobs is None else jobs)
    outcomes = workers.run(
        function,
        tasks,
        jobs=min(number, len(tasks)),
        timeout_s=timeout_s,
        preload=(*workers.PRELOAD, *PRELOAD),
        without=(),
    )
    found: dict[int, list[Row]] = {}
    with output.progress(len(tasks), "verifying") as progress:
        for outcome in outcomes:
            rows = found[outcome.index] = list(rows_of(outcome))
            state = next((row.state for row in rows if not row.is_right), rows[0].state)
            name = _name(outcome.task)
            progress.advance(f"{state} in {human_time(outcome.seconds)} {name}")
    return [row for index in sorted(found) for row in found[index]]


def rows_of(outcome: Outcome) -> Iterator[Row]:
    """
    Yield a row for each kernel of a task; if there are no kernels, one row with the name of the
    task.
    """
    result = outcome.result or {}
    error = outcome.error or result.get("error", "")
    named = _name(outcome.task)
    for kernel in result.get("kernels", [result]):
        yield Row(
            name=kernel.get("name", named),
            seconds=outcome.seconds,
            document={} if error else kernel,
            error=error,
        )


def _print(output: Output, rows: list[Row], modes: list[str], wall_s: float) -> None:
    columns = [
        "STATE",
        ">TIME",
        ">FROBENIUS",
        ">LARGEST",
        ">WRONG",
        ">FINDINGS",
        ">EXECUTED",
        "NAME",
    ]
    table = [
        (
            row.state,
            human_time(row.seconds),
            f"{row.largest('frobenius'):.2e}",
            f"{row.largest('largest'):.2e}",
            str(sum(trial["wrong"] for trial in row.trials)),
            str(sum(1 for _ in _findings(row))),
            "{} of {}".format(*row.executed) if row.coverage else "",
            row.name,
        )
        for row in rows
    ]
    output.table(columns, table)
    if len(rows) == 1:
        _print_counts(output, rows[0])
        _print_coverage(output, rows[0])
    for row in rows:
        verified_schedules.show(output, row.name, row.trials)
    for row in rows:
        if not row.is_right or any(_findings(row)):
            print_trouble(output, row)
    wrong = sum(not row.is_right for row in rows)
    verdict = f"{wrong} not right" if wrong else "all right"
    runs = [run for row in rows for trial in row.trials for run in trial["runs"]]
    ran = [*dict.fromkeys([*modes, *(run["mode"] for run in runs)])]  # several devices have more
    how = f"in {counted(len(ran), 'mode')} ({', '.join(ran)})"
    if modes == [NATIVE]:
        how = "on this CPU, which checks no access"
    output.note(f"{counted(len(rows), 'kernel')} {how}: {verdict} in {human_time(wall_s)}")
    if modes != [NATIVE]:
        output.note(verified_schedules.summary([trial for row in rows for trial in row.trials]))


def _print_counts(output: Output, row: Row) -> None:
    """
    Print what a kernel executed in the first mode of the first problem that ran, and the seconds of
    every run.
    """
    first = next((trial for trial in row.trials if trial["runs"]), None)
    if first is None:
        return
    run = first["runs"][0]
    output.line()
    output.line(first["problem"], style="bold")
    facts = [(name.replace("_", " "), f"{count:,}") for name, count in run["counts"].items()]
    roles = Counter(run["warp_instructions"])
    facts += [(f"warp instructions in {role}", f"{n:,}") for role, n in roles.most_common()]
    output.fields(facts)
    output.line()
    seconds = [
        (f"{run['mode']} ({trial['values']}; {trial['problem']})", human_time(run["seconds"]))
        for trial in row.trials
        for run in trial["runs"]
    ]
    output.fields(seconds)


def _print_coverage(output: Output, row: Row) -> None:
    """
    Print the executed instructions of all problems together, and why the others cannot be executed.
    """
    for kernel in row.coverage:
        output.line()
        output.line("executed by all problems together", style="bold")
        done, total = kernel["instructions"]
        facts = [("instructions", f"{done:,} of {total:,}")]
        for purpose, (done, total) in kernel["purposes"].items():
            facts.append((f"{purpose} instructions", f"{done:,} of {total:,}"))
        done, total = kernel["branches"]
        facts.append(("outcomes of branches", f"{done:,} of {total:,}"))
        for name, function in kernel["functions"].items():
            done, total = function["lines"]
            left = ", ".join(map(str, function["never"]))
            facts.append(
                (f"lines of {name}", f"{done} of {total}" + (f"; not {left}" if left else ""))
            )
        output.fields(facts)
        reasons = Counter(x["reason"] for x in kernel["never_executed"] if x["reason"])
        for reason, number in reasons.items():
            output.line(f"  {counted(number, 'instruction')} never executed: {reason}")
        for missed in [x for x in kernel["never_executed"] if not x["reason"]][:_SHOWN_FINDINGS]:
            output.line(f"  never executed: {missed['place']}")


def _findings(row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each finding of a kernel, after a text that names its problem and mode."""
    for trial in row.trials:
        if trial["fault"] is not None:
            yield trial["values"], trial["fault"]
        for run in trial["runs"]:
            for finding in run["findings"]:
                yield f"{trial['values']}, mode {run['mode']}", finding
    for gap in row.document.get("gaps", []):
        yield "all problems", gap


def print_trouble(output: Output, row: Row) -> None:
    """Print the errors and warnings of a kernel."""
    output.line()
    output.line(row.name, style="bold")
    if row.error:
        output.line(f"  {row.error}")
    for trial in row.trials:
        if trial["wrong"]:
            output.line(f"  {trial['values']}: {counted(trial['wrong'], 'wrong value')}")
            for place in trial["places"]:
                output.line(f"    {place}")
    found = list(_findings(row))
    for where, finding in found[:_SHOWN_FINDINGS]:
        times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
        weight = "warning: " if finding.get("severity") == "warning" else ""
        first, *more = finding["message"].split("\n")
        output.line(f"  {where}: {weight}{finding['kind']}: {first}{times}")
        for text in more:
            output.line(f"    {text.strip()}")
        for word, text in (("at", finding["place"]), ("by", finding["who"])):
            if text:
                output.line(f"    {word} {text}")
    if len(found) > _SHOWN_FINDINGS:
        output.line(f"  and {len(found) - _SHOWN_FINDINGS} more; see --json")
