# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench kernel`` and ``plan``: time kernels that are named, or that a plan needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jitgen.autotune.measure.errors import NoDevice
from jitgen.bench import OWN
from jitgen.bench.kernel import (
    PROBLEMS,
    Contender,
    Tried,
    attempt,
    missing,
    obstacle,
    parse_problem,
    together,
    usual_problem,
)
from jitgen.bench.protocol import conditions
from jitgen.cli.lookup import Named, find
from jitgen.cli.options import ARCH, SECONDS, with_output
from jitgen.cli.output import Column, ExitCode, Output, counted, human_time
from jitgen.config import Arch
from jitgen.errors import ConfigError
from jitgen.plans.plan import load as load_plan
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import require

if TYPE_CHECKING:
    from jitgen.bench.kernel import Measured
    from jitgen.cache import Store

_USUAL = ", ".join(
    f"{cpu} on a CPU and {gpu} on a GPU for {op}" for op, (cpu, gpu) in PROBLEMS.items()
)


@click.command("kernel", short_help=OWN["kernel"], epilog=f"Without --problem: {_USUAL}.")
@click.argument("names", metavar="NAME|KEY|FILE...", nargs=-1, required=True)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="G:M:N:K",
    help="Groups, total rows, N, K (G:M:I for SwiGLU); may be given several times.",
)
@click.option(
    "--time-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Time limit in seconds for one kernel and problem.",
)
@with_output
def kernel(
    output: Output, names: tuple[str, ...], problems: tuple[str, ...], time_limit: float
) -> int:
    """
    Check kernels and time them in turn on problems. Kernels are given by names, keys, or files of
    edited kernels.

    The kernels must compute the same results on the same target: they may differ in tiles,
    clusters, stages and schedules, or by edits. RATIO is the speed of each relative to the first.
    On a GPU operands are not in the cache, as in a model. The exit code is 1 if a kernel is wrong
    for a problem, which is then not timed, or cannot be timed; other problems are measured all the
    same. It is 3 if a kernel is not compiled and compiling is off.
    """
    from jitgen.cache import Store
    from jitgen.verify import require_numpy

    require_numpy()
    store = Store.open()
    contenders = [_contender(store, find(name, store, with_files=True)) for name in names]
    if repeated := [n for i, n in enumerate(names) if n in names[:i]]:
        raise click.UsageError(f"{repeated[0]} is named twice")
    together(contenders)
    spec = contenders[0].spec
    chosen = problems or (usual_problem(spec),)
    for problem in filter(None, chosen):
        parse_problem(problem, spec)
    if reason := obstacle(spec.arch):
        raise NoDevice(f"{reason}; jitgen run and jitgen verify need none")
    if (absent := missing(contenders)) is not None:
        output.error("KernelMiss", f"{absent.title} is not compiled, and compiling is off")
        return ExitCode.WOULD_COMPILE
    found = [_attempted(output, contenders, problem, time_limit) for problem in chosen]
    is_good = all(tried.is_right for tried in found)
    where = conditions()

    def human() -> None:
        _print(output, found)
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    document = {
        "ok": is_good,
        "conditions": where,
        "kernels": [
            {"title": each.title, "name": each.spec.name, "key": each.spec.key}
            for each in contenders
        ],
        "problems": [
            {
                "checks": [check.to_json() for check in tried.checks],
                "times": tried.times or None,
                "error": tried.error,
            }
            for tried in found
        ],
    }
    output.result("bench kernel", document, human)
    return ExitCode.OK if is_good else ExitCode.FAILED


def _contender(store: Store, named: Named) -> Contender:
    """
    Return the contender for a kernel that the user named.

    Raises:
        ConfigError: Its key belongs to another toolchain or to other templates.
    """
    require(named.config, named.arch)
    if named.is_key and named.spec.key != named.key:
        from jitgen.runtime.spec import spec_of

        entry = store.read(named.key)
        spec = spec_of(named.config, named.arch, "" if entry is None else entry.source)
        if spec.key != named.key:
            raise ConfigError(
                f"{named.title} was compiled from something else than is installed here; write its "
                f"source to a file and name that: jitgen show {named.title} --source -o FILE.py"
            )
        return Contender(title=named.title, spec=spec)
    return Contender(title=named.title, spec=named.spec)


def _attempted(
    output: Output, contenders: list[Contender], problem: str, time_limit_s: float
) -> Tried:
    output.note(f"measuring {problem or 'sizes with every edge'}")
    return attempt(contenders, problem, time_limit_s=time_limit_s)


def _print(output: Output, found: list[Tried]) -> None:
    columns = [
        Column("TIME", is_number=True),
        Column("SPREAD", is_number=True),
        Column("RATIO", is_number=True),
        Column("GB/s", is_number=True),
        Column("TFLOP/s", is_number=True),
        Column("KERNEL"),
    ]
    for tried in found:
        for check in tried.checks:
            if not check.is_right:
                wrong = sum(row["wrong"] for row in check.rows)
                output.line(f"{check.title}: {check.error or f'{wrong:,} wrong values'}")
        if tried.error:
            output.line(tried.error)
        if tried.times:
            output.line(tried.times["problem"], style="bold")
            output.table(columns, [_cells(row, tried.times) for row in tried.times["kernels"]])


def _cells(row: dict[str, Any], times: dict[str, Any]) -> tuple[str, ...]:
    us, first = row["time_us"], times["kernels"][0]["time_us"]
    flop = times["flop"] / us * 1e-6
    return (
        human_time(us * 1e-6),
        f"{row['spread'] * 100:.1f} %",
        f"{first / us:.3f}",
        f"{times['bytes'] / us * 1e-3:.3g}",
        f"{flop:.3g}" if flop else "",
        row["title"],
    )


@click.command("plan")
@click.argument("name", metavar="PLAN")
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Number of problems to time, those with the most calls first.",
)
@with_output
def plan(output: Output, name: str, arch: Arch | None, most: int) -> None:
    """
    Time the kernels that are chosen for a plan, and weight them with the plan's calls.

    Results are checked before anything is timed. TIME is the time of one call, on a GPU with a cold
    L2; SHARE is the share of the kernel in the time of all measured calls.
    `jitgen plan from-recording` makes a plan with calls.
    """
    from jitgen.bench import kernel as timing

    loaded, target = load_plan(name), arch or default_arch()
    problems, others = timing.measurable(loaded, target)
    rest = len(problems) - most
    found: list[Measured] = []
    with output.progress(min(len(problems), most), "measuring") as progress:
        for each in timing.measure(loaded, problems[:most], target):
            found.append(each)
            progress.advance()
    total = sum(each.total for each in found)
    found.sort(key=lambda each: (-each.total, -each.time_us))
    where = conditions()
    document = {
        "suite": "plan",
        "ok": True,
        "plan": loaded.name,
        "arch": str(target),
        "conditions": where,
        "total_s": total,
        "left_out": [f"{each.op} {each.slug}" for each in others],
        "beyond_most": max(0, rest),
        "rows": [
            {**each.to_json(), "share": each.total / total if total else None} for each in found
        ],
    }

    def human() -> None:
        output.table(
            [
                Column("TIME (us)", is_number=True),
                Column("MODEL (us)", is_number=True),
                *([Column("CALLS", is_number=True), Column("SHARE", is_number=True)] * bool(total)),
                Column("PROBLEM"),
                Column("KERNEL"),
            ],
            [_plan_cells(each, total) for each in found],
        )
        if total:
            output.note(f"all calls together: {total:.3g} s on {target}")
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    output.result("bench plan", document, human)
    if rest > 0:
        output.note(f"{counted(rest, 'problem')} with fewer calls not timed; see --most")
    if others:
        output.note(f"{counted(len(others), 'problem')} of other operations cannot be timed alone")


def _plan_cells(each: Measured, total: float) -> tuple[str, ...]:
    return (
        f"{each.time_us:.1f}",
        f"{each.predicted_us:.1f}",
        *([f"{each.calls:.0f}", f"{each.total / total:.1%}"] if total else []),
        each.problem.slug,
        each.kernel,
    )
